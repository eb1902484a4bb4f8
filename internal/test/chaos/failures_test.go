//go:build chaos

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/crash"
	"github.com/waybill-go/waybill/internal/test/crashpoint"
)

var errFails = errors.New("the warehouse is down")

// fails is the failure of a handler after its effect, which must not commit: of a share of
// all attempts, of the first three attempts at some messages with a key, and of every
// attempt at some without one until the campaign has mended that.
func fails(ctx context.Context, tx tx, m counted, before int) error {
	switch {
	case free(m.Key) && m.N%unhandleableEvery == 0:
		mended, err := tx.number(ctx, "SELECT count(*) FROM mended")
		if err != nil || mended > 0 {
			return err
		}
		return waybill.Unrecoverable(errFails)
	case m.N%failingEvery == 0 && before < 3, rand.IntN(100) < 3:
		return errFails
	}
	return nil
}

// One message without a key in unhandleableEvery fails until it is mended, one with a key in
// failingEvery three times.
const unhandleableEvery, failingEvery = 10, 25

// handleable is the table of the committed messages, without those that cannot be handled
// until the failures are mended.
func (c *campaign) handleable() string {
	if !c.stored {
		return "committed"
	}
	return "committed WHERE NOT " + unhandleable
}

var unhandleable = fmt.Sprintf("(k LIKE 'free-%%' AND MOD(n, %d) = 0)", unhandleableEvery)

// points are the points of internal/crash that a worker comes to, and the other roles.
func points(stored bool) []string {
	if stored {
		return crashpoint.Points
	}
	ofStore := []string{crash.WorkerBeforeStore, crash.WorkerAfterStore, crash.WorkerBeforeMove, crash.WorkerAfterMove, crash.WorkerBeforeRetryAck, crash.WorkerAfterRetryAck}
	return slices.DeleteFunc(slices.Clone(crashpoint.Points), func(point string) bool { return slices.Contains(ofStore, point) })
}

// replay mends what failed, replays the dead letters as an operator does, and waits for
// their effects.
func (c *campaign) replay(r *report) {
	c.t.Helper()
	r.Retried = c.count("handled WHERE failures > 0")
	r.DeadLettersExpected = c.count("committed WHERE " + unhandleable)
	c.await("the dead letters", time.Minute, func() bool { return c.count("waybill_failed") >= r.DeadLettersExpected })
	r.DeadLetters = c.count("waybill_failed")
	if _, err := c.db.ExecContext(c.t.Context(), "INSERT INTO mended (i) VALUES (1)"); err != nil {
		c.t.Fatal(err)
	}
	db, err := c.on.open(c.t.Context(), c.server.URL(), 0)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	letters, err := db.Failed(c.t.Context(), admin.FailedQuery{Limit: r.DeadLetters})
	if err != nil {
		c.t.Fatal(err)
	}
	for some := range slices.Chunk(letters, 20) {
		var numbers []int64
		for _, l := range some {
			numbers = append(numbers, l.Number)
		}
		if n, err := db.RetryFailed(c.t.Context(), numbers...); err != nil || n != len(numbers) {
			c.t.Errorf("%d of %d dead letters were replayed: %v", n, len(numbers), err)
		}
	}
	left := func() int {
		return c.count("waybill_failed") + c.count("waybill_failed_attempt") + c.count("waybill_retry")
	}
	c.await("the effects of the dead letters", time.Minute, func() bool { return left() == 0 })
	r.FailuresLeft = left()
}
