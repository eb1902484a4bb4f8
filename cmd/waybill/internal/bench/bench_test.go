package bench

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
	"github.com/waybill-go/waybill/waymysql"
)

// places are one of each kind, in databases of the test's own.
func places(t *testing.T) map[string]backend {
	t.Helper()
	dsn, err := driver.ParseDSN(mysqlDSN(testserver.MariaDB(t)))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]backend{}
	for name, opt := range map[string]Options{
		"postgres": {Postgres: testserver.Postgres(t)},
		"mysql": {MySQL: func(_ context.Context, cfg waymysql.Config) (*waymysql.DB, error) {
			return waymysql.OpenConfig(dsn, cfg)
		}},
	} {
		p, err := newBackend(t.Context(), opt)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.close(); err != nil {
				t.Error(err)
			}
		})
		all[name] = p
	}
	return all
}

// mysqlDSN turns mysql://user@host/name into the form of the client.
func mysqlDSN(url string) string {
	user, rest, _ := strings.Cut(strings.TrimPrefix(url, "mysql://"), "@")
	host, name, _ := strings.Cut(rest, "/")
	return fmt.Sprintf("%s@tcp(%s)/%s?interpolateParams=true", user, host, name)
}

func brokerOf(t *testing.T) (*broker, string) {
	t.Helper()
	url := testserver.RabbitMQ(t)
	b, err := openBroker(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	})
	return b, url
}

