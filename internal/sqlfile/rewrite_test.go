package sqlfile_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill/internal/sqlfile"
)

func TestRewriteTouchesOnlyTheStartOfIdentifiers(t *testing.T) {
	tests := []struct{ name, sql, want string }{
		{"table", "DELETE FROM waybill_outbox", "DELETE FROM shop_outbox"},
		{"schema-qualified", "SELECT waybill_outbox.id FROM public.waybill_outbox", "SELECT shop_outbox.id FROM public.shop_outbox"},
		{"quoted names", "SELECT \"waybill_a\", `waybill_b`, [waybill_c]", "SELECT \"shop_a\", `shop_b`, [shop_c]"},
		{"function and cast", "SELECT waybill_dispatch(1)::waybill_state", "SELECT shop_dispatch(1)::shop_state"},
		{"middle of a word", "SELECT my_waybill_x, éwaybill_x, a$waybill_x, 1waybill_x", "SELECT my_waybill_x, éwaybill_x, a$waybill_x, 1waybill_x"},
		{"string", "SELECT 'waybill_outbox', 'it''s waybill_x', '\"' || waybill_y || '\"'", "SELECT 'waybill_outbox', 'it''s waybill_x', '\"' || shop_y || '\"'"},
		{"comment", "SELECT 1 -- it's waybill_x\n, waybill_y", "SELECT 1 -- it's waybill_x\n, shop_y"},
		{"optimizer hint", "SELECT /*+ INDEX(waybill_outbox) */ 1", "SELECT /*+ INDEX(shop_outbox) */ 1"},
		{"parameters", "SELECT :waybill_a, @waybill_b, $waybill_c", "SELECT :waybill_a, @waybill_b, $waybill_c"},
		{"function body", "AS $$ SELECT 'waybill_s' FROM waybill_outbox -- waybill_c\n$$", "AS $$ SELECT 'waybill_s' FROM shop_outbox -- waybill_c\n$$"},
		{"other case is another name", "SELECT Waybill_x", "SELECT Waybill_x"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := sqlfile.Rewrite(tt.sql, "shop_"); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestQualifyReplacesTheSchemaAlsoInStrings(t *testing.T) {
	sql := "CREATE INDEX waybill_i ON app.waybill_a (x); SELECT 'app.waybill_b', 'waybill_c'"
	want := "CREATE INDEX shop_i ON `db`.shop_a (x); SELECT '`db`.shop_b', 'waybill_c'"
	if got := sqlfile.Qualify(sql, "app.waybill_", "`db`.shop_", "shop_"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestValidPrefix(t *testing.T) {
	tests := []struct {
		prefix string
		want   bool
	}{
		{"waybill_", true},
		{"_", true},
		{"app2_", true},
		{strings.Repeat("a", 31), true},
		{strings.Repeat("a", 32), false},
		{"", false},
		{"2app_", false},
		{"App_", false},
		{"app-", false},
		{"app.", false},
		{"app_\n", false},
		{`a"`, false},
		{"é_", false},
	}
	for _, tt := range tests {
		if got := sqlfile.ValidPrefix(tt.prefix); got != tt.want {
			t.Errorf("ValidPrefix(%q) = %t, want %t", tt.prefix, got, tt.want)
		}
	}
}

func TestStatementsCutsOnlyBetweenStatements(t *testing.T) {
	const procedure = "CREATE PROCEDURE p()\nBEGIN\n    DECLARE a INT;\n    -- one;\n    UPDATE b SET c = a;\n\n    IF a THEN\n        DELETE FROM b;\n    END IF;\nEND"
	const function = "CREATE FUNCTION f() RETURNS int AS $$\nDECLARE\n    n integer;\nBEGIN\n    RETURN n;\nEND $$"
	tests := []struct {
		name, script string
		want         []string
	}{
		{"nothing", "\n-- only; a comment;\n", nil},
		{"comments between", "-- head;\n\nCREATE TABLE a (x);\n\n-- it's b;\n-- too\nCREATE TABLE b (y);\nINSERT INTO b\nVALUES (1);\n", []string{"CREATE TABLE a (x)", "CREATE TABLE b (y)", "INSERT INTO b\nVALUES (1)"}},
		{"comment inside", "CREATE TABLE a (\n  x -- the x;\n);\n", []string{"CREATE TABLE a (\n  x -- the x;\n)"}},
		{"the last one open", "DROP TABLE a;\nALTER TABLE b", []string{"DROP TABLE a", "ALTER TABLE b"}},
		{"another word does not begin one", "DROP TABLE a;\nGRANT b;\n", []string{"DROP TABLE a;\nGRANT b"}},
		{"procedure", procedure + ";\n\nUPDATE a;\n", []string{procedure, "UPDATE a"}},
		{"function", function + ";\nDELETE FROM a;\n", []string{function, "DELETE FROM a"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, sqlfile.Statements(tt.script)); diff != "" {
				t.Errorf("statements (-want +got):\n%s", diff)
			}
		})
	}
}
