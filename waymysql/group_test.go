package waymysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
)

// DDL in one handler of a group leaves its message in doubt, with the messages
// that had dispatched before it. Every message has its effect once.
func TestDDLInAGroupLeavesInDoubtOnlyWhatIs(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	exec(t, db, "CREATE TABLE effects (seq INT)")
	out := newOutbox(t, db, outbox.Config{})
	bus := waybill.NewBus("main")
	inbox.Handle(bus, db, "billing", func(ctx context.Context, tx *sql.Tx, m order) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES (?)", m.Seq); err != nil {
			return err
		}
		switch m.Seq % 10 {
		case 0:
			return makeTable(ctx, tx)
		case 1, 2:
			_, err := out.Dispatch(ctx, tx, m)
			return err
		}
		return nil
	}, inbox.Group(6), inbox.Option{Linger: 10 * time.Second})
	doubtful := 0
	for round := 0; round < 8 || doubtful == 0 && round < 80; round++ { // the order is a matter of luck
		errs := make([]error, 6)
		var all sync.WaitGroup
		for _, i := range rand.Perm(len(errs)) {
			rec := record(t, order{fmt.Sprint("k", 10*round+i), 10*round + i})
			all.Go(func() { errs[i] = bus.HandleRecord(context.Background(), rec, "in", 0) })
		}
		all.Wait()
		for i, err := range errs {
			seq := 10*round + i
			sent := count(t, db, fmt.Sprintf("SELECT COUNT(*) FROM waybill_outbox WHERE partition_key = 'k%d'", seq))
			got := count(t, db, fmt.Sprintf("SELECT COUNT(*) FROM effects WHERE seq = %d", seq))
			dispatches := i == 1 || i == 2
			if dispatches && err != nil {
				doubtful++
			}
			switch {
			case got != 1,
				i == 0 && !waybill.IsUnrecoverable(err),
				i > 2 && err != nil,
				dispatches && (sent == 1) != (err == nil),
				dispatches && err != nil && !waybill.IsUnrecoverable(err):
				t.Errorf("round %d, message %d: %d effects, %d dispatched, %v", round, i, got, sent, err)
			}
		}
	}
	if doubtful == 0 {
		t.Error("in no round did a message dispatch before the DDL: the test proves little")
	}
}
