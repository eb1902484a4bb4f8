package waymysql_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill/waymysql"
)

// A stall is a client that stops reading in the middle of a large answer.
type stall struct {
	stuck, goOn chan struct{}
	once        sync.Once
}

// stalled opens a database whose connections stop reading after so many bytes
// that only rows with large bodies are that long.
func stalled(t *testing.T, dsn string) (*waymysql.DB, *stall) {
	t.Helper()
	s := &stall{stuck: make(chan struct{}), goOn: make(chan struct{})}
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetReadBuffer(64 << 10)
		}
		return &stallingConn{Conn: conn, s: s}, err
	}
	db, err := waymysql.OpenConfig(cfg, waymysql.Config{IdleTimeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db, s
}

type stallingConn struct {
	net.Conn
	s    *stall
	read int
}

func (c *stallingConn) Read(b []byte) (int, error) {
	if c.read > 512<<10 {
		c.s.once.Do(func() { close(c.s.stuck) })
		<-c.s.goOn
	}
	n, err := c.Conn.Read(b)
	c.read += n
	return n, err
}
