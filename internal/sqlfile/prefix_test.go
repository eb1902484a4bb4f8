package sqlfile_test

import (
	"strings"
	"testing"

	"github.com/waybill-go/waybill/internal/sqlfile"
)

func TestRewriteTouchesOnlyTheStartOfIdentifiers(t *testing.T) {
	tests := []struct{ name, sql, want string }{
		{"table", "DELETE FROM waybill_outbox", "DELETE FROM shop_outbox"},
		{"schema-qualified", "SELECT waybill_outbox.id FROM public.waybill_outbox", "SELECT shop_outbox.id FROM public.shop_outbox"},
		{"quoted names", "SELECT \"waybill_a\", `waybill_b`, [waybill_c]", "SELECT \"shop_a\", `shop_b`, [shop_c]"},
		{"function and cast", "SELECT waybill_dispatch(1)::waybill_state", "SELECT shop_dispatch(1)::shop_state"},
		{"middle of a word", "SELECT my_waybill_x, éwaybill_x, a$waybill_x, 1waybill_x", "SELECT my_waybill_x, éwaybill_x, a$waybill_x, 1waybill_x"},
		{"middle of a quoted name", `SELECT "my waybill_x"`, `SELECT "my waybill_x"`},
		{"string", "SELECT 'waybill_outbox', 'it''s waybill_x', E'\\'waybill_x'", "SELECT 'waybill_outbox', 'it''s waybill_x', E'\\'waybill_x'"},
		{"comment", "SELECT 1 -- waybill_x\n/* waybill_y */", "SELECT 1 -- waybill_x\n/* waybill_y */"},
		{"optimizer hint", "SELECT /*+ INDEX(waybill_outbox) */ 1", "SELECT /*+ INDEX(shop_outbox) */ 1"},
		{"parameters", "SELECT :waybill_a, @waybill_b, $waybill_c", "SELECT :waybill_a, @waybill_b, $waybill_c"},
		{"function body", "AS $waybill_f$ SELECT 'waybill_s' FROM waybill_outbox -- waybill_c\n$waybill_f$", "AS $waybill_f$ SELECT 'waybill_s' FROM shop_outbox -- waybill_c\n$waybill_f$"},
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
