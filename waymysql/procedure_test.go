package waymysql_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	osexec "os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
	"github.com/waybill-go/waybill/waytest"
)

// A message as waybill_dispatch_all takes it.
type message struct {
	Name    string            `json:"name"`
	Key     string            `json:"key"`
	Headers map[string]string `json:"headers"`
	Body    []byte            `json:"body"` // base64
}

func messages(t testing.TB, all ...message) string {
	t.Helper()
	for i := range all {
		if all[i].Headers == nil {
			all[i].Headers = map[string]string{}
		}
		if all[i].Body == nil {
			all[i].Body = []byte{}
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// call returns the ids that a procedure answers with.
func call(t testing.TB, db *waymysql.DB, statement string, args ...any) (ids []string) {
	t.Helper()
	rows, err := db.Pool().QueryContext(context.Background(), statement, args...)
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return ids
}

func TestProceduresDispatchLikeGo(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	out := newOutbox(t, db, outbox.Config{})
	given := map[string]bool{}
	note := func(ids ...string) {
		for _, id := range ids {
			given[id] = true
		}
	}
	note(call(t, db, `CALL waybill_dispatch('order.placed', 'k', '{"tenant": "acme ä"}', '{"key":"k","seq":0}')`)...)
	if err := send(out, order{"k", 1}); err != nil {
		t.Fatal(err)
	}
	note(call(t, db, `CALL waybill_dispatch_to('default', 'order.placed', 'k', '{}', '{"key":"k","seq":2}')`)...)
	note(call(t, db, "CALL waybill_dispatch_all(NULL, ?)", messages(t,
		message{Name: "order.placed", Key: "k", Body: []byte(`{"key":"k","seq":3}`)},
		message{Name: "order.placed", Key: "", Body: []byte(`{"key":"","seq":0}`)},
		message{Name: "order.placed", Key: "l", Headers: map[string]string{"tenant": "acme ä"}, Body: []byte(`{"key":"l","seq":0}`)}))...)
	exec(t, db, `SET @id = NULL`)
	conn, err := db.Pool().Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var id string
	_, err = conn.ExecContext(t.Context(), `CALL waybill_insert(NULL, 'order.placed', 'k', '{}', '{"key":"k","seq":4}', NULL, @id)`)
	if err := errors.Join(err, conn.QueryRowContext(t.Context(), "SELECT @id").Scan(&id), conn.Close()); err != nil {
		t.Fatal(err)
	}
	note(id)
	if err := send(out, order{"k", 5}); err != nil {
		t.Fatal(err)
	}

	sink := &recorder{}
	drain(t, db, sink, outbox.RelayConfig{})
	if diff := cmp.Diff(map[string]int{"k": 6, "l": 1, "": 1}, perKey(t, sink.got)); diff != "" {
		t.Errorf("came (-want +got):\n%s", diff)
	}
	seen := 0
	for _, rec := range sink.recs {
		id := rec.ID.String()
		if given[id] {
			seen++
		}
		if id[14] != '7' || strings.IndexByte("89ab", id[19]) < 0 {
			t.Errorf("id %s, want a UUID of version 7", id)
		}
		ms := int64(rec.ID[0])<<40 | int64(rec.ID[1])<<32 | int64(rec.ID[2])<<24 | int64(rec.ID[3])<<16 | int64(rec.ID[4])<<8 | int64(rec.ID[5])
		if at := time.UnixMilli(ms); time.Since(at).Abs() > time.Minute || time.Since(rec.DispatchedAt).Abs() > time.Minute {
			t.Errorf("id %s is of %v, dispatched at %v", id, at, rec.DispatchedAt)
		}
		if o := bodyOf(rec); (o == order{"k", 0} || o == order{"l", 0}) && rec.Headers["tenant"] != "acme ä" {
			t.Errorf("headers of %v: %v", o, rec.Headers)
		}
	}
	if seen != 6 || len(given) != 6 {
		t.Errorf("%d of %d ids that the procedures returned came, want 6", seen, len(given))
	}
}

func TestProceduresMakeIDsThatDiffer(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	newOutbox(t, db, outbox.Config{})
	const n = 2000
	ids := call(t, db, "CALL waybill_dispatch_all(NULL, ?)", messages(t, slices.Repeat([]message{{Name: "x"}}, n)...))
	differ := map[string]bool{}
	for _, id := range ids {
		differ[id] = true
	}
	if len(differ) != n {
		t.Errorf("%d ids differ, want %d", len(differ), n)
	}
}

// strange are keys that a collation, a pattern or a client might take for
// something else.
var strange = []string{"a", "A", "a ", " ", "  ", "ä", "a\u0308", "é", "ÿ", "'", `\`, `\x41`, strings.Repeat("ä", 127), "a\nb", "\n", "\x01", "\t", "null", "0", "%", "_"}

// inLatin1 encodes a key for a latin1 session, if its characters are in latin1.
func inLatin1(key string) ([]byte, bool) {
	var b []byte
	for _, r := range key {
		if r > 0xff {
			return nil, false
		}
		b = append(b, byte(r))
	}
	return b, true
}

func TestProceduresKnowTheBucketOfEveryKey(t *testing.T) {
	t.Parallel()
	db, dsn := newDB(t, waymysql.Config{})
	newOutbox(t, db, outbox.Config{})
	check := func(how, key string) {
		t.Helper()
		var bucket int
		var got []byte
		if err := db.Pool().QueryRowContext(t.Context(), "SELECT bucket, partition_key FROM waybill_outbox ORDER BY id DESC LIMIT 1").Scan(&bucket, &got); err != nil {
			t.Fatal(err)
		}
		if bucket != outbox.Bucket(key, 64) || string(got) != key {
			t.Errorf("%s: key %q is %q in bucket %d, want %d", how, key, got, bucket, outbox.Bucket(key, 64))
		}
	}
	conn, err := pool(t, dsn).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The client's bytes are the statement's.
	run := func(statement string) {
		t.Helper()
		if _, err := conn.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%q: %v", statement, err)
		}
	}
	quote := func(b []byte) string {
		return "'" + strings.NewReplacer("'", "''", `\`, `\\`).Replace(string(b)) + "'"
	}
	for _, charset := range []string{"utf8mb4", "latin1"} {
		run("SET NAMES " + charset)
		for _, key := range append(strange, "😀", "ключ") {
			sent := []byte(key)
			if charset == "latin1" {
				b, ok := inLatin1(key)
				if !ok {
					continue
				}
				sent = b
			}
			run("CALL waybill_dispatch('x', " + quote(sent) + ", '{}', '')")
			check("SET NAMES "+charset, key)
		}
	}
	// Parameters of a driver whose sessions are latin1, interpolated and prepared.
	for _, interpolate := range []string{"true", "false"} {
		latin := pool(t, dsn+"?charset=latin1&interpolateParams="+interpolate)
		for _, key := range strange {
			if b, ok := inLatin1(key); ok {
				if _, err := latin.ExecContext(t.Context(), "CALL waybill_dispatch('x', ?, '{}', '')", string(b)); err != nil {
					t.Fatalf("%q: %v", key, err)
				}
				check("charset=latin1, interpolateParams="+interpolate, key)
			}
		}
	}
	for _, key := range append(strange, "😀", `"`, "\u2028") {
		call(t, db, "CALL waybill_dispatch_all(NULL, ?)", messages(t, message{Name: "x", Key: key}))
		check("waybill_dispatch_all", key)
	}
	// As json_encode of PHP and json.dumps of Python write it.
	call(t, db, "CALL waybill_dispatch_all(NULL, ?)", `[{"name":"x","key":"za\u017c\u00f3\u0142\u0107 \ud83d\ude00 \/ \" \\","headers":{"h":"\ud83d\ude00"},"body":""}]`)
	check("escaped", `zażółć 😀 / " \`)
}

// SQL and Go take the same lock. Without a transaction, the statement that gives
// the id takes it.
func TestProceduresTakeTurnsWithGo(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{Prefix: "msg_"})
	out := newOutbox(t, db, outbox.Config{})
	calls := []string{
		`CALL msg_dispatch('order.placed', 'k', '{}', '{"key":"k","seq":%d}')`,
		`CALL msg_dispatch_to('default', 'order.placed', 'k', '{}', '{"key":"k","seq":%d}')`,
		`CALL msg_dispatch_all('default', JSON_ARRAY(JSON_OBJECT('name', 'order.placed', 'key', 'k', 'headers', JSON_OBJECT(), 'body', TO_BASE64('{"key":"k","seq":%d}'))))`,
		`CALL msg_insert(NULL, 'order.placed', 'k', '{}', '{"key":"k","seq":%d}', NULL, @id)`,
	}
	for _, statement := range calls {
		tx := begin(t, db.Pool())
		if _, err := tx.ExecContext(t.Context(), fmt.Sprintf(statement, 0)); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 2)
		go func() { done <- send(out, order{"k", 1}) }()
		await(t, "Go waits for SQL", 60*time.Second, func() bool { return waiting(t, db) == 1 })
		commit(t, tx)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		// And SQL in autocommit mode for Go.
		own := begin(t, db.Pool())
		if _, err := out.Dispatch(t.Context(), own, order{"k", 2}); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := db.Pool().ExecContext(context.Background(), fmt.Sprintf(statement, 3))
			done <- err
		}()
		await(t, "SQL waits for Go", 60*time.Second, func() bool { return waiting(t, db) == 1 })
		commit(t, own)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]order{{"k", 0}, {"k", 1}, {"k", 2}, {"k", 3}}, drained(t, db)); diff != "" {
			t.Errorf("%s: order (-want +got):\n%s", statement, diff)
		}
	}
}

// In autocommit mode the gate is locked from before the id is assigned until the
// commit: a program that numbers its messages under its own lock, and calls
// without a transaction, keeps their order beside transactions that commit late.
func TestProceduresKeepTheirOrderWithoutATransaction(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	out := newOutbox(t, db, outbox.Config{})
	exec(t, db, "CREATE TRIGGER linger AFTER INSERT ON waybill_outbox FOR EACH ROW DO SLEEP(RAND() * 0.004)")
	sink := &recorder{}
	relaying(t, db, sink, outbox.RelayConfig{})
	keys := sameBucket(3)
	const each = 40
	var all sync.WaitGroup
	for _, key := range keys {
		all.Go(func() {
			for seq := range each {
				var err error
				switch seq % 3 {
				case 0:
					_, err = db.Pool().ExecContext(context.Background(), "CALL waybill_dispatch('order.placed', ?, '{}', ?)", key, fmt.Sprintf(`{"key":%q,"seq":%d}`, key, seq))
				case 1:
					_, err = db.Pool().ExecContext(context.Background(), "CALL waybill_dispatch_all(NULL, ?)",
						messages(t, message{Name: "order.placed", Key: key, Body: fmt.Appendf(nil, `{"key":%q,"seq":%d}`, key, seq)}))
				case 2:
					err = send(out, order{key, seq})
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	await(t, "all come", 60*time.Second, func() bool { return len(sink.all()) >= len(keys)*each })
	for key, n := range perKey(t, sink.all()) {
		if n != each {
			t.Errorf("key %s: %d came, want %d", key, n, each)
		}
	}
}

func TestDispatchAllDoesNotDeadlock(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	out := newOutbox(t, db, outbox.Config{})
	keys := otherBuckets(5)
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			for range 25 {
				var batch []message
				var msgs []any
				for _, n := range rand.Perm(len(keys)) {
					batch = append(batch, message{Name: "x", Key: keys[n]})
					msgs = append(msgs, order{keys[n], 0})
				}
				var err error
				if i < 4 { // beside units of work in Go
					tx := begin(t, db.Pool())
					if _, err = tx.ExecContext(context.Background(), "CALL waybill_dispatch_all(NULL, ?)", messages(t, batch...)); err == nil {
						err = tx.Commit()
					}
				} else {
					err = send(out, msgs...)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if n := count(t, db, "SELECT COUNT(*) FROM waybill_outbox WHERE id > 0"); n != 6*25*5 {
		t.Errorf("%d messages, want %d", n, 6*25*5)
	}
}

func TestProceduresRefuseWithAReason(t *testing.T) {
	t.Parallel()
	db, dsn := newDB(t, waymysql.Config{})
	refused := func(statement, want string) {
		t.Helper()
		var server *mysql.MySQLError
		if _, err := db.Pool().ExecContext(t.Context(), statement); !errors.As(err, &server) || string(server.SQLState[:]) != "45000" || !strings.Contains(server.Message, want) {
			t.Errorf("%.100s = %v, want %q", statement, err, want)
		}
	}
	refused("CALL waybill_dispatch('x', '', '{}', '')", "unknown transport")
	if _, err := outbox.New(db, outbox.Config{To: "a", Transports: []string{"b"}}); err != nil {
		t.Fatal(err)
	}
	all := func(fields string) string {
		return "CALL waybill_dispatch_all('a', '[{\"name\": \"x\", \"key\": \"k\", \"headers\": {}, \"body\": \"\"}, {" + fields + "}]')"
	}
	null := "must not be NULL" // JSON_TABLE of MySQL has NULL for null
	if isMariaDB(t, dsn) {
		null = "must be a JSON object"
	}
	for statement, want := range map[string]string{
		"CALL waybill_dispatch('x', '', '{}', '')":                                                        "there are several",
		"CALL waybill_dispatch_all(NULL, '[{\"name\":\"x\",\"key\":\"\",\"headers\":{},\"body\":\"\"}]')": "there are several",
		"CALL waybill_dispatch_to('c', 'x', '', '{}', '')":                                                "unknown transport c",
		"CALL waybill_dispatch_to('A', 'x', '', '{}', '')":                                                "unknown transport A",
		"CALL waybill_dispatch_to('a ', 'x', '', '{}', '')":                                               "unknown transport a ",
		"CALL waybill_dispatch_to(REPEAT('ä', 300), 'x', '', '{}', '')":                                   "unknown transport ä",
		"CALL waybill_dispatch_to('a', 'x', NULL, '{}', '')":                                              "must not be NULL",
		"CALL waybill_dispatch_to('a', 'x', '', NULL, '')":                                                "must not be NULL",
		"CALL waybill_dispatch_to('a', 'x', '', '{}', NULL)":                                              "must not be NULL",
		"CALL waybill_dispatch_to('a', 'x', '', '[]', '')":                                                "must be a JSON object",
		"CALL waybill_dispatch_to('a', 'x', '', 'x', '')":                                                 "must be a JSON object",
		"CALL waybill_dispatch_to('a', 'x', '', '', '')":                                                  "must be a JSON object",
		"CALL waybill_dispatch_to('a', 'x', '', 'null', '')":                                              "must be a JSON object",
		"CALL waybill_dispatch_to('a', 'x', '', '{\"n\": 1}', '')":                                        "must be strings",
		"CALL waybill_dispatch_to('a', 'x', '', '{\"a\": \"b\", \"n\": null}', '')":                       "must be strings",
		"CALL waybill_dispatch_to('a', 'x', '', '{\"n\": [\"b\"]}', '')":                                  "must be strings",
		"CALL waybill_dispatch_to('a', 'x', '', '{\"n\": {\"a\": \"b\"}}', '')":                           "must be strings",
		"CALL waybill_dispatch_to('a', 'x', '', '{\"n\": true}', '')":                                     "must be strings",
		"CALL waybill_dispatch_to('a', 'x', '', JSON_OBJECT('h', REPEAT('x', 65536)), '')":                "allowed are 65536",
		"CALL waybill_dispatch_to('a', NULL, '', '{}', '')":                                               "is not a message name",
		"CALL waybill_dispatch_to('a', '', '', '{}', '')":                                                 "is not a message name",
		"CALL waybill_dispatch_to('a', 'a b', '', '{}', '')":                                              "is not a message name",
		"CALL waybill_dispatch_to('a', 'x\n', '', '{}', '')":                                              "is not a message name",
		"CALL waybill_dispatch_to('a', 'bäck', '', '{}', '')":                                             "is not a message name",
		"CALL waybill_dispatch_to('a', 'ſ', '', '{}', '')":                                                "is not a message name", // the same letter as s, to some
		"CALL waybill_dispatch_to('a', REPEAT('x', 191), '', '{}', '')":                                   "is not a message name",
		"CALL waybill_dispatch_to('a', REPEAT('ä', 300), '', '{}', '')":                                   "is not a message name",
		"CALL waybill_dispatch_to('a', 'x', REPEAT('ä', 128), '{}', '')":                                  "256 bytes",
		"CALL waybill_dispatch_to('a', 'x', REPEAT('x', 256), '{}', '')":                                  "256 bytes",
		"CALL waybill_dispatch_later('a', 'x', '', '{}', '', -1)":                                         "allowed are 0 to 100 years",
		"CALL waybill_dispatch_later('a', 'x', '', '{}', '', 3153600000001)":                              "allowed are 0 to 100 years",
		"CALL waybill_dispatch_to('a', 'x', 'a\\0b', '{}', '')":                                           "NUL",
		"CALL waybill_dispatch_to('a', 'x', '', '{}', '{bad')":                                            "the body of x is not JSON",
		"CALL waybill_dispatch_to('a', REPEAT('x', 190), '', '{}', '{bad')":                               "is not JSON, or nested too deep; name another kind in the header content-type",
		all(`"name": "y", "key": "k", "headers": {}, "body": "e2JhZA=="`):                                 "the body of y is not JSON",
		"CALL waybill_dispatch_all('a', NULL)":                                                            "must be a JSON array",
		"CALL waybill_dispatch_all('a', '')":                                                              "must be a JSON array",
		"CALL waybill_dispatch_all('a', '{}')":                                                            "must be a JSON array",
		"CALL waybill_dispatch_all('a', '[')":                                                             "must be a JSON array",
		"CALL waybill_dispatch_all('a', '[1]')":                                                           "message 1 of the array",
		all(`"key": "k", "headers": {}, "body": ""`):                                                      "message 2 of the array",
		all(`"name": "x", "headers": {}, "body": ""`):                                                     "message 2 of the array",
		all(`"name": "x", "key": "k", "headers": {}`):                                                     "message 2 of the array",
		all(`"name": null, "key": "k", "headers": {}, "body": ""`):                                        "message 2 of the array",
		all(`"name": "x", "key": null, "headers": {}, "body": ""`):                                        "message 2 of the array",
		all(`"name": "x", "key": 7, "headers": {}, "body": ""`):                                           "message 2 of the array",
		all(`"name": "x", "key": "k", "headers": {}, "body": null`):                                       "message 2 of the array",
		all(`"name": "x", "key": "k", "headers": {}, "body": {"a": 1}`):                                   "message 2 of the array",
		all(`"name": "x", "key": "k", "body": ""`):                                                        "must not be NULL",
		all(`"name": "x", "key": "k", "headers": null, "body": ""`):                                       null,
		all(`"name": "x", "key": "k", "headers": {"n": 1}, "body": ""`):                                   "must be strings",
		all(`"name": "y z", "key": "k", "headers": {}, "body": ""`):                                       "is not a message name",
	} {
		tx := begin(t, db.Pool()) // autocommit would keep the messages before the refused one
		var server *mysql.MySQLError
		if _, err := tx.ExecContext(t.Context(), statement); !errors.As(err, &server) || string(server.SQLState[:]) != "45000" || !strings.Contains(server.Message, want) {
			t.Errorf("%.100s = %v, want %q", statement, err, want)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Pool().ExecContext(t.Context(), `CALL waybill_dispatch_all('a', '[{"name":"x","key":"","headers":{},"body":"!"}]')`); err == nil || !strings.Contains(err.Error(), "base64") && !strings.Contains(err.Error(), "NULL") {
		t.Errorf("a body that is no base64 = %v", err)
	}
	if n := count(t, db, "SELECT COUNT(*) FROM waybill_outbox WHERE id > 0"); n != 0 {
		t.Errorf("%d messages were dispatched", n)
	}
	// Valid calls, at the limits.
	exec(t, db, `CALL waybill_dispatch_to('b', 'text', 'k', '{"content-type": "text/plain"}', '{bad')`)
	exec(t, db, "CALL waybill_dispatch_to('b', CONCAT('Order_Placed-2.', REPEAT('x', 175)), REPEAT('x', 255), JSON_OBJECT('h', REPEAT('x', 65000)), '')")
	exec(t, db, "CALL waybill_dispatch_all('b', '[]')")
	c, err := db.Claim(t.Context(), "b", outbox.Keyed, manyRows)
	if err != nil || len(c.Rows()) != 2 {
		t.Fatalf("Claim = %v, want two rows", err)
	}
	settle(t, c, c.Rows())
}

func TestProceduresKnowTheHeadersThatDispatchRefuses(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	newOutbox(t, db, outbox.Config{})
	waytest.Headers(t, func(name, value string) error {
		headers, err := json.Marshal(map[string]string{name: value})
		if err != nil {
			t.Fatal(err)
		}
		_, err = db.Pool().ExecContext(t.Context(), "CALL waybill_dispatch('x', 'k', ?, '')", headers)
		return err
	})
}

func TestProceduresWithADelayWait(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	newOutbox(t, db, outbox.Config{})
	for body, delay := range []string{"3600000", "1", "0", "NULL"} {
		call(t, db, fmt.Sprintf("CALL waybill_dispatch_later('default', 'x', 'k', '{}', '%d', %s)", body, delay))
	}
	if n := count(t, db, "SELECT COUNT(*) FROM waybill_delayed WHERE due_at > UTC_TIMESTAMP(6) + INTERVAL 59 MINUTE"); n != 1 {
		t.Errorf("%d messages wait for an hour, want 1", n)
	}
	if n := count(t, db, "SELECT COUNT(*) FROM waybill_delayed"); n != 2 {
		t.Errorf("%d messages wait, want 2", n)
	}
	await(t, "one is due", 10*time.Second, func() bool {
		return count(t, db, "SELECT COUNT(*) FROM waybill_delayed WHERE due_at <= UTC_TIMESTAMP(6)") == 1
	})
	sink := &recorder{}
	drain(t, db, sink, outbox.RelayConfig{})
	var got []string
	for _, rec := range sink.recs {
		got = append(got, rec.Key+string(rec.Body))
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"k1", "k2", "k3"}, got); diff != "" {
		t.Errorf("relayed (-want +got):\n%s", diff)
	}
}

// Bodies are bytes, also if they are no text in any character set.
func TestProceduresLeaveBodiesAsTheyAre(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	newOutbox(t, db, outbox.Config{})
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	bodies := [][]byte{{}, every, []byte(`{"a": "\u00e4 \\ ' \" 😀"}`), bytes.Repeat(every, 8<<10)} // 2 MiB
	binary := map[string]string{"content-type": "application/octet-stream"}
	for _, body := range bodies {
		call(t, db, `CALL waybill_dispatch('x', 'k', '{"content-type": "application/octet-stream"}', ?)`, body)
		call(t, db, "CALL waybill_dispatch_all(NULL, ?)", messages(t, message{Name: "x", Key: "k", Headers: binary, Body: body}))
		// Lines of 76, as some encoders have it.
		lines := base64.StdEncoding.EncodeToString(body[:min(len(body), 1000)])
		for i := 76; i < len(lines); i += 77 {
			lines = lines[:i] + "\n" + lines[i:]
		}
		text, err := json.Marshal([]map[string]any{{"name": "x", "key": "k", "headers": binary, "body": lines}})
		if err != nil {
			t.Fatal(err)
		}
		call(t, db, "CALL waybill_dispatch_all(NULL, ?)", string(text))
		sink := &recorder{}
		drain(t, db, sink, outbox.RelayConfig{})
		if len(sink.recs) != 3 || !bytes.Equal(sink.recs[0].Body, body) || !bytes.Equal(sink.recs[1].Body, body) || !bytes.Equal(sink.recs[2].Body, body[:min(len(body), 1000)]) {
			t.Errorf("a body of %d bytes has changed, or %d messages came, want 3", len(body), len(sink.recs))
		}
	}
}

// The calls printed in docs/schema.md work.
func TestDocumentedCallsAreRelayed(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/schema.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, _ := strings.Cut(string(doc), "## MySQL and MariaDB")
	part, _, _ = strings.Cut(part, "\n## ")
	address := testserver.MariaDB(t)
	db := open(t, driverDSN(t, address), waymysql.Config{})
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := db.AddTransports(t.Context(), "events"); err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for {
		_, rest, ok := strings.Cut(part, "```sql\n")
		if !ok {
			break
		}
		block, rest, _ := strings.Cut(rest, "```")
		part = rest
		blocks++
		cmd := client(t, address, "--default-character-set=utf8mb4")
		cmd.Stdin = strings.NewReader(block)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("mariadb: %v\n%s\n%s", err, out, block)
		}
	}
	sink := &recorder{}
	drain(t, db, sink, outbox.RelayConfig{Transport: "events"})
	if blocks != 2 || len(sink.recs) != 6 {
		t.Errorf("%d messages arrived of %d blocks of SQL, want 6 of 2", len(sink.recs), blocks)
	}
	for _, rec := range sink.recs {
		if got := count(t, db, "SELECT COUNT(*) FROM waybill_outbox WHERE id > 0"); rec.Problem != nil || rec.ID == (waybill.MessageID{}) || got != 0 {
			t.Errorf("%+v has the problem %v; %d rows are left", rec, rec.Problem, got)
		}
	}
}

// restored returns a database with an outbox, and one with a copy of it by mariadb-dump.
func restored(t *testing.T, args ...string) (live, copied *waymysql.DB) {
	t.Helper()
	address := testserver.MariaDB(t)
	needsMariaDB(t, driverDSN(t, address), "mariadb-dump is MariaDB's")
	live = open(t, driverDSN(t, address), waymysql.Config{})
	if _, err := live.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	newOutbox(t, live, outbox.Config{})
	from, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	dump := osexec.Command("mariadb-dump", append([]string{"--no-defaults", "--protocol=tcp", "--single-transaction",
		"--host=" + from.Hostname(), "--port=" + from.Port(), "--user=" + from.User.Username(), from.Path[1:]}, args...)...)
	if password, ok := from.User.Password(); ok {
		dump.Env = append(dump.Environ(), "MYSQL_PWD="+password)
	}
	text, err := dump.Output()
	if err != nil {
		t.Fatal(err)
	}
	to := testserver.MariaDB(t)
	load := client(t, to)
	load.Stdin = bytes.NewReader(text)
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("mariadb: %v\n%s", err, out)
	}
	return live, open(t, driverDSN(t, to), waymysql.Config{})
}

