package waymysql_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
)

// A slowReading connection sends the statement that reads buckets later, when
// armed with a pause.
type slowReading struct {
	net.Conn
	pause *atomic.Int64
}

func (c slowReading) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("SELECT -3, l.blocked_version")) {
		time.Sleep(time.Duration(c.pause.Load()))
	}
	return c.Conn.Write(b)
}

// A key may become due between the statement that reads what waits and the one
// that reads the rows. Its head is behind the cursor then, and what follows it
// must not be read alone.
func TestKeyThatBecomesDueInsideAClaimKeepsItsOrder(t *testing.T) {
	db, dsn := newDB(t, waymysql.Config{})
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	var pause atomic.Int64
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return slowReading{conn, &pause}, err
	}
	slow, err := waymysql.New(cfg, waymysql.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slow.Close() })

	k := sameBucket(2)
	put(t, db, order{k[0], 1}, order{k[1], 1})
	c := claim(t, slow, manyRows)
	const wait = 3 * time.Second
	for _, row := range c.Rows() {
		if bodyOf(row.Record).Key == k[0] {
			settle(t, c, nil, outbox.Failure{Row: row, Err: errRefused, RetryIn: wait})
		}
	}
	c = claim(t, slow, manyRows) // its cursor is behind the first key's head
	settle(t, c, c.Rows())
	put(t, db, order{k[0], 2})
	pause.Store(int64(wait + 200*time.Millisecond))
	c = claim(t, slow, manyRows)
	var got []order
	for _, row := range c.Rows() {
		got = append(got, bodyOf(row.Record))
	}
	settle(t, c, nil)
	pause.Store(0)
	// On a slow machine the key is due before the claim begins.
	if want := []order{{k[0], 1}, {k[0], 2}}; len(got) > 0 && fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("claimed %v: want nothing yet, or %v", got, want)
	}
	if got, want := drained(t, db), []order{{k[0], 1}, {k[0], 2}}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("then %v, want %v", got, want)
	}
}
