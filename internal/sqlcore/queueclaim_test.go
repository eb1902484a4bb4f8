package sqlcore

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPlanOfAClaim(t *testing.T) {
	row := func(id int64, key string, held Held) QueueRow { return QueueRow{id, key, held} }
	all := func(rows []QueueRow, heads map[int64]Held) map[int64]Held { // all locked
		states := map[int64]Held{}
		for _, r := range rows {
			states[r.ID] = r.Held
		}
		for id, held := range heads {
			states[id] = held
		}
		return states
	}
	free := []QueueRow{row(9, "k", Claimable), row(3, "k", SetAside), row(4, "k", SetAside), row(5, "", Claimable)}
	busy := []QueueRow{row(2, "k", Claimable), row(5, "", Claimable), row(1, "k", InFlight)}
	edge := []QueueRow{row(1, "k", Claimable), row(2, "k", SetAside), row(3, "", Claimable), row(4, "", Claimable), row(5, "", Claimable), row(7, "k", SetAside), row(8, "k", Claimable)}
	for name, tt := range map[string]struct {
		rows   []QueueRow
		limit  int
		states map[int64]Held
		lease  []int64
		change map[Held][]int64
	}{
		"the oldest of a key, those set aside included":       {free, 20, all(free, nil), []int64{3, 4, 5}, map[Held][]int64{SetAside: {9}}},
		"a key has its share":                                 {free, 10, all(free, nil), []int64{3, 5}, map[Held][]int64{SetAside: {9}}},
		"no more than the limit":                              {free, 1, all(free, nil), []int64{5}, map[Held][]int64{}},
		"a key with a row in flight is left alone":            {busy, 20, all(busy, nil), []int64{5}, map[Held][]int64{SetAside: {2}}},
		"nothing is set aside behind a row that is settled":   {busy, 20, map[int64]Held{2: Claimable, 5: Claimable}, []int64{5}, map[Held][]int64{}},
		"nothing is set aside behind a row that was released": {busy, 20, all(busy, map[int64]Held{1: Claimable}), []int64{5}, map[Held][]int64{}},
		"rows beyond a full window wait":                      {edge, 40, all(edge, nil), []int64{1, 2, 3, 4, 5}, map[Held][]int64{}},
		"rows behind one that is settled late wait":           {free, 20, map[int64]Held{4: SetAside, 9: Claimable, 5: Claimable}, []int64{5}, map[Held][]int64{Claimable: {4}}},
		"rows behind one that was renewed late wait":          {free, 20, all(free, map[int64]Held{3: InFlight}), []int64{5}, map[Held][]int64{Claimable: {4}}},
	} {
		const window = 4
		lease, change := planClaim(slices.Clone(tt.rows), tt.limit, window).locked(tt.states)
		slices.Sort(lease)
		if diff := cmp.Diff(tt.lease, lease); diff != "" {
			t.Errorf("%s: leased (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(tt.change, change); diff != "" {
			t.Errorf("%s: changed (-want +got):\n%s", name, diff)
		}
	}
}
