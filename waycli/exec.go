package waycli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
)

// exitUnrecoverable is EX_DATAERR of sysexits.h.
const exitUnrecoverable = 65

const (
	// markTimeout bounds the insertion of an inbox entry.
	markTimeout = 5 * time.Second
	// leftoverWait is how long a command's output is read after its end, when one of
	// its child processes holds it open.
	leftoverWait = time.Second
)

// An execHandler handles a message by running a command.
type execHandler struct {
	command   string
	handler   string // in the inbox
	transport string
	log       inbox.Log
	retention time.Duration
	stdout    io.Writer
	stderr    io.Writer
	last      *lastActs
	reaper    *reaper  // may be nil
	running   sync.Map // of dedup keys, with a channel that is closed when the command has ended
}

// newExecBus returns a bus on which x handles the messages of names.
func newExecBus(x *execHandler, names []string) (bus *waybill.Bus, err error) {
	if x.handler == "" {
		// A message routed to two transports is handled on both.
		x.handler = "exec:" + x.transport
	}
	if strings.ContainsAny(x.handler, ",\x00") || len(x.handler) > 190 {
		return nil, &Error{Usage, fmt.Errorf("--handler: %q is no name for a handler", x.handler), "use at most 190 bytes without commas"}
	}
	bus = waybill.NewBus("exec")
	for _, name := range names {
		waybill.HandleRaw(bus, x.handler, name, x.handle)
	}
	return bus, nil
}

// handle runs the command, unless the inbox has an entry of its success. The entry
// is inserted after the command: at least once.
func (x *execHandler) handle(ctx context.Context, m waybill.RawMessage) error {
	env := waybill.EnvelopeFrom(ctx)
	entry, err := inbox.EntryFor(x.handler, env, x.retention)
	if err != nil {
		return err
	}
	done, err := x.alone(ctx, entry.DedupKey)
	if err != nil {
		return err
	}
	defer done()
	seen, err := x.log.Contains(ctx, entry)
	if err != nil {
		return fmt.Errorf("inbox: %w", err)
	}
	if seen {
		waybill.Report(ctx, waybill.Event{Kind: waybill.Duplicate, ID: entry.MessageID, Name: m.Name, Key: m.Key, Transport: x.transport, Handler: x.handler})
		return waybill.ErrDuplicate
	}
	if err := x.run(ctx, env, m); err != nil {
		return err
	}
	// The effect has happened, so its entry is inserted also after ctx has ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), markTimeout)
	defer cancel()
	if err := x.log.Insert(ctx, entry); err != nil {
		return fmt.Errorf("the command succeeded, but the inbox does not know: %w", err)
	}
	return nil
}

// alone waits until no other copy of the message is handled. A relay that was killed leaves
// copies next to each other, which without a key would be handled side by side.
func (x *execHandler) alone(ctx context.Context, key string) (done func(), err error) {
	ended := make(chan struct{})
	for {
		other, taken := x.running.LoadOrStore(key, ended)
		if !taken {
			return func() { x.running.Delete(key); close(ended) }, nil
		}
		select {
		case <-other.(chan struct{}):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (x *execHandler) run(ctx context.Context, env *waybill.Envelope, m waybill.RawMessage) error {
	id, _ := waybill.Last[waybill.MessageID](env)
	attempt, _ := waybill.Last[waybill.Redelivery](env)
	cmd, goAhead, err := shellCommand(ctx, x.command)
	if err != nil {
		return fmt.Errorf("command: %w", err)
	}
	defer goAhead() // closes its pipe if the command does not start
	cmd.Stdin = bytes.NewReader(m.Body)
	cmd.Env = append(os.Environ(),
		"WAYBILL_MESSAGE_ID="+id.String(),
		"WAYBILL_MESSAGE_NAME="+m.Name,
		"WAYBILL_PARTITION_KEY="+m.Key,
		"WAYBILL_ATTEMPT="+strconv.Itoa(attempt.Failures+1),
		"WAYBILL_TRANSPORT="+x.transport,
	)
	cmd.Env = append(cmd.Env, headersOf(env)...)
	stdout := &lineWriter{w: x.stdout}
	stderr := &lineWriter{w: x.stderr, prefix: m.Name + " " + id.String() + ": "}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.WaitDelay = leftoverWait
	forget, err := x.last.during(cmd.Start, func() { _ = cmd.Cancel() })
	if err == nil {
		ended := x.reaper.begun(cmd)
		goAhead()
		err = cmd.Wait()
		ended()
		forget()
	}
	stdout.flush()
	stderr.flush()
	var status *exec.ExitError
	switch {
	case err == nil, cmd.ProcessState != nil && cmd.ProcessState.Success():
		return nil // in the second case only its output was not read to the end
	case ctx.Err() != nil:
		return fmt.Errorf("command killed: %w", context.Cause(ctx))
	}
	if stderr.last != "" { // it tells apart what an exit code does not
		err = fmt.Errorf("%w: %s", err, stderr.last)
	}
	if errors.As(err, &status) && status.ExitCode() == exitUnrecoverable {
		return waybill.Unrecoverable(fmt.Errorf("command: %w", err))
	}
	return fmt.Errorf("command: %w", err)
}

// headersOf returns the headers of env as environment variables. Of two names
// that become one variable the one that sorts last counts.
func headersOf(env *waybill.Envelope) []string {
	headers := env.Headers()
	if key, ok := waybill.Last[waybill.IdempotencyKey](env); ok {
		headers[waybill.HeaderIdempotencyKey] = string(key)
	}
	if id, ok := waybill.Last[waybill.CorrelationID](env); ok {
		headers[waybill.HeaderCorrelationID] = string(id)
	}
	if id, ok := waybill.Last[waybill.CausationID](env); ok {
		headers[waybill.HeaderCausationID] = string(id)
	}
	vars := make([]string, 0, len(headers))
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		vars = append(vars, "WAYBILL_HEADER_"+variable(name)+"="+headers[name])
	}
	return vars
}

// variable returns name in upper case with _ for characters that a shell refuses.
func variable(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, name)
}

// commandOutput returns the writer for the stdout of commands: with --json, stdout
// holds only the JSON of waycli.
func (s *session) commandOutput() io.Writer {
	if s.flags.json {
		return s.stderr
	}
	return s.stdout
}
