package dashboard

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill/admin"
)

func TestPagesOfGroupsThatFailedAtOnceHaveEachOnce(t *testing.T) {
	at := time.UnixMicro(1_700_000_000_000_001)
	all := []admin.FailedGroup{{Example: 2, LastFailedAt: at}, {Example: 3, LastFailedAt: at}, {Example: 1, LastFailedAt: at.Add(time.Microsecond)}}
	var after *groupPlace
	for i, want := range []int64{1, 3, 2} {
		page, more := pageOfGroups(all, after, 1)
		if len(page) != 1 || page[0].Example != want || more != (i < 2) {
			t.Fatalf("page %d has %+v, more %v; want group %d", i, page, more, want)
		}
		place, err := parseGroupPlace(placeOf(page[0]).String())
		if err != nil {
			t.Fatal(err)
		}
		after = place
	}
	if all[0].Example != 2 {
		t.Error("the groups themselves, which other pages share, are in another order")
	}
}
