package waycli

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// A progress is the status of a long command while it runs.
type progress struct {
	message string          // of the log: "relaying"
	verb    string          // of the items counted by done: "published"
	done    func() int      // how many, since the start
	figures func() []figure // further ones; may take its time
}

type figure struct {
	name string
	n    int
}

const (
	redrawEvery = time.Second     // on a terminal
	logEvery    = 5 * time.Second // elsewhere, if something has changed
)

// showProgress shows p until stop is called, which may be repeated: one line that is redrawn on a
// terminal, a line of the log elsewhere.
func (s *session) showProgress(p progress) (stop func()) {
	every := logEvery
	if s.stderr.terminal {
		every = redrawEvery
	}
	if p.figures == nil {
		p.figures = func() []figure { return nil }
	}
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		pause := every
		var before []figure
		last, since := 0, time.Now()
		for {
			select {
			case <-quit:
				return
			case <-time.After(pause):
			}
			n := p.done()
			rate := int(float64(n-last) / time.Since(since).Seconds())
			last, since = n, time.Now()
			figures := p.figures()
			// Counting a large backlog must not become the load.
			pause = max(every, 20*time.Since(since))
			now := append([]figure{{p.verb, n}, {"per_second", rate}}, figures...)
			if s.stderr.terminal {
				s.stderr.setStatus(statusLine(now))
			} else if !slices.Equal(now, before) {
				s.log.LogAttrs(context.Background(), slog.LevelInfo, p.message, attrsOf(now)...)
			}
			before = now
		}
	})
	return sync.OnceFunc(func() {
		close(quit)
		wg.Wait()
		s.stderr.setStatus("")
	})
}

// statusLine returns a line such as "1,204 published, 310/s, 12 pending, 0 blocked".
func statusLine(figures []figure) string {
	parts := make([]string, len(figures))
	for i, f := range figures {
		if f.name == "per_second" {
			parts[i] = count(f.n) + "/s"
			continue
		}
		parts[i] = fmt.Sprintf("%s %s", count(f.n), f.name)
	}
	return strings.Join(parts, ", ")
}

func attrsOf(figures []figure) []slog.Attr {
	attrs := make([]slog.Attr, len(figures))
	for i, f := range figures {
		attrs[i] = slog.Int(f.name, f.n)
	}
	return attrs
}
