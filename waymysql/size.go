package waymysql

import (
	"cmp"

	"github.com/waybill-go/waybill/internal/lane"
)

// size is what a row counts as.
func size(r lane.Row) int { return len(r.Claimed.Record.Body) + len(r.Headers) }

// firstUsual is the usual size of rows before any was seen.
const firstUsual = 4 << 10

// sizes returns how many rows of the usual size are in maxBytes: so many are
// asked for, because MySQL cannot stop by bytes without reading what it leaves out.
func (h *holder) sizes(maxBytes int) int {
	return max(maxBytes/int(cmp.Or(h.db.usual.Load(), firstUsual)), 1)
}

// measure learns the usual size: from larger rows at once, from smaller ones
// slowly.
func (h *holder) measure(r lane.Row) {
	n, old := int64(size(r)), h.db.usual.Load()
	if old == 0 {
		old = firstUsual
	}
	if n < old {
		n = old - (old-n)/64
	}
	h.db.usual.Store(max(n, 1))
}
