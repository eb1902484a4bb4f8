package waypg_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
	"github.com/waybill-go/waybill/waytest"
)

func TestWaybillDispatchIsRelayedLikeAnyOther(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		newOutbox(t, db, outbox.Config{})
		var ids []string
		var one string
		if err := db.Pool().QueryRow(t.Context(), `SELECT waybill_dispatch('order.placed', 'k', '{"tenant": "acme"}', '{"key":"k","seq":0}')::text`).Scan(&one); err != nil {
			t.Fatal(err)
		}
		err := db.Pool().QueryRow(t.Context(), `SELECT waybill_dispatch_all(ARRAY['order.placed', 'order.placed', 'order.placed'], ARRAY['k', '', 'l'], ARRAY['{}', '{}', '{}']::jsonb[],
			ARRAY['{"key":"k","seq":1}', '{"key":"","seq":0}', '{"key":"l","seq":0}']::bytea[])::text[]`).Scan(&ids)
		if err != nil {
			t.Fatal(err)
		}
		rows := claimAll(t, db, "default")
		if got := namesOf(rows); got != "0 k0 k1 l0" {
			t.Errorf("claimed %q, want 0 k0 k1 l0", got)
		}
		given := map[string]bool{one: true, ids[0]: true, ids[1]: true, ids[2]: true}
		for _, row := range rows {
			id := row.Record.ID.String()
			if !given[id] || id[14] != '7' || strings.IndexByte("89ab", id[19]) < 0 {
				t.Errorf("id %s, want one of those returned, a UUID of version 7", id)
			}
			ms := int64(row.Record.ID[0])<<40 | int64(row.Record.ID[1])<<32 | int64(row.Record.ID[2])<<24 | int64(row.Record.ID[3])<<16 | int64(row.Record.ID[4])<<8 | int64(row.Record.ID[5])
			if at := time.UnixMilli(ms); time.Since(at).Abs() > time.Minute {
				t.Errorf("id %s is of %v", id, at)
			}
			if o := bodyOf(row.Record); o == (order{"k", 0}) && row.Record.Headers["tenant"] != "acme" {
				t.Errorf("headers %v", row.Record.Headers)
			}
		}
	})
}

