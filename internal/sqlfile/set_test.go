package sqlfile_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill/internal/sqlfile"
)

const claimAndDone = `-- The outbox of one database.

-- name: claim
-- Leases due records to one owner (?1). It's the caller who sorts by id.
UPDATE waybill_outbox -- the table; nothing else
SET    owner = ?1, note = '-- name: x; it''s text'
-- only what is due
WHERE  id = ?2;

-- name: done
DELETE FROM waybill_outbox WHERE id = ?1
`

func TestQueryIsTheStatementWithoutComments(t *testing.T) {
	set := sqlfile.MustParse("outbox.sql", claimAndDone)
	want := "UPDATE waybill_outbox\nSET    owner = ?1, note = '-- name: x; it''s text'\nWHERE  id = ?2"
	if diff := cmp.Diff(want, set.Query("claim")); diff != "" {
		t.Errorf("claim (-want +got):\n%s", diff)
	}
	if got, want := set.Query("done"), "DELETE FROM waybill_outbox WHERE id = ?1"; got != want {
		t.Errorf("done = %q, want %q", got, want)
	}
}

func TestQueryKeepsWhatTheServerObeys(t *testing.T) {
	tests := []struct{ text, want string }{
		{"SELECT /*+ NO_MERGE(waybill_outbox) */ 1;", "SELECT /*+ NO_MERGE(waybill_outbox) */ 1"},
		{"SELECT 1 /*!50110 STRAIGHT_JOIN */", "SELECT 1 /*!50110 STRAIGHT_JOIN */"},
		{`SELECT 1 WHERE a LIKE b ESCAPE '\' -- c`, `SELECT 1 WHERE a LIKE b ESCAPE '\'`},
		{"SELECT a #>> '{b}' FROM t", "SELECT a #>> '{b}' FROM t"},
		{"SELECT a - -1, b::text", "SELECT a - -1, b::text"},
	}
	for _, tt := range tests {
		if got := sqlfile.MustParse("q.sql", "-- name: q\n"+tt.text).Query("q"); got != tt.want {
			t.Errorf("%s\n got %q\nwant %q", tt.text, got, tt.want)
		}
	}
}

func TestErrorsOfFilesPanic(t *testing.T) {
	set := sqlfile.MustParse("outbox.sql", claimAndDone)
	parse := func(text string) func() { return func() { sqlfile.MustParse("f.sql", text) } }
	same := func(text string) string { return text }
	tests := []struct {
		name, want string
		do         func()
	}{
		{"unknown query", `outbox.sql has no statement "clam"`, func() { set.Query("clam") }},
		{"query of the zero set", `no statement "claim"`, func() { sqlfile.Set{}.Query("claim") }},
		{"invalid prefix", `invalid table prefix "a; DROP"`, func() { sqlfile.Rewrite("", "a; DROP") }},
		{"no file", "sql/none.sql", func() { sqlfile.MustRead(os.DirFS("."), "none", same) }},
		{"duplicate", `section "a" of f.sql is there twice`, parse("-- name: a\nSELECT 1;\n-- name: a\nSELECT 2;")},
		{"empty", `section "a" of f.sql has no statement`, parse("-- name: a\n-- does nothing\n;\n-- name: b\nSELECT 1")},
		{"empty at the end", `section "b" of f.sql has no statement`, parse("-- name: a\nSELECT 1;\n-- name: b")},
		{"two statements", `section "a" of f.sql has a second`, parse("-- name: a\nSELECT 1;\n\nSELECT 2;")},
		{"statement ahead", "f.sql begins with a statement without a name", parse("-- heading\n\nSELECT 1;\n-- name: a\nSELECT 1")},
		{"indented header", `section "a" of f.sql has a second`, parse("-- name: a\nSELECT 1;\n  -- name: b\nSELECT 2")},
		{"header without a space", `section "a" of f.sql has a second`, parse("-- name: a\nSELECT 1;\n--name: b\nSELECT 1")},
		{"open string", `section "b" of f.sql has a second statement or an open string`, parse("-- name: a\nSELECT 1;\n-- name: b\nSELECT\n'two\n-- name: c\nSELECT 3")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, tt.want) {
					t.Errorf("panic %q, want one with %q", got, tt.want)
				}
			}()
			tt.do()
		})
	}
}

// TestTheDatabasesWriteWhatIsRead looks into the SQL files of all databases.
func TestTheDatabasesWriteWhatIsRead(t *testing.T) {
	files, err := filepath.Glob("../../way*/sql/*.sql")
	schemas, err2 := filepath.Glob("../../way*/sql/schema/*.sql")
	if err != nil || err2 != nil || len(files) < 30 || len(schemas) < 3 {
		t.Fatalf("%d files (%v), %d of schemas (%v)", len(files), err, len(schemas), err2)
	}
	text := regexp.MustCompile(`--.*|'[^']*'`)
	misread := regexp.MustCompile("(?i)/\\*[^!+]|\\be$|[$][a-z_]+[$]|[\"`][^\"`\n.]+waybill_")
	ahead := regexp.MustCompile(`;\n(?:--.*\n|\n)*[A-Z]+`)
	for _, file := range append(files, schemas...) {
		script, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if bad := misread.FindString(text.ReplaceAllString(string(script), "")); bad != "" {
			t.Errorf("%s has %q, which Rewrite reads as something else", file, bad)
		}
		if !slices.Contains(schemas, file) {
			continue
		}
		for _, statement := range sqlfile.Statements(string(script)) {
			for _, next := range ahead.FindAllString(statement, -1) {
				if !strings.HasSuffix(next, "\nBEGIN") && !strings.HasSuffix(next, "\nEND") {
					t.Errorf("%s: Statements does not cut at %q", file, next)
				}
			}
		}
	}
}
