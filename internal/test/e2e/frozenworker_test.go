package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/worker"
)

// quickLease is the lease of the queue of work.
const quickLease = time.Second

// work handles one message of a queue of the database.
func work(ctx context.Context, db database, inHandler func()) error {
	bus := waybill.NewBus("main")
	db.handle(bus, inHandler)
	q, err := db.leased("effects", quickLease)
	if err != nil {
		return err
	}
	w, err := worker.New(bus, q, worker.Config{Limit: 1, Concurrency: 1, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// Its transaction ends by the idle timeout, so its effect is gone, and its acknowledgement
// comes too late.
func TestFrozenWorkerIsReplacedAndHasNoEffect(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		s := on.stack(t)
		app, err := s.db.application(outbox.Config{To: "effects", Queues: map[string]string{"effects": "effects"}})
		s.must(err)
		s.must(app.inTx(t.Context(), func(ctx context.Context, u unit) error {
			_, err := u.dispatch(ctx, counted{Key: "k", N: 1})
			return err
		}))
		p := s.start(role{Place: inHandler, Signal: syscall.SIGSTOP})
		s.eventually(patience, "the worker is frozen", p.frozen)
		frozen := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		s.must(work(ctx, s.open(s.database), func() {}))
		took := time.Since(frozen)
		t.Logf("taken over after %v", took.Round(10*time.Millisecond))
		if ctx.Err() != nil || took > quickLease+quickIdle+on.grace {
			t.Errorf("the successor had handled it after %v, want the lease of %v, the idle timeout of %v and %v at most", took, quickLease, quickIdle, on.grace)
		}
		p.signal(syscall.SIGCONT)
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // unless it has ended by its limit
		p.await(patience)
		if log := p.log.String(); !strings.Contains(log, "lease lost") {
			t.Errorf("the thawed worker does not say that its lease was lost:\n%s", log)
		}
		if n := s.count("SELECT count(*) FROM effects"); n != 1 {
			t.Errorf("%d effects, want one", n)
		}
		stats, err := s.db.QueueStats(t.Context())
		s.must(err)
		if fmt.Sprint(stats) != "[]" {
			t.Errorf("the queue has %v, want nothing", stats)
		}
	})
}
