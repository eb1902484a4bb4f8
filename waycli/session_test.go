package waycli

import (
	"strings"
	"testing"

	"github.com/waybill-go/waybill/admin"
)

// Of version 1 there is no older one yet, so a script cannot show it.
func TestSchemaProblemSaysWhatToDo(t *testing.T) {
	s := &session{app: App{Name: "waybill"}}
	for _, c := range []struct {
		version, wanted int
		want, hint      string
	}{
		{0, 1, "has no waybill tables", "schema up"},
		{1, 2, "have version 1, this waybill needs 2", "schema up"},
		{2, 1, "", ""}, // one ahead is tolerated: expand, then contract
		{3, 1, "have version 3, this waybill knows up to 2", "use a newer waybill"},
	} {
		err, _ := s.schemaProblem(admin.SchemaStatus{Database: "/o.db", Prefix: "waybill_", Version: c.version, Wanted: c.wanted}).(*Error)
		if c.want == "" {
			if err != nil {
				t.Errorf("version %d of %d: %v", c.version, c.wanted, err)
			}
			continue
		}
		if err == nil || err.Kind != Usage || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Hint, c.hint) {
			t.Errorf("version %d of %d: %+v, want %q and %q", c.version, c.wanted, err, c.want, c.hint)
		}
	}
}