// A dump that is restored under another name, as for a test system beside the live one, has
// procedures that write to its tables, and not to those of the database that was dumped.
func TestProceduresOfARestoredDumpWriteToTheirDatabase(t *testing.T) {
	t.Parallel()
	live, copied := restored(t, "--routines")
	call(t, copied, `CALL waybill_dispatch('order.placed', 'k', '{}', '{"key":"k","seq":0}')`)
	call(t, copied, `CALL waybill_dispatch('order.placed', '', '{}', '{"key":"","seq":0}')`)
	call(t, copied, "CALL waybill_dispatch_all(NULL, ?)", messages(t, message{Name: "order.placed", Key: "k", Body: []byte(`{"key":"k","seq":1}`)}))
	const rows = "SELECT (SELECT COUNT(*) FROM waybill_outbox WHERE id > 0) + (SELECT COUNT(*) FROM waybill_outbox_unkeyed WHERE id > 0)"
	if here, there := count(t, copied, rows), count(t, live, rows); here != 3 || there != 0 {
		t.Errorf("the copy has %d messages, and the live database %d, want 3 and 0", here, there)
	}
}

// mariadb-dump leaves procedures out, unless it is told otherwise.
func TestSchemaUpMakesProceduresThatADumpLeftOut(t *testing.T) {
	t.Parallel()
	_, copied := restored(t)
	for range 2 {
		if status, err := copied.SchemaUp(t.Context()); err != nil || len(status.Applied) > 0 {
			t.Fatalf("SchemaUp = %+v, %v, want no migration", status, err)
		}
	}
	call(t, copied, "CALL waybill_dispatch_all(NULL, ?)", messages(t, message{Name: "order.placed", Key: "k", Body: []byte(`{"key":"k","seq":0}`)}))
}
