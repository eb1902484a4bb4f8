package waymysql_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"database/sql"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/waymysql"
)

const clientSSL = 1 << 11 // a capability, of servers and clients

// greeting is the first packet of a MySQL with the capabilities of what these
// tests need, and more of them.
func greeting(more uint32) []byte {
	capabilities := 1<<0 | 1<<9 | 1<<15 | 1<<19 | more // long password, protocol 4.1, secure connection, plugin auth
	b := append([]byte{10}, "8.0.36\x00\x01\x00\x00\x00saltsalt\x00"...)
	b = binary.LittleEndian.AppendUint16(b, uint16(capabilities))
	b = append(b, 255, 2, 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(capabilities>>16))
	b = append(b, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	b = append(b, "saltsaltsalt\x00mysql_native_password\x00"...)
	return append([]byte{byte(len(b)), 0, 0, 0}, b...)
}

// A greeted connection is one whose server greets and then says no more.
type greeted struct {
	net.Conn
	from *bytes.Reader
	once sync.Once
	told func(flags uint32) // gets the client's capability flags
}

func (c *greeted) Read(b []byte) (int, error) { return c.from.Read(b) }
func (c *greeted) Close() error               { return nil }
func (c *greeted) Write(b []byte) (int, error) {
	c.once.Do(func() { c.told(binary.LittleEndian.Uint32(b[4:])) })
	return len(b), nil
}

// Where TLS is wished for and not demanded, a server without it concerns its
// own connection alone: others are made at the same time, and later ones may
// reach a server that has it.
func TestServerWithoutTLSMakesNoOtherConnectionPlain(t *testing.T) {
	var mu sync.Mutex // guards the variables below
	capabilities, dials, encrypted, plain := uint32(0), 0, 0, 0
	const together = 2
	var dialling sync.WaitGroup
	dialling.Add(together)
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.DBName, cfg.Logger = "tcp", "db:3306", "shop", &mysql.NopLogger{}
	cfg.TLS, cfg.AllowFallbackToPlaintext = &tls.Config{InsecureSkipVerify: true}, true
	cfg.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		mu.Lock()
		from := bytes.NewReader(greeting(capabilities))
		if dials++; dials <= together {
			dialling.Done()
		}
		mu.Unlock()
		dialling.Wait()
		return &greeted{from: from, told: func(flags uint32) {
			mu.Lock()
			defer mu.Unlock()
			if flags&clientSSL != 0 {
				encrypted++
			} else {
				plain++
			}
		}}, nil
	}
	db, err := waymysql.OpenConfig(cfg, waymysql.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var connections sync.WaitGroup
	for range together {
		connections.Go(func() {
			if _, err := db.Pool().Conn(t.Context()); err == nil {
				t.Error("connected to a server that says nothing")
			}
		})
	}
	connections.Wait()
	mu.Lock()
	if encrypted != 0 || plain < together {
		t.Errorf("without TLS on the server: %d connections ask for it, %d do not", encrypted, plain)
	}
	capabilities, encrypted, plain = clientSSL, 0, 0
	mu.Unlock()
	if _, err := db.Pool().Conn(t.Context()); err == nil {
		t.Error("connected to a server that says nothing")
	}
	mu.Lock()
	defer mu.Unlock()
	if encrypted == 0 || plain != 0 {
		t.Errorf("with TLS on the server: %d connections ask for it, %d do not", encrypted, plain)
	}
}

// A cut connection is one that is lost at its write number left.
type cut struct {
	net.Conn
	left int
	lost *atomic.Int32
}

func (c *cut) Write(b []byte) (int, error) {
	if c.left--; c.left == 0 {
		c.lost.Add(1)
		return 0, errors.Join(c.Close(), syscall.ECONNRESET)
	}
	return c.Conn.Write(b)
}

// A connection may be lost at each write of its handshake: a worker that starts then tries
// again.
func TestConnectionLostInItsHandshakeIsAnOutage(t *testing.T) {
	t.Parallel()
	_, dsn := newDB(t, waymysql.Config{})
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Logger, cfg.InterpolateParams = &mysql.NopLogger{}, true
	const most = 2 // writes: the answer to the greeting, and the settings
	for at := 1; at <= most; at++ {
		var lost atomic.Int32
		cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			return &cut{conn, at, &lost}, err
		}
		own, err := waymysql.OpenConfig(cfg, waymysql.Config{})
		if err != nil {
			t.Fatal(err)
		}
		queue, err := own.Queue("events", waymysql.QueueConfig{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err = queue.Receive(ctx, 1)
		cancel()
		if !errors.Is(err, waybill.ErrUnavailable) || lost.Load() == 0 {
			t.Errorf("%d lost at write %d: %v, want some, and ErrUnavailable", lost.Load(), at, err)
		}
		_ = own.Close() // says that a connection is lost

		connector, err := mysql.NewConnector(cfg)
		if err != nil {
			t.Fatal(err)
		}
		pool := sql.OpenDB(connector)
		if borrowed, err := waymysql.New(pool, waymysql.Config{}); err == nil {
			_ = borrowed.Close()
		} else if !errors.Is(err, waybill.ErrUnavailable) {
			t.Errorf("New, lost at write %d: %v, want ErrUnavailable", at, err)
		}
		_ = pool.Close()
	}
}
