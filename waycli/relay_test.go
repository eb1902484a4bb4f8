package waycli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

// A countable database says by stats how many messages it has.
type countable struct {
	Database
	stats func(context.Context) ([]admin.OutboxStats, error)
}

func (db countable) OutboxStats(ctx context.Context) ([]admin.OutboxStats, error) {
	return db.stats(ctx)
}

// A relay that is stopped counts what is left although its context has ended, and ends soon and in
// order while its database is away, or slow.
func TestStoppedRelayCountsForAWhile(t *testing.T) {
	refuses := func(context.Context) ([]admin.OutboxStats, error) {
		return nil, fmt.Errorf("%w: connection refused", waybill.ErrUnavailable)
	}
	hangs := func(ctx context.Context) ([]admin.OutboxStats, error) {
		<-ctx.Done()
		return refuses(ctx)
	}
	answers := func(ctx context.Context) ([]admin.OutboxStats, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return []admin.OutboxStats{{Transport: "events", Pending: 2, BlockedKeys: 1}}, nil
	}
	for _, c := range []struct {
		name, reason string
		stats        func(context.Context) ([]admin.OutboxStats, error)
		left, warns  string
		err          error
	}{
		{"answers", "stopped", answers, `,"pending":2,"blocked_keys":1,"delayed":0`, "", nil},
		{"refuses", "stopped", refuses, "", "not counted", nil},
		{"hangs", "stopped", hangs, "", "not counted", nil},
		{"refuses a drain", "drained", refuses, "", "", waybill.ErrUnavailable},
	} {
		synctest.Test(t, func(t *testing.T) {
			var out, log bytes.Buffer
			s := &session{flags: flags{json: true}, stdout: &output{w: &out}, stderr: newScreen(io.Discard), log: slog.New(slog.NewTextHandler(&log, nil))}
			counts := newCounts("events")
			counts.of("events").published.Store(7)
			stopped, cancel := context.WithCancel(t.Context())
			cancel()
			start := time.Now()
			err := s.relayResult(stopped, countable{stats: c.stats}, []string{"events"}, counts, c.reason)
			if took := time.Since(start); took > 5*time.Second || !errors.Is(err, c.err) {
				t.Errorf("%s: %v after %v, want %v", c.name, err, took, c.err)
			}
			if got, want := out.String(), `"transports":[{"transport":"events","published":7,"refused":0`+c.left+`}]`; !strings.Contains(got, want) {
				t.Errorf("%s: printed %s, want %s in it", c.name, got, want)
			}
			if !strings.Contains(log.String(), c.warns) {
				t.Errorf("%s: the log is %q, want %q in it", c.name, &log, c.warns)
			}
		})
	}
}

// A page after page database has dead letters of which it gives out a page at a time.
type manyLetters struct {
	Database
	n, most int
}

func (db *manyLetters) Failed(_ context.Context, q admin.FailedQuery) (page []admin.FailedMessage, err error) {
	for number := q.After + 1; number <= int64(db.n) && (q.Limit == 0 || len(page) < q.Limit); number++ {
		page = append(page, admin.FailedMessage{Number: number, State: admin.Failed})
	}
	db.most = max(db.most, len(page))
	return page, nil
}

func TestSelectionReadsDeadLettersPageByPage(t *testing.T) {
	for _, n := range []int{1, selectPage, 2*selectPage + 500} {
		db := &manyLetters{n: n}
		found, err := new(session).selectFailed(t.Context(), db, &failedFilter{All: true}, nil)
		if err != nil || len(found) != n || found[n-1].number != int64(n) || db.most > selectPage {
			t.Errorf("%d of %d dead letters are found, %d at once: %v", len(found), n, db.most, err)
		}
	}
}

// Parts of a process that return the error of their context have ended as they were told.
func TestPartThatReturnsItsContextsErrorIsNoFailure(t *testing.T) {
	declined := errors.New("declined")
	ends := func(ctx context.Context) error { <-ctx.Done(); return fmt.Errorf("read: %w", ctx.Err()) }
	fails := func(context.Context) error { return declined }
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, stop)
	if err := runAll(ctx, ends, ends); err != nil {
		t.Errorf("runAll = %v, want nil after a stop", err)
	}
	if err := runAll(t.Context(), ends, fails); !errors.Is(err, declined) {
		t.Errorf("runAll = %v, want the failure", err)
	}
}