// A benchmark that loses or reorders messages must not report a rate.
func TestWrongArrivalsAreFound(t *testing.T) {
	b, _ := brokerOf(t)
	b.quiet = time.Second
	for _, tt := range []struct {
		name    string
		numbers []uint64 // their key is the number modulo 2
		ordered bool
		want    string
	}{
		{"in order", []uint64{1, 2, 3, 4}, true, ""},
		{"keys interleave", []uint64{2, 4, 1, 3}, true, ""},
		{"out of order in a key", []uint64{3, 2, 1, 4}, true, "message 1 of key 1 arrived after 3"},
		{"out of order where none is kept", []uint64{3, 2, 1, 4}, false, ""},
		{"twice", []uint64{1, 2, 2, 3, 4}, true, "message 2 arrived twice"},
		{"too few", []uint64{1, 2, 3}, true, "3 of 4 messages arrived"},
		{"too many", []uint64{1, 2, 3, 4, 4}, true, "1 messages arrived beyond the 4 that were sent"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := *b
			var err error
			if b.ch, err = b.conn.Channel(); err != nil { // the check leaves a consumer behind when it fails
				t.Fatal(err)
			}
			defer b.ch.Close()
			if _, err := b.ch.QueuePurge(b.name, false); err != nil {
				t.Fatal(err)
			}
			for _, n := range tt.numbers {
				body := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, n), n%2)
				if err := b.ch.PublishWithContext(t.Context(), b.name, "x", true, false, amqp.Publishing{Body: body}); err != nil {
					t.Fatal(err)
				}
			}
			got := ""
			if err := b.arrived(t.Context(), 4, tt.ordered); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// Otherwise the broker would have less to do for one side.
func TestYardstickPublishesWhatWaybillPublishes(t *testing.T) {
	b, url := brokerOf(t)
	now := time.Now()
	id, err := waybill.NewMessageID()
	if err != nil {
		t.Fatal(err)
	}
	pub, err := wayamqp.NewPublisher(wayamqp.Config{URL: url, Exchange: b.name})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	body := []byte(strings.Repeat("x", 200))
	if err := pub.Send(t.Context(), &waybill.Record{ID: id, Name: "order.placed", Key: "key-1", Body: body, DispatchedAt: now}); err != nil {
		t.Fatal(err)
	}
	chs, closeAll, err := confirming(url, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll()
	confirm, err := row{1, id, "order.placed", "key-1", "{}", body, now}.publish(t.Context(), chs[0], b.name)
	if err != nil {
		t.Fatal(err)
	}
	if err := wait(t.Context(), []*amqp.DeferredConfirmation{confirm}); err != nil {
		t.Fatal(err)
	}
	var sent [2]amqp.Publishing
	for i := range sent {
		d, ok, err := b.ch.Get(b.name, true)
		if err != nil || !ok {
			t.Fatalf("message %d: %t, %v", i, ok, err)
		}
		sent[i] = amqp.Publishing{Headers: d.Headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode, Priority: d.Priority,
			CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: d.Expiration, MessageId: d.MessageId, Timestamp: d.Timestamp, Type: d.Type, UserId: d.UserId, AppId: d.AppId, Body: d.Body}
	}
	if diff := cmp.Diff(sent[0], sent[1]); diff != "" {
		t.Errorf("waybill -, yardstick +:\n%s", diff)
	}
}

func TestLoadedRowsAreTheirKeys(t *testing.T) {
	const n = 12_000 // more than a deck has slots
	for name, p := range places(t) {
		for _, r := range []rows{{first: 1, n: n, keys: 10}, {first: 1, n: n, zipf: true}} {
			t.Run(fmt.Sprint(name, " zipf ", r.zipf), func(t *testing.T) {
				if err := p.clear(t.Context()); err != nil {
					t.Fatal(err)
				}
				perKey := map[string]int{}
				for into, columns := range map[table]string{outboxTable: "partition_key, bucket", ideal.table: "partition_key, 0", bare.table: "'', 0", unkeyedTable: "'', 0"} {
					if err := loadAll(t.Context(), p, r, into); err != nil {
						t.Fatal(err)
					}
					all := read(t, p, into, columns)
					if len(all) != n {
						t.Fatalf("%s has %d rows, want %d", into, len(all), n)
					}
					for i, got := range all {
						number, key := binary.BigEndian.Uint64(got.body), binary.BigEndian.Uint64(got.body[8:])
						want := loaded{fmt.Sprint("key-", key), 0, got.body}
						if into == outboxTable {
							perKey[got.key]++
							want.bucket = outbox.Bucket(want.key, outbox.DefaultBuckets)
						} else if into != ideal.table {
							want.key = ""
						}
						if number != uint64(i+1) || len(got.body) != 200 || got.key != want.key || got.bucket != want.bucket {
							t.Fatalf("row %d: number %d, %d bytes, key %s, bucket %d, want key %s, bucket %d", i+1, number, len(got.body), got.key, got.bucket, want.key, want.bucket)
						}
					}
				}
				most := slices.Max(slices.Collect(maps.Values(perKey)))
				if r.zipf && (len(perKey) < 500 || most < n/20) || !r.zipf && (len(perKey) != 10 || most != n/10) {
					t.Errorf("%d keys, the most of one are %d", len(perKey), most)
				}
			})
		}
	}
}

// A load of blocked keys must be what a relay leaves behind: claims pass it over, and a
// release brings all of it back.
func TestBlockedLoadIsWhatARelayBlocks(t *testing.T) {
	const n = 30
	for name, p := range places(t) {
		for _, parked := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " parked ", parked), func(t *testing.T) {
				if err := p.clear(t.Context()); err != nil {
					t.Fatal(err)
				}
				b := &backlog{p, Options{}, outboxTable, 1}
				if err := b.refuse(t.Context(), n, parked); err != nil {
					t.Fatal(err)
				}
				left, err := p.store().Backlog(t.Context(), outbox.DefaultTransport)
				if err != nil || left.Blocked != n {
					t.Errorf("%d of %d rows are blocked, %v", left.Blocked, n, err)
				}
				for _, row := range read(t, p, outboxTable, "partition_key, bucket") {
					if aside := row.bucket >= outbox.ParkedBuckets; aside != parked {
						t.Fatalf("%s is in bucket %d", row.key, row.bucket)
					}
				}
				claimed := func() (all int) {
					for part := outbox.Keyed; part <= outbox.Retries; part++ {
						for {
							got, err := b.settle(t.Context(), part, nil)
							if err != nil {
								t.Fatal(err)
							}
							if all += got; got == 0 {
								break
							}
						}
					}
					return all
				}
				if got := claimed(); got != 0 {
					t.Errorf("claims found %d rows of blocked keys", got)
				}
				released, err := p.store().(admin.Database).Release(t.Context(), admin.BlockedQuery{})
				if err != nil || released != n {
					t.Errorf("%d of %d keys were released, %v", released, n, err)
				}
				if got := claimed(); got != n {
					t.Errorf("claims found %d rows after the release, want %d", got, n)
				}
			})
		}
	}
}

