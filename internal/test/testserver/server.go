package testserver

import (
	"sync"
	"testing"
)

// A Server is a test's own, which the test may ill-treat. A failed method fails the
// test. The methods may be called concurrently.
type Server struct {
	tb testing.TB

	mu sync.Mutex
	in *instance // guarded by mu
}

// StartPostgres starts a PostgreSQL of tb's own, with settings as lines of
// postgresql.conf; strings among them bring their quotes. Acknowledged commits
// survive Kill, unless the settings say otherwise. It ends with tb.
func StartPostgres(tb testing.TB, settings map[string]string) *Server {
	tb.Helper()
	in, err := newPostgres(settings)
	if err != nil {
		tb.Fatalf("testserver: PostgreSQL: %v", err)
	}
	return serve(tb, in)
}

// StartMariaDB starts a MariaDB of tb's own, with settings as lines of my.cnf.
// Acknowledged commits survive Kill, unless the settings say otherwise. It ends
// with tb.
func StartMariaDB(tb testing.TB, settings map[string]string) *Server {
	tb.Helper()
	in, err := newMariaDB(settings, plain)
	if err != nil {
		tb.Fatalf("testserver: MariaDB: %v", err)
	}
	return serve(tb, in)
}

// StartRabbitMQ starts a RabbitMQ of tb's own, with settings as lines of
// rabbitmq.conf. Messages that it confirmed survive Kill, and so do declarations
// from before Settle. It ends with tb.
func StartRabbitMQ(tb testing.TB, settings map[string]string) *Server {
	tb.Helper()
	in, err := newRabbitMQ(settings)
	if err != nil {
		tb.Fatalf("testserver: RabbitMQ: %v", err)
	}
	return serve(tb, in)
}

func serve(tb testing.TB, in *instance) *Server {
	s := &Server{tb: tb, in: in}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("the output of the server ends with\n%s", in.tail())
		}
		s.do("remove", (*instance).remove)
	})
	return s
}

// URL returns where clients connect, which stays the same over restarts: the
// database postgres or waybill, or the virtual host waybill, all empty at first.
func (s *Server) URL() string { return s.in.url }

// API returns the URL of RabbitMQ's management plugin, with credentials.
func (s *Server) API() string { return s.in.api }

// Kill ends all processes of the server with SIGKILL and returns when they are
// gone.
func (s *Server) Kill() { s.tb.Helper(); s.do("kill", (*instance).kill) }

// Settle makes sure that the declarations on a RabbitMQ so far survive Kill.
func (s *Server) Settle() { s.tb.Helper(); s.do("settle", (*instance).settle) }

// Stop ends the server in the orderly way.
func (s *Server) Stop() { s.tb.Helper(); s.do("stop", (*instance).stop) }

// Start starts the server again, after Kill or Stop, on the same ports and with
// the same data, and returns when it answers.
func (s *Server) Start() { s.tb.Helper(); s.do("start", (*instance).start) }

// Pause freezes all processes of the server until Resume: it keeps its
// connections and answers nothing.
func (s *Server) Pause() {
	s.do("pause", func(in *instance) error { freeze(in.running); return nil })
}

// Resume lets a paused server go on.
func (s *Server) Resume() {
	s.do("resume", func(in *instance) error { thaw(in.running); return nil })
}

func (s *Server) do(what string, f func(*instance) error) {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := f(s.in); err != nil {
		s.tb.Fatalf("testserver: %s: %v", what, err)
	}
}
