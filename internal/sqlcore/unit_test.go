package sqlcore_test

import (
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// A savepoint must not cost more, the more its unit of work has dispatched.
func TestMarkCopiesNoRows(t *testing.T) {
	var u sqlcore.Unit
	if err := u.Add(make([]outbox.Row, 100)); err != nil {
		t.Fatal(err)
	}
	mark := 0
	if allocated := testing.AllocsPerRun(10, func() { mark = u.Mark() }); allocated != 0 || mark != 100 {
		t.Errorf("Mark = %d with %v allocations, want 100 with none", mark, allocated)
	}
}

// A dispatch with a unique key must not copy what its unit of work has dispatched.
func TestUniqueHolderCopiesNoRows(t *testing.T) {
	var u sqlcore.Unit
	rows := make([]outbox.Row, 100)
	rows[99] = outbox.Row{Record: &waybill.Record{ID: waybill.MessageID{7}}, Unique: &outbox.UniqueKey{Key: "a/1"}}
	if err := u.Add(rows); err != nil {
		t.Fatal(err)
	}
	var holder, none waybill.MessageID
	allocated := testing.AllocsPerRun(10, func() { holder, none = u.UniqueHolder("a/1"), u.UniqueHolder("a/2") })
	if allocated != 0 || holder != rows[99].Record.ID || !none.IsZero() {
		t.Errorf("UniqueHolder = %v and %v with %v allocations, want the message, no message, and none", holder, none, allocated)
	}
}
