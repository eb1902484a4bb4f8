package sqlfile_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill/internal/sqlfile"
)

func TestStatementsCutsOnlyBetweenStatements(t *testing.T) {
	tests := []struct {
		name, script string
		want         []string
	}{
		{"nothing", " \n-- only; a comment\n;; /* ; */ ;", nil},
		{"two, the last one open", "-- head\nCREATE TABLE a (x);\n\nCREATE TABLE b (y) -- tail\n", []string{"CREATE TABLE a (x)", "CREATE TABLE b (y)"}},
		{"comment inside", "CREATE TABLE a (\n  x -- the x;\n);", []string{"CREATE TABLE a (\n  x -- the x;\n)"}},
		{"strings and names", `INSERT INTO a VALUES ('x;''y', "z;"); SELECT ` + "`;`", []string{`INSERT INTO a VALUES ('x;''y', "z;")`, "SELECT `;`"}},
		{"escape string", `SELECT E'\';'; SELECT 2`, []string{`SELECT E'\';'`, "SELECT 2"}},
		{"backslash is plain text", `SELECT '\'; SELECT 2`, []string{`SELECT '\'`, "SELECT 2"}},
		{"dollar quotes", "DO $$ BEGIN a; END $$; DO $x$ $$;$$ $x$; SELECT $1; SELECT $2", []string{"DO $$ BEGIN a; END $$", "DO $x$ $$;$$ $x$", "SELECT $1", "SELECT $2"}},
		{"transaction", "BEGIN; SELECT CASE WHEN 1 THEN 2 END; END; COMMIT", []string{"BEGIN", "SELECT CASE WHEN 1 THEN 2 END", "END", "COMMIT"}},
		{
			"SQLite trigger",
			"CREATE TRIGGER t AFTER INSERT ON a WHEN new.x > CASE 1 WHEN 1 THEN 2 END BEGIN\n UPDATE a SET x = CASE WHEN y THEN 1 ELSE 2 END;\n DELETE FROM b;\nEND;\nSELECT 1;",
			[]string{"CREATE TRIGGER t AFTER INSERT ON a WHEN new.x > CASE 1 WHEN 1 THEN 2 END BEGIN\n UPDATE a SET x = CASE WHEN y THEN 1 ELSE 2 END;\n DELETE FROM b;\nEND", "SELECT 1"},
		},
		{
			"MySQL procedure",
			"create procedure p() begin if a then x; end if; while b do y; end while; repeat z; until c end repeat; case d when 1 then begin end; end case; select e.end order by case f when 1 then 2 end for update; end; SELECT 1",
			[]string{"create procedure p() begin if a then x; end if; while b do y; end while; repeat z; until c end repeat; case d when 1 then begin end; end case; select e.end order by case f when 1 then 2 end for update; end", "SELECT 1"},
		},
		{"MariaDB loop", "CREATE PROCEDURE p() BEGIN FOR i IN 1..2 DO x; END FOR; y; END; SELECT 1", []string{"CREATE PROCEDURE p() BEGIN FOR i IN 1..2 DO x; END FOR; y; END", "SELECT 1"}},
		{"PostgreSQL body", "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2; END; SELECT 3", []string{"CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2; END", "SELECT 3"}},
		{"PostgreSQL trigger", "CREATE TRIGGER t AFTER INSERT ON a EXECUTE FUNCTION f(); SELECT 1", []string{"CREATE TRIGGER t AFTER INSERT ON a EXECUTE FUNCTION f()", "SELECT 1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := sqlfile.Statements(tt.script)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("statements (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStatementsNamesTheLineLeftOpen(t *testing.T) {
	tests := []struct{ script, want string }{
		{"SELECT 1;\nSELECT 'a\nb;", "line 2: this string"},
		{"SELECT 1;\n\nSELECT \"a;", "line 3: this quoted name"},
		{"SELECT `a", "line 1: this quoted name"},
		{"DO $x$ a $$ $y$", "line 1: this dollar quote"},
		{"SELECT 1 /* ;", "line 1: this comment"},
		{"SELECT 1;\nCREATE TRIGGER t INSERT ON a BEGIN\nSELECT 1;\n", "line 2: a BEGIN or CASE"},
	}
	for _, tt := range tests {
		if _, err := sqlfile.Statements(tt.script); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: error %v, want one with %q", tt.script, err, tt.want)
		}
	}
}

func FuzzStatements(f *testing.F) {
	f.Add("CREATE TABLE a (x); -- c\nINSERT INTO a VALUES ('x;''y', \"z\");")
	f.Add("CREATE TRIGGER t AFTER INSERT ON a BEGIN UPDATE a SET x = CASE 1 WHEN 1 THEN 2 END; END; SELECT `;`")
	f.Add("DO $x$ BEGIN a; END $x$; SELECT E'\\';', /* ; */ 1")
	f.Fuzz(func(t *testing.T, script string) {
		stmts, err := sqlfile.Statements(script)
		if err != nil {
			return
		}
		rest := script
		for _, stmt := range stmts {
			_, after, ok := strings.Cut(rest, stmt)
			if !ok {
				t.Fatalf("%q is not in the script, or not in this order", stmt)
			}
			rest = after
		}
		again, err := sqlfile.Statements(strings.Join(stmts, ";\n"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(stmts, again); diff != "" {
			t.Errorf("joined and cut again (-want +got):\n%s", diff)
		}
	})
}