func TestWaybillDispatchKnowsTheBucketOfEveryKey(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		newOutbox(t, db, outbox.Config{})
		keys := []string{"a", "A", "a ", "ä", "é", "ÿ", "'", `\`, `\x41`, strings.Repeat("ä", 127), "a\nb"}
		tx, err := db.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		for _, encoding := range []string{"UTF8", "LATIN1"} {
			for _, key := range keys {
				sent := key
				if encoding == "LATIN1" {
					b := []byte{}
					for _, r := range key {
						b = append(b, byte(r))
					}
					sent = string(b)
				}
				// A simple query, in which the client's bytes are the statement's.
				quoted := "'" + strings.ReplaceAll(sent, "'", "''") + "'"
				for _, statement := range []string{"SET LOCAL client_encoding = " + encoding, "SELECT waybill_dispatch('x', " + quoted + ", '{}', '')", "SET LOCAL client_encoding = UTF8"} {
					if _, err := tx.Conn().PgConn().Exec(t.Context(), statement).ReadAll(); err != nil {
						t.Fatalf("%s %q: %v", encoding, key, err)
					}
				}
				var bucket int
				var got string
				if err := tx.QueryRow(t.Context(), "SELECT bucket, partition_key FROM waybill_outbox ORDER BY id DESC LIMIT 1").Scan(&bucket, &got); err != nil {
					t.Fatal(err)
				}
				if bucket != outbox.Bucket(key, 64) || got != key {
					t.Errorf("%s: key %q is %q in bucket %d, want %d", encoding, key, got, bucket, outbox.Bucket(key, 64))
				}
			}
		}
	})
}

// SQL and Go take the same lock.
func TestWaybillDispatchTakesTurnsWithGo(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{Schema: "My-App", Prefix: "msg_"})
		out := newOutbox(t, db, outbox.Config{})
		for _, call := range []string{
			`SELECT "My-App".msg_dispatch('order.placed', 'k', '{}', '{"key":"k","seq":0}')`,
			`SELECT "My-App".msg_dispatch_all(ARRAY['order.placed'], ARRAY['k'], ARRAY['{}'::jsonb], ARRAY['{"key":"k","seq":0}'::bytea])`,
		} {
			tx, err := db.Pool().Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), call); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				done <- out.InTx(context.Background(), func(ctx context.Context, tx waypg.Tx) error {
					_, err := tx.Dispatch(ctx, order{"k", 1})
					return err
				})
			}()
			await(t, "Go waits for SQL", 60*time.Second, func() bool {
				return count(t, db, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == 1
			})
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			sink := &recorder{}
			drain(t, db, sink, outbox.RelayConfig{})
			if diff := cmp.Diff([]order{{"k", 0}, {"k", 1}}, sink.got); diff != "" {
				t.Errorf("order (-want +got):\n%s", diff)
			}
		}
	})
}

func TestWaybillDispatchAllDoesNotDeadlock(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		newOutbox(t, db, outbox.Config{})
		keys := otherBuckets(5)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range 50 {
					names, k, hs, bodies := make([]string, 5), make([]string, 5), make([]string, 5), make([][]byte, 5)
					for i, n := range rand.Perm(5) {
						names[i], k[i], hs[i], bodies[i] = "x", keys[n], "{}", []byte{}
					}
					if _, err := db.Pool().Exec(context.Background(), "SELECT waybill_dispatch_all($1::text[], $2::text[], $3::text[]::jsonb[], $4::bytea[])", names, k, hs, bodies); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
	})
}

func TestWaybillDispatchRefusesWithAHint(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		none := refusal(t, db, "SELECT waybill_dispatch('x', '', '{}', '')")
		if !strings.Contains(none.Hint, "schema up") {
			t.Errorf("without transports: %q, hint %q", none.Message, none.Hint)
		}
		if _, err := outbox.New(db, outbox.Config{To: "a", Transports: []string{"b"}}); err != nil {
			t.Fatal(err)
		}
		for call, want := range map[string]string{
			"waybill_dispatch('x', '', '{}', '')":              "there are several",
			"waybill_dispatch('x', '', '{}', '', 'c')":         "unknown transport 'c'",
			"waybill_dispatch('x', NULL, '{}', '', 'a')":       "must not be NULL",
			"waybill_dispatch('x', '', NULL, '', 'a')":         "must not be NULL",
			"waybill_dispatch('x', '', '[]', '', 'a')":         "must be an object",
			"waybill_dispatch('x', '', '{\"n\": 1}', '', 'a')": "must be strings",
			"waybill_dispatch('x', '', '{}', NULL, 'a')":       "must not be NULL",
			"waybill_dispatch('x', '', '{}', '{bad', 'a')":     "the body of x is not JSON: invalid input syntax for type json",
			"waybill_dispatch('x', '', '{}', '\\xff', 'a')":    "the body of x is not JSON: invalid byte sequence",
			"waybill_dispatch_all(ARRAY['x', 'y'], ARRAY['', ''], ARRAY['{}', '{}']::jsonb[], ARRAY['{}', '{'::bytea], 'a')": "the body of y is not JSON",
			"waybill_dispatch(NULL, '', '{}', '', 'a')":                                                                         "is not a message name",
			"waybill_dispatch('a b', '', '{}', '', 'a')":                                                                        "is not a message name",
			"waybill_dispatch('', '', '{}', '', 'a')":                                                                           "is not a message name",
			"waybill_dispatch(repeat('x', 191), '', '{}', '', 'a')":                                                             "is not a message name",
			"waybill_dispatch('x', repeat('ä', 128), '{}', '', 'a')":                                                            "256 bytes",
			"waybill_dispatch('x', '', jsonb_build_object('h', repeat('x', 65536)), '', 'a')":                                   "65536",
			"waybill_dispatch_all(ARRAY['x'], ARRAY['a', 'b'], ARRAY['{}'::jsonb], ARRAY[''::bytea], 'a')":                      "different lengths",
			"waybill_dispatch_all(NULL, ARRAY['a', 'b'], ARRAY['{}'::jsonb], ARRAY[''::bytea], 'a')":                            "NULL",
			"waybill_dispatch_all(ARRAY['x', 'y z'], ARRAY['a', 'b'], ARRAY['{}', '{}']::jsonb[], ARRAY['', '']::bytea[], 'a')": "is not a message name",
		} {
			if got := refusal(t, db, "SELECT "+call); !strings.Contains(got.Message, want) || got.Code != "22023" {
				t.Errorf("%s: %s %q, want %q", call, got.Code, got.Message, want)
			}
		}
		if n := count(t, db, "SELECT count(*) FROM waybill_outbox"); n != 0 {
			t.Errorf("%d messages were dispatched", n)
		}
		exec(t, db, "SELECT waybill_dispatch('Order_Placed-2', 'k', '{}', '', 'b'), waybill_dispatch('text', 'k', '{\"content-type\": \"text/plain\"}', '{bad', 'b'), waybill_dispatch_all('{}', '{}', '{}', '{}', 'b')")
		if n := len(claimAll(t, db, "b")); n != 2 {
			t.Errorf("b has %d messages, want 2", n)
		}
	})
}

func TestWaybillDispatchKnowsTheHeadersThatDispatchRefuses(t *testing.T) {
	db := open(t, testserver.Postgres, waypg.Config{})
	newOutbox(t, db, outbox.Config{})
	waytest.Headers(t, func(name, value string) error {
		_, err := db.Pool().Exec(t.Context(), "SELECT waybill_dispatch('x', 'k', $1, '')", map[string]string{name: value})
		return err
	})
}

func TestWaybillDispatchWithADelayWaits(t *testing.T) {
	db := open(t, testserver.Postgres, waypg.Config{})
	newOutbox(t, db, outbox.Config{})
	exec(t, db, `SELECT waybill_dispatch('x', 'k', '{}', '{"key":"k","seq":2}', delay => interval '1 hour')`)
	exec(t, db, `SELECT waybill_dispatch_all(ARRAY['x', 'x'], ARRAY['k', ''], ARRAY['{}', '{}']::jsonb[], ARRAY['{"key":"k","seq":1}', '{"key":"","seq":3}']::bytea[], delay => interval '1 microsecond')`)
	exec(t, db, `SELECT waybill_dispatch('x', 'k', '{}', '{"key":"k","seq":0}', delay => interval '0')`)
	if n := count(t, db, "SELECT count(*) FROM waybill_delayed WHERE due_at > clock_timestamp() + interval '59 minutes'"); n != 1 {
		t.Errorf("%d messages wait for an hour, want 1", n)
	}
	if n := count(t, db, "SELECT count(*) FROM waybill_delayed"); n != 3 {
		t.Errorf("%d messages wait, want 3", n)
	}
	sink := &recorder{}
	drain(t, db, sink, outbox.RelayConfig{})
	if diff := cmp.Diff(map[string]int{"k": 2, "": 1}, perKey(t, sink.got)); diff != "" {
		t.Errorf("relayed (-want +got):\n%s", diff)
	}
	for _, delay := range []string{"-1 ms", "101 years"} {
		if got := refusal(t, db, "SELECT waybill_dispatch('x', 'k', '{}', '', delay => '"+delay+"')"); !strings.Contains(got.Message, "allowed are 0 to 100 years") {
			t.Errorf("delay %s: %q", delay, got.Message)
		}
	}
}

func refusal(t testing.TB, db *waypg.DB, statement string) *pgconn.PgError {
	t.Helper()
	var refused *pgconn.PgError
	if _, err := db.Pool().Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol); !errors.As(err, &refused) {
		t.Fatalf("%s = %v, want an error of the server", statement, err)
	}
	return refused
}

func TestDocumentedCallsAreRelayed(t *testing.T) {
	doc, err := os.ReadFile("../docs/schema.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, _ := strings.Cut(string(doc), "## PostgreSQL")
	_, block, ok := strings.Cut(part, "```sql\n")
	block, _, end := strings.Cut(block, "```")
	if !ok || !end {
		t.Fatal("docs/schema.md has no block of SQL for PostgreSQL")
	}
	db := open(t, testserver.Postgres, waypg.Config{})
	if err := db.AddTransports(t.Context(), "events"); err != nil {
		t.Fatal(err)
	}
	conn, err := db.Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Conn().PgConn().Exec(t.Context(), block).ReadAll()
	conn.Release()
	if err != nil {
		t.Fatal(err)
	}
	sink := &recorder{}
	drain(t, db, sink, outbox.RelayConfig{Transport: "events"})
	if len(sink.got) != 4 {
		t.Errorf("%d messages arrived, want 4", len(sink.got))
	}
}
