package sqlfile_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill/internal/sqlfile"
)

const claimAndDone = `-- The outbox of one database.

-- name: claim
-- Leases due records to one owner (?1). It's the caller who sorts by id.
UPDATE waybill_outbox -- the table; nothing else
SET    owner = ?1, /* who */ note = '-- name: x; it''s text'
-- only what is due
WHERE  id = ?2;

-- name: done
DELETE FROM waybill_outbox WHERE id = ?1
`

func TestQueryIsTheStatementWithoutComments(t *testing.T) {
	set, err := sqlfile.Parse("outbox.sql", claimAndDone)
	if err != nil {
		t.Fatal(err)
	}
	want := "UPDATE waybill_outbox\nSET    owner = ?1,   note = '-- name: x; it''s text'\nWHERE  id = ?2"
	if diff := cmp.Diff(want, set.Query("claim")); diff != "" {
		t.Errorf("claim (-want +got):\n%s", diff)
	}
	if got, want := set.Query("done"), "DELETE FROM waybill_outbox WHERE id = ?1"; got != want {
		t.Errorf("done = %q, want %q", got, want)
	}
	if diff := cmp.Diff([]string{"claim", "done"}, set.Names()); diff != "" {
		t.Errorf("Names (-want +got):\n%s", diff)
	}
}

func TestQueryKeepsWhatTheServerObeys(t *testing.T) {
	tests := []struct{ text, want string }{
		{"SELECT /*+ NO_MERGE(waybill_outbox) */ 1 /* one */;", "SELECT /*+ NO_MERGE(waybill_outbox) */ 1"},
		{"SELECT 1 /*!50110 STRAIGHT_JOIN */", "SELECT 1 /*!50110 STRAIGHT_JOIN */"},
		{"SELECT 1/**/+2", "SELECT 1 +2"},
		{`SELECT "a--b", ` + "`c--d`" + ` FROM t`, `SELECT "a--b", ` + "`c--d`" + ` FROM t`},
		{`SELECT E'it\'s -- text'`, `SELECT E'it\'s -- text'`},
		{`SELECT 1 WHERE a LIKE b ESCAPE '\' -- c`, `SELECT 1 WHERE a LIKE b ESCAPE '\'`},
		{"DO $do$ BEGIN PERFORM 1; -- inside\nEND $do$", "DO $do$ BEGIN PERFORM 1; -- inside\nEND $do$"},
		{"SELECT a #>> '{b}' FROM t", "SELECT a #>> '{b}' FROM t"},
		{"SELECT 1 -- one\r\n, 2;\r\n", "SELECT 1\n, 2"},
	}
	for _, tt := range tests {
		set, err := sqlfile.Parse("q.sql", "-- name: q\n"+tt.text)
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		if got := set.Query("q"); got != tt.want {
			t.Errorf("%s\n got %q\nwant %q", tt.text, got, tt.want)
		}
	}
}

func TestParseNamesTheLineOfAnError(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"duplicate", "-- name: a\nSELECT 1;\n-- name: a\nSELECT 2;", `f.sql:3: "a" is already`},
		{"empty", "-- name: a\n-- does nothing\n;\n-- name: b\nSELECT 1", `f.sql:1: section "a" has no statement`},
		{"empty at the end", "-- name: a\nSELECT 1;\n-- name: b", `f.sql:3: section "b" has no statement`},
		{"statement ahead", "-- heading\n\nSELECT 1;\n-- name: a\nSELECT 1", "f.sql:3: a statement ahead"},
		{"two statements", "-- name: a\nSELECT 1;\n\nSELECT 2;", `f.sql:4: a second statement in section "a"`},
		{"upper-case name", "-- name: Claim\nSELECT 1", "f.sql:1: a section starts with"},
		{"no name", "-- name:\nSELECT 1", "f.sql:1: a section starts with"},
		{"two names", "-- name: a b\nSELECT 1", "f.sql:1: a section starts with"},
		{"indented header", "-- name: a\nSELECT 1;\n  -- name: b\nSELECT 2", "f.sql:3: a section starts with"},
		{"header without a space", "--name: a\nSELECT 1", "f.sql:1: a section starts with"},
		{"open string", "-- name: a\nSELECT 1;\n-- name: b\nSELECT\n'two\n-- name: c\n", "f.sql:5: this string has no closing quote"},
		{"open comment", "-- name: a\nSELECT 1 /* one", "f.sql:2: this comment is never closed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := sqlfile.Parse("f.sql", tt.text)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

func TestProgrammersErrorsPanic(t *testing.T) {
	set := sqlfile.MustParse("outbox.sql", claimAndDone)
	tests := []struct {
		name, want string
		do         func()
	}{
		{"unknown query", `outbox.sql has no statement "clam"`, func() { set.Query("clam") }},
		{"query of the zero set", `no statement "claim"`, func() { sqlfile.Set{}.Query("claim") }},
		{"invalid prefix", `invalid table prefix "a; DROP"`, func() { sqlfile.Rewrite("", "a; DROP") }},
		{"broken file", `b.sql:1: section "a" has no statement`, func() { sqlfile.MustParse("b.sql", "-- name: a") }},
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

func FuzzParse(f *testing.F) {
	f.Add(claimAndDone)
	f.Add("-- name: a\nSELECT E'\\'', $t$ -- $t$, \"x\", `y` /*! z */ /* c */;")
	f.Fuzz(func(t *testing.T, text string) {
		set, err := sqlfile.Parse("fuzz.sql", text)
		if err != nil {
			return
		}
		rest := text
		for _, name := range set.Names() {
			q := set.Query(name)
			// Comments are gone; every other piece is there, in the same order.
			for _, piece := range strings.Fields(q) {
				_, after, ok := strings.Cut(rest, piece)
				if !ok {
					t.Fatalf("%s: %q of %q is not in the file, or not in this order", name, piece, q)
				}
				rest = after
			}
			if got := sqlfile.MustParse("again.sql", "-- name: q\n"+q).Query("q"); got != q {
				t.Errorf("parsed again: %q, want %q", got, q)
			}
			if got := sqlfile.Rewrite(q, sqlfile.Prefix); got != q {
				t.Errorf("rewritten to its own prefix: %q, want %q", got, q)
			}
		}
	})
}