// loaded is a row as it is in a table.
type loaded struct {
	key    string
	bucket int
	body   []byte
}

// read returns the rows of a table in the order of their ids.
func read(t *testing.T, p backend, from table, columns string) (all []loaded) {
	t.Helper()
	query := "SELECT " + columns + ", body FROM %s WHERE id > 0 ORDER BY id"
	var pool *sql.DB
	switch p := p.(type) {
	case *mysql:
		pool = p.db.Pool()
		query = fmt.Sprintf(query, p.name(from))
	case *postgres:
		found, err := p.pool.Query(t.Context(), p.sql(fmt.Sprintf(query, "{}."+string(from))))
		if err != nil {
			t.Fatal(err)
		}
		defer found.Close()
		for found.Next() {
			var l loaded
			if err := found.Scan(&l.key, &l.bucket, &l.body); err != nil {
				t.Fatal(err)
			}
			all = append(all, l)
		}
		return all
	}
	found, err := pool.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	for found.Next() {
		var l loaded
		if err := found.Scan(&l.key, &l.bucket, &l.body); err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	return all
}

// A snapshot that the server has ended holds nothing back.
func TestSnapshotThatWasLostIsAnError(t *testing.T) {
	for name, p := range places(t) {
		t.Run(name, func(t *testing.T) {
			release, err := p.snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := release(); err != nil {
				t.Fatalf("held: %v", err)
			}
			if release, err = p.snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
			switch p := p.(type) {
			case *postgres:
				err = p.exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'`)
			case *mysql:
				var id int
				err = sql.ErrNoRows
				for tries := 0; errors.Is(err, sql.ErrNoRows) && tries < 100; tries++ {
					time.Sleep(120 * time.Millisecond) // it answers more frequent queries, also those of others, from a cache
					err = p.db.Pool().QueryRowContext(t.Context(), "SELECT t.trx_mysql_thread_id FROM information_schema.innodb_trx AS t JOIN information_schema.processlist AS l ON l.id = t.trx_mysql_thread_id WHERE l.db = DATABASE()").Scan(&id)
				}
				if err == nil {
					err = p.exec(t.Context(), fmt.Sprint("KILL ", id))
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			if release() == nil {
				t.Error("the server has ended the snapshot, and that was not noticed")
			}
		})
	}
}

// A yardstick must be code that is written in an hour.
func TestYardsticksAreShort(t *testing.T) {
	for _, file := range []string{"postgresideal.go", "mysqlideal.go"} {
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, decl := range parsed.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Name.Name == "byHand" {
				found = true
				if n := files.Position(f.End()).Line - files.Position(f.Pos()).Line + 1; n > 60 {
					t.Errorf("%s: byHand has %d lines, want at most 60", file, n)
				}
			}
		}
		if !found {
			t.Errorf("%s has no function byHand", file)
		}
	}
}

func TestHighWaterIsTheMostThatWasResident(t *testing.T) {
	before, ok := highWater(os.Getpid())
	pages := make([]byte, 64<<20)
	for i := range pages {
		pages[i] = 1
	}
	runtime.KeepAlive(pages)
	after, _ := highWater(os.Getpid())
	if !ok || before < 1 || after < before+50 {
		t.Errorf("%.1f MiB (%t), and %.1f after 64 more were written", before, ok, after)
	}
	if _, ok := highWater(1 << 30); ok {
		t.Error("a process that does not exist has memory")
	}
}
