package dashboard

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

func TestCountsAreReadInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounts(slog.New(slog.DiscardHandler))
		defer c.close()
		runs, takes := 0, 10*time.Millisecond
		var fault error
		read := func(ctx context.Context) (int, error) {
			runs++
			time.Sleep(takes)
			return runs, fault
		}
		see := func(want int, wantAge, wantWait time.Duration) {
			t.Helper()
			start := time.Now()
			n, at, err := figureOf(t.Context(), c, "n", patience, read)
			if age := time.Since(at); at.IsZero() != (want == 0) || n != want || err != nil || want != 0 && age != wantAge || time.Since(start) != wantWait {
				t.Errorf("figureOf = %d, %v old, %v after %v; want %d, %v old, after %v", n, age, err, time.Since(start), want, wantAge, wantWait)
			}
		}
		see(1, takes, takes)
		see(2, takes, takes) // a quick one is read each time
		takes = 100 * time.Millisecond
		see(3, takes, takes)
		time.Sleep(800 * time.Millisecond)
		see(3, 900*time.Millisecond, 0) // another is not repeated at once
		c.outdate()
		see(4, takes, takes) // but after a change
		time.Sleep(1100 * time.Millisecond)
		takes = time.Second
		see(4, 1200*time.Millisecond+patience, patience) // a slow one is not waited for
		time.Sleep(time.Second)
		see(5, 1200*time.Millisecond, 0)
		time.Sleep(9 * time.Second)
		see(5, 10200*time.Millisecond, 0) // nor repeated at once
		time.Sleep(time.Second)
		see(5, 11200*time.Millisecond, 0)
		time.Sleep(1500 * time.Millisecond)
		see(6, 1500*time.Millisecond, 0)
		time.Sleep(time.Hour)
		see(0, 0, patience) // an old one is not shown
		time.Sleep(time.Second)
		synctest.Wait() // so that runs may be read
		if runs != 7 {
			t.Errorf("%d runs, want 7", runs)
		}
		fault = errors.New("no connection")
		if _, _, err := figureOf(t.Context(), c, "other", time.Minute, read); !errors.Is(err, fault) {
			t.Errorf("the error of the first read is %v", err)
		}

		// Pages do without a count that takes too long; the API has its error.
		endless := func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() }
		for range 3 {
			if n, at, err := figureOf(t.Context(), c, "endless", patience, endless); n != 0 || !at.IsZero() || err != nil {
				t.Errorf("figureOf = %d, %v, %v, want that it is not known", n, at, err)
			}
			time.Sleep(countTimeout)
		}
		if _, _, err := figureOf(t.Context(), c, "endless", patient, endless); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error of a count that takes too long is %v", err)
		}
	})
}
