package waycli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/wayprom"
)

// adminFlags are the flags of commands that answer probes and scrapes.
type adminFlags struct {
	listen string
	pprof  bool
}

func (f *adminFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.listen, "admin-listen", "", "HOST:PORT for /healthz, /readyz and /metrics (default: admin.listen, or none)")
	cmd.Flags().BoolVar(&f.pprof, "pprof", false, "serve /debug/pprof there, too")
}

// stuckAfter is how long a loop may stand still. A relay may take three publish deadlines and 5 s.
const stuckAfter = 10 * time.Second

// An adminListener answers probes and scrapes of a command that runs on. It serves no body,
// key, header or password of a message or a DSN.
type adminListener struct {
	log      *slog.Logger
	registry *prometheus.Registry
	metrics  *wayprom.Metrics

	started  atomic.Pointer[runningLoops] // nil before the loops begin
	draining atomic.Bool
	ready    readiness
}

// runningLoops are the loops of a process and the connections that they work with.
type runningLoops struct {
	alive func(within time.Duration) error
	parts []readyPart
}

// listenAdmin listens at the address of the flags or the file, if there is one, until stop is
// called. It comes before databases and brokers are opened, so that probes see the start.
func (s *session) listenAdmin(ctx context.Context, f adminFlags) (stop func(), err error) {
	address, origin := s.cfg.Admin.Listen, s.cfg.Origins()["admin.listen"]
	if f.listen != "" {
		address, origin = f.listen, "--admin-listen"
	}
	profiles := f.pprof || s.cfg.Admin.Pprof
	switch {
	case address == "" && profiles:
		return nil, &Error{Usage, errors.New("--pprof: there is no listener"), "add --admin-listen 127.0.0.1:9090"}
	case address == "":
		return func() {}, nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, &Error{Usage, fmt.Errorf("%s: %w", cmp.Or(origin, "admin.listen"), err), "choose another address with --admin-listen, such as 127.0.0.1:9091; port 0 takes a free one"}
	}
	a := &adminListener{log: s.log, registry: prometheus.NewRegistry()}
	a.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if a.metrics, err = wayprom.New(a.registry); err != nil {
		_ = listener.Close()
		return nil, err
	}
	s.admin = a
	s.log.LogAttrs(ctx, slog.LevelInfo, "health and metrics", slog.String("address", listener.Addr().String()), slog.Bool("pprof", profiles))
	serving, end := context.WithCancel(context.WithoutCancel(ctx)) // probes are answered while the process drains
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := serve(serving, listener, pageServer(a.handler(profiles)), 0); err != nil && serving.Err() == nil {
			s.log.LogAttrs(serving, slog.LevelError, "health and metrics are not served any more", slog.Any("err", err))
		}
	}()
	return func() { end(); <-ended }, nil
}

// handler routes requests.
func (a *adminListener) handler(profiles bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", a.serveHealth)
	mux.HandleFunc("GET /readyz", a.serveReady)
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, ErrorHandling: promhttp.ContinueOnError}))
	if profiles { // without cmdline, which would show a DSN among the arguments
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", http.NotFound)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// serveHealth answers 503 if a relay or worker has not moved. A database or broker that is
// away is no reason to kill the process.
func (a *adminListener) serveHealth(w http.ResponseWriter, _ *http.Request) {
	running := a.started.Load()
	if running == nil {
		answer(w, http.StatusOK, "ok: starting\n")
		return
	}
	if err := running.alive(stuckAfter); err != nil {
		a.log.LogAttrs(context.Background(), slog.LevelError, "not healthy", slog.Any("err", err))
		answer(w, http.StatusServiceUnavailable, visible(err.Error())+"\n")
		return
	}
	answer(w, http.StatusOK, "ok\n")
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // whoever has gone needs no answer
}

// start has probes see the loops of s, which are about to run, until ctx ends.
func (a *adminListener) start(ctx context.Context, s *session) (stop func()) {
	if a == nil {
		return func() {}
	}
	if db, ok := s.opened[s.cfg.Database.Reveal()]; ok {
		a.registry.MustRegister(wayprom.NewCollector(db, s.log))
	}
	a.started.Store(&runningLoops{s.alive, s.parts})
	forget := context.AfterFunc(ctx, func() { a.draining.Store(true) })
	return func() { forget(); a.draining.Store(true) }
}

// adminOf returns the address that `health` asks: that of the file, on this machine.
func adminOf(cfg *config.Config) string {
	host, port, err := net.SplitHostPort(cfg.Admin.Listen)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, port)
}
