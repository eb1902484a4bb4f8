//go:build unix

package waycli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
)

// memoryLog is an inbox.Log that fails with err if it is set.
type memoryLog struct {
	mu   sync.Mutex
	seen map[inbox.Entry]bool // guarded by mu
	err  error
}

func (l *memoryLog) Contains(_ context.Context, e inbox.Entry) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen[e], nil
}

func (l *memoryLog) Insert(ctx context.Context, e inbox.Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	l.seen[e] = true
	return ctx.Err()
}

// A run is an execHandler and its output.
type execRun struct {
	*execHandler
	bus            *waybill.Bus
	log            *memoryLog
	stdout, stderr bytes.Buffer
	rec            *waybill.Record
}

func newExecRun(t *testing.T, command string) *execRun {
	t.Helper()
	id, err := waybill.NewMessageID()
	if err != nil {
		t.Fatal(err)
	}
	r := &execRun{log: &memoryLog{seen: map[inbox.Entry]bool{}}}
	r.rec = &waybill.Record{ID: id, Name: "order.placed", Body: []byte("{}"), DispatchedAt: time.Now()}
	r.execHandler = &execHandler{command: command, transport: "orders", log: r.log, retention: time.Hour, stdout: &r.stdout, stderr: &r.stderr}
	if r.bus, err = newExecBus(r.execHandler, []string{"order.placed"}); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *execRun) handle(ctx context.Context) error {
	return r.bus.HandleRecord(ctx, r.rec, "orders", 0)
}

func TestExecRunsOnceForOneMessage(t *testing.T) {
	r, seen := newExecRun(t, "echo ran"), newCounts("orders")
	for range 2 {
		if err := r.handle(waybill.WithObserver(t.Context(), seen)); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.stdout.String(); got != "ran\n" || seen.total().duplicates != 1 {
		t.Errorf("stdout %q with %d duplicates, want one run and one duplicate", got, seen.total().duplicates)
	}
}

// A relay that is killed leaves copies next to each other, and without a key a worker handles
// them at the same time.
func TestExecRunsOnceForCopiesSideBySide(t *testing.T) {
	r, seen := newExecRun(t, "sleep 0.2; echo ran"), newCounts("orders")
	errs := make(chan error, 3)
	for range cap(errs) {
		go func() { errs <- r.handle(waybill.WithObserver(t.Context(), seen)) }()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if got := r.stdout.String(); got != "ran\n" || seen.total().duplicates != 2 {
		t.Errorf("stdout %q with %d duplicates, want one run and two duplicates", got, seen.total().duplicates)
	}
}

func TestExecFailureIsNotRemembered(t *testing.T) {
	r := newExecRun(t, "exit 75")
	if err := r.handle(t.Context()); err == nil || waybill.IsUnrecoverable(err) {
		t.Errorf("handle = %v, want an error that a retry may mend", err)
	}
	if len(r.log.seen) != 0 {
		t.Errorf("the inbox remembers %v", r.log.seen)
	}
}

func TestExecExit65IsUnrecoverable(t *testing.T) {
	if err := newExecRun(t, "exit 65").handle(t.Context()); !waybill.IsUnrecoverable(err) {
		t.Errorf("handle = %v, want an unrecoverable error", err)
	}
}

func TestExecFailsWhenTheInboxCannotRemember(t *testing.T) {
	r := newExecRun(t, "true")
	r.log.err = waybill.ErrUnavailable
	if err := r.handle(t.Context()); !errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("handle = %v, want ErrUnavailable: the message must come again", err)
	}
}

func TestExecRemembersAnEffectThatOutlastedItsContext(t *testing.T) {
	// The context ends during the wait for a command that has succeeded: its effect
	// has happened.
	ctx, cancel := context.WithCancel(t.Context())
	r := newExecRun(t, "true")
	r.execHandler.stdout = writerFunc(func([]byte) { cancel() })
	r.execHandler.command = "echo done"
	if err := r.handle(ctx); err == nil && len(r.log.seen) != 1 {
		t.Error("handled, but the inbox does not know")
	}
}

func TestExecDoesNotWaitForWhatTheCommandLeftBehind(t *testing.T) {
	r := newExecRun(t, "sleep 30 & echo done")
	start := time.Now()
	if err := r.handle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	if r.stdout.String() != "done\n" {
		t.Errorf("stdout %q, want done", r.stdout.String())
	}
}

func TestExecTakesACommandThatReadsNothing(t *testing.T) {
	r := newExecRun(t, "true")
	r.rec.Body = []byte(`"` + strings.Repeat("x", 1<<19) + `"`)
	if err := r.handle(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestExecKillsTheProcessGroupWithItsContext(t *testing.T) {
	life := filepath.Join(t.TempDir(), "life")
	if err := syscall.Mkfifo(life, 0o600); err != nil {
		t.Fatal(err)
	}
	r := newExecRun(t, "sleep 60 >"+life+" & wait")
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		child, err := os.Open(life) // waits for the child
		cancel(waybill.ErrLeaseLost)
		if err == nil {
			_, err = io.ReadAll(child) // until nobody has it open
		}
		ended <- err
	}()
	if err := r.handle(ctx); !errors.Is(err, waybill.ErrLeaseLost) {
		t.Errorf("handle = %v, want the cause of the context's end", err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("a child of the command survived")
	}
}

func TestExecPassesHeadersAndTheIdempotencyKey(t *testing.T) {
	r := newExecRun(t, "env | grep ^WAYBILL_HEADER | sort")
	r.rec.Headers = map[string]string{"tenant-id": "größe=1", waybill.HeaderIdempotencyKey: "payment-42", waybill.HeaderHandledBy: "other"}
	if err := r.handle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := r.stdout.String(), "WAYBILL_HEADER_TENANT_ID=größe=1\nWAYBILL_HEADER_X_IDEMPOTENCY_KEY=payment-42\n"; got != want {
		t.Errorf("headers %q, want %q", got, want)
	}
	if !r.log.seen[inbox.Entry{Handler: "exec:orders", DedupKey: "k:order.placed/payment-42", MessageID: r.rec.ID}] {
		t.Errorf("the inbox remembers %v", r.log.seen)
	}
}

func TestExecHandlerNameIsChecked(t *testing.T) {
	if _, err := newExecBus(&execHandler{handler: "a,b"}, nil); ExitCode(err) != 2 {
		t.Errorf("newExecBus = %v, want a usage error", err)
	}
}
