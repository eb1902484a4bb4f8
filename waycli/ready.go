package waycli

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A readyPart is a database or broker that a process needs to do its work.
type readyPart struct {
	name  string
	check func(ctx context.Context) error
}

const (
	readyTimeout = 2 * time.Second
	readyEvery   = time.Second
)

// readiness is the last answer of all parts. Many probes ask them at most every second.
type readiness struct {
	mu   sync.Mutex // held while the parts are asked
	at   time.Time  // guarded by mu
	last []error    // guarded by mu; by part
}

// check asks the parts, unless they were asked just now.
func (r *readiness) check(parts []readyPart) []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.at.IsZero() && time.Since(r.at) < readyEvery {
		return r.last
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	errs := make([]error, len(parts))
	var wg sync.WaitGroup
	for i, p := range parts {
		wg.Go(func() { errs[i] = p.check(ctx) })
	}
	wg.Wait()
	r.at, r.last = time.Now(), errs
	return errs
}

// serveReady answers 503 before the loops run, while a database or broker is away, and while
// the process drains. With verbose each part is a line.
func (a *adminListener) serveReady(w http.ResponseWriter, req *http.Request) {
	status, verdict := http.StatusOK, "ready"
	var parts strings.Builder
	running := a.started.Load()
	switch {
	case a.draining.Load():
		status, verdict = http.StatusServiceUnavailable, "draining"
	case running == nil:
		status, verdict = http.StatusServiceUnavailable, "starting"
	default:
		for i, err := range a.ready.check(running.parts) {
			if err != nil {
				status, verdict = http.StatusServiceUnavailable, "not ready"
				fmt.Fprintf(&parts, "%s: %s\n", running.parts[i].name, visible(err.Error()))
				continue
			}
			fmt.Fprintf(&parts, "%s: ok\n", running.parts[i].name)
		}
	}
	text := verdict + "\n"
	if req.URL.Query().Has("verbose") {
		text = parts.String() + text
	}
	answer(w, status, text)
}

// needs adds a part that the process needs to be ready.
func (s *session) needs(name string, check func(context.Context) error) {
	s.parts = append(s.parts, readyPart{name, check})
}
