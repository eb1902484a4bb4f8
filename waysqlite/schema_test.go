package waysqlite_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

func TestSchemaUpMayBeRepeated(t *testing.T) {
	db, err := waysqlite.Open(t.Context(), filepath.Join(t.TempDir(), "w.db"), waysqlite.Config{Prefix: "msg_"})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	first, err := db.SchemaUp(t.Context())
	if err != nil || len(first.Applied) == 0 || first.Version != first.Wanted {
		t.Fatalf("SchemaUp = %+v, %v", first, err)
	}
	second, err := db.SchemaUp(t.Context())
	if err != nil || len(second.Applied) != 0 || len(second.Pending) != 0 || second.Version != first.Version {
		t.Errorf("SchemaUp again = %+v, %v", second, err)
	}
	if n := count(t, db, "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'waybill%'"); n != 0 {
		t.Errorf("%d objects ignore the prefix", n)
	}
	dispatch(t, db, outbox.Config{}, order{"k", 0})
	if n := count(t, db, "SELECT count(*) FROM msg_outbox"); n != 1 {
		t.Errorf("%d rows in msg_outbox", n)
	}
}

func TestPrintedSchemaIsTheSchema(t *testing.T) {
	up := open(t, waysqlite.Config{})
	text, err := up.SchemaSQL()
	if err != nil {
		t.Fatal(err)
	}
	printed, err := waysqlite.Open(t.Context(), filepath.Join(t.TempDir(), "w.db"), waysqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer printed.Close()
	if _, err := printed.SQL().Exec(text); err != nil {
		t.Fatal(err)
	}
	if status, err := printed.SchemaStatus(t.Context()); err != nil || status.Err() != nil {
		t.Errorf("status after the printed statements: %+v, %v", status, err)
	}
	const objects = "SELECT count(*) FROM sqlite_schema"
	if a, b := count(t, up, objects), count(t, printed, objects); a != b {
		t.Errorf("%d objects by up, %d by print", a, b)
	}
}

func TestSchemaThatDoesNotFitIsRefusedByName(t *testing.T) {
	db, err := waysqlite.Open(t.Context(), filepath.Join(t.TempDir(), "w.db"), waysqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	use := func() error { _, err := outbox.New(db, outbox.Config{}); return err }
	if err := use(); !errors.Is(err, admin.ErrSchema) || !strings.Contains(err.Error(), "schema up") {
		t.Errorf("without tables: %v", err)
	}
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	for version, ok := range map[string]bool{"0": false, "2": true, "3": false} {
		if _, err := db.SQL().Exec("UPDATE waybill_meta SET value = ?", version); err != nil {
			t.Fatal(err)
		}
		if err := use(); (err == nil) != ok || err != nil && !errors.Is(err, admin.ErrSchema) {
			t.Errorf("with version %s: %v", version, err)
		}
		if ok { // it remembers a good answer
			reopened, err := waysqlite.Open(t.Context(), db.Path(), waysqlite.Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer reopened.Close()
			db = reopened
		}
	}
}

func TestWrongPathSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	noDB := filepath.Join(dir, "text.db")
	if err := os.WriteFile(noDB, []byte(strings.Repeat("this is no database ", 200)), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, c := range map[string]struct {
		cfg  waysqlite.Config
		want string
	}{
		filepath.Join(dir, "no", "such", "w.db"): {waysqlite.Config{}, "does not exist"},
		dir:                                      {waysqlite.Config{}, "is a directory"},
		filepath.Join(dir, "missing.db"):         {waysqlite.Config{MustExist: true}, "schema up"},
		noDB:                                     {waysqlite.Config{}, "not a SQLite database"},
		":memory:":                               {waysqlite.Config{}, "in-memory"},
	} {
		db, err := waysqlite.Open(t.Context(), path, c.cfg)
		if err == nil {
			db.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Open(%s) = %v, want %q", path, err, c.want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "missing.db")); err == nil {
		t.Error("MustExist created the file")
	}
}

func TestPathsWithSpecialCharactersOpen(t *testing.T) {
	db := openAt(t, filepath.Join(t.TempDir(), "a b%20?#ü.db"), waysqlite.Config{})
	if filepath.Base(db.Path()) != "a b%20?#ü.db" {
		t.Errorf("the file is %s", db.Path())
	}
}

// The file has the bodies of messages.
func TestFilesAreForTheirOwnerAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "waybill.db")
	db := openAt(t, path, waysqlite.Config{})
	stop, err := db.StartRelay(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for _, name := range []string{path, path + "-wal", path + "-shm", path + ".relay"} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want -rw-------", name, info.Mode(), err)
		}
	}
}

// SQLite stores any value in any column. One that no claim can read would stop the relay or
// the queue for all messages, so the insert of another program is refused.
func TestValuesOfAnotherTypeAreRefusedByTheirColumn(t *testing.T) {
	db := open(t, waysqlite.Config{})
	newOutbox(t, db, outbox.Config{})
	good := map[string]string{
		"transport": "1", "queue": "'q'", "message_id": "randomblob(16)", "message_name": "'order.placed'", "partition_key": "'k'",
		"headers": "'{}'", "body": `'{"seq":1}'`, "created_at": "1", "due_at": "1", "refused": "0", "held": "0", "bucket": "0",
		"failures": "0", "held_until": "0", "lease": "0", "redelivered": "0", "crashes": "0", "begun": "0",
	}
	integers := []string{"'2026-11-28 01:33:36'", "1.5", "x'31'"}
	bad := map[string][]string{
		"transport": integers, "created_at": integers, "due_at": integers, "refused": integers, "held": integers, "bucket": integers,
		"failures": integers, "held_until": integers, "lease": integers, "redelivered": append(integers, "2"), "crashes": integers, "begun": integers,
		"message_id": {"'0123456789abcdef'", "1", "randomblob(15)"}, "queue": {"x'71'"}, "message_name": {"x'6f'"}, "partition_key": {"x'6b'", "x''"}, "headers": {"x'7b7d'"},
	}
	insert := func(table string, columns []string, column, value string) error {
		values := make([]string, len(columns))
		for i, c := range columns {
			if values[i] = good[c]; c == column {
				values[i] = value
			}
		}
		_, err := db.SQL().Exec("INSERT INTO " + table + " (" + strings.Join(columns, ", ") + ") VALUES (" + strings.Join(values, ", ") + ")")
		return err
	}
	message := []string{"message_id", "message_name", "partition_key", "headers", "body", "created_at"}
	leased := append([]string{"queue", "failures", "held", "held_until", "lease", "redelivered"}, message...)
	for table, columns := range map[string][]string{
		"waybill_outbox":  append([]string{"transport", "bucket", "held"}, message...),
		"waybill_delayed": append([]string{"transport", "due_at", "refused"}, message...),
		"waybill_queue":   leased,
		"waybill_retry":   append([]string{"crashes", "begun"}, leased...),
	} {
		for _, column := range columns {
			for _, value := range bad[column] {
				if err := insert(table, columns, column, value); err == nil || !strings.Contains(err.Error(), column) {
					t.Errorf("%s.%s = %s: %v, want an error with the column", table, column, value, err)
				}
			}
		}
		for _, body := range []string{`'{"seq":1}'`, "x'7b7d'"} {
			if err := insert(table, columns, "body", body); err != nil {
				t.Errorf("%s with the body %s: %v", table, body, err)
			}
		}
	}
	if _, err := db.SQL().Exec("INSERT INTO waybill_transport (name) VALUES (x'65')"); err == nil || !strings.Contains(err.Error(), "name") {
		t.Errorf("a transport with a BLOB for a name: %v, want an error with the column", err)
	}
	sink := &recorder{}
	drain(t, db, sink, outbox.RelayConfig{})
	if len(sink.ids) != 4 { // delayed ones included
		t.Errorf("%d messages arrived, want 4", len(sink.ids))
	}
}
