package outage_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/internal/outage"
)

// An outage that two loops meet is a warning, repeated each five minutes, and a line at its end, with all
// failures.
func TestAnOutageIsTwoLinesAndOneEachFiveMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		var out bytes.Buffer
		l := outage.New(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo})), slog.String("transport", "events"))
		want := func(lines ...string) {
			t.Helper()
			got := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
			out.Reset()
			if len(got) != len(lines) {
				t.Fatalf("lines %q, want %q", got, lines)
			}
			for i := range lines {
				if _, line, _ := strings.Cut(got[i], " "); line != lines[i] {
					t.Errorf("line %q, want %q", line, lines[i])
				}
			}
		}
		l.Worked(ctx, 1)
		want("")
		l.Failed(ctx, 1, "no broker", slog.Any("err", errors.New("refused")))
		want(`level=WARN msg="no broker" transport=events err=refused`)
		for range 3 {
			time.Sleep(time.Second)
			l.Failed(ctx, 1, "no broker")
			l.Failed(ctx, 2, "no broker")
		}
		l.Worked(ctx, 2)
		l.Worked(ctx, 3)
		want("")
		l.Worked(ctx, 1)
		want(`level=INFO msg="outage over" transport=events failures=7 lasted=3s`)
		l.Worked(ctx, 1)
		l.Failed(ctx, 2, "no broker")
		l.Worked(ctx, 2)
		want(`level=WARN msg="no broker" transport=events`, `level=INFO msg="outage over" transport=events failures=1 lasted=0s`)
		// The cause changes: the broker is back, and refuses the password.
		l.Failed(ctx, 1, "no broker", slog.Any("err", errors.New("refused")))
		want(`level=WARN msg="no broker" transport=events err=refused`)
		for range 400 {
			time.Sleep(time.Second)
			l.Failed(ctx, 1, "no broker", slog.Any("err", errors.New("password")))
		}
		want(`level=WARN msg="no broker" transport=events err=password`)
	})
}
