package dashboard

import (
	"slices"
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

func TestBarsOfADay(t *testing.T) {
	d := day{0: 1, 22: 500, 23: 1000}
	want := []bar{{0, 23, 1}, {88, 12, 12}, {92, 0, 24}}
	if got := d.Bars(); !slices.Equal(got, want) || d.Total() != 1501 {
		t.Errorf("Bars = %v of %d, want %v of 1501", got, d.Total(), want)
	}
	if got := (day{}).Bars(); got != nil {
		t.Errorf("a day without failures has %v", got)
	}
}
