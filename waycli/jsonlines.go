package waycli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/waybill-go/waybill"
)

const (
	defaultBatch  = 500     // lines of one transaction
	maxJSONLine   = 8 << 20 // room for an escaped body of 1 MiB and its headers
	maxBatchBytes = 8 << 20 // of the bodies of one transaction
)

// dispatchFile dispatches the messages of a file, batch by batch.
func (s *session) dispatchFile(ctx context.Context, f dispatchFlags) error {
	d, err := s.newDispatcher(ctx, f.to)
	if err != nil {
		return err
	}
	var from io.Reader = cancelReader{ctx, s.stdin}
	if f.from != "-" {
		file, err := os.Open(f.from)
		if err != nil {
			return &Error{Usage, fmt.Errorf("--from: %w", err), ""}
		}
		defer func() { _ = file.Close() }() // only read
		from = file
	}
	in := newJSONLines(from)
	var done atomic.Int64
	stop := s.showProgress(progress{message: "dispatching", verb: "dispatched", done: func() int { return int(done.Load()) }})
	defer stop()
	committed := 0 // lines of committed batches
	for {
		batch, err := d.readBatch(in, f.batch)
		if err != nil {
			return s.stoppedAt(f, in.number, committed, err)
		}
		if len(batch) == 0 {
			break
		}
		if err := d.commit(ctx, batch...); err != nil {
			return s.notCommitted(f, committed, in.number, batch, err)
		}
		committed = in.number
		done.Add(int64(len(batch)))
	}
	stop()
	s.say("%s dispatched", plural(int(done.Load()), "message"))
	return nil
}

func (d *dispatcher) readBatch(in *jsonLines, lines int) ([]prepared, error) {
	var batch []prepared
	size := 0
	for len(batch) < lines && size < maxBatchBytes {
		m, err := in.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		p, err := d.prepare(m)
		if err != nil {
			return nil, err
		}
		size += p.bytes
		batch = append(batch, p)
	}
	return batch, nil
}

// stoppedAt is the error of a line that cannot be dispatched.
func (s *session) stoppedAt(f dispatchFlags, line, committed int, err error) error {
	if errors.Is(err, context.Canceled) {
		return s.stopped(f, committed, errInterrupted, "")
	}
	hint, kind := hintOf(err, s.app.Name), Usage
	if unread := (*fs.PathError)(nil); errors.As(err, &unread) {
		kind = 0
	}
	return s.stopped(f, committed, &Error{kind, fmt.Errorf("%s:%d: %w", nameOf(f.from), line, err), ""}, hint)
}

// notCommitted is the error of a batch whose transaction failed, or whose commit is
// unknown: then one id of the batch tells whether all of it was dispatched.
func (s *session) notCommitted(f dispatchFlags, committed, last int, batch []prepared, err error) error {
	lines := fmt.Sprintf("%s: lines %d to %d", nameOf(f.from), committed+1, last)
	var unknown *waybill.CommitUnknownError
	if !errors.As(err, &unknown) {
		return s.stopped(f, committed, fmt.Errorf("%s were not dispatched: %w", lines, err), hintOf(err, s.app.Name))
	}
	err = fmt.Errorf("%s: all or none of them were dispatched (ids %s to %s): %w: %w", lines, batch[0].id, batch[len(batch)-1].id, waybill.ErrCommitUnknown, unknown.Err)
	return &Error{Partial, err, fmt.Sprintf("look first whether %s is in `%s outbox list` or has arrived; if so, resume from line %d: %s; if not, from line %d: %s",
		batch[0].id, s.app.Name, last+1, s.resume(f, last+1), committed+1, s.resume(f, committed+1))}
}

// stopped adds to err the number of dispatched lines, and how to continue.
func (s *session) stopped(f dispatchFlags, committed int, err error, hint string) error {
	if committed == 0 {
		var own *Error
		kind := Kind(0)
		if errors.As(err, &own) {
			kind = own.Kind
		}
		return &Error{kind, err, joined(hint, "nothing was dispatched")}
	}
	return &Error{Partial, err, joined(hint, fmt.Sprintf("lines 1 to %d were dispatched; resume from line %d: %s", committed, committed+1, s.resume(f, committed+1)))}
}

// resume is the command that dispatches the lines of a file from a number on, to the same place.
func (s *session) resume(f dispatchFlags, line int) string {
	file := f.from
	if file == "-" {
		file = "THE INPUT"
	}
	command := fmt.Sprintf("tail -n +%d %s | %s dispatch --from -", line, file, s.app.Name)
	if f.to != "" {
		command += " --to " + f.to
	}
	if s.flags.config != "" {
		command += " --config " + s.flags.config
	}
	if s.flags.database != "" {
		command += " --database DSN" // which may have a password
	}
	if f.batch != defaultBatch {
		command += fmt.Sprintf(" --batch %d", f.batch)
	}
	return command
}

func joined(parts ...string) string {
	return strings.Trim(strings.Join(parts, "; "), "; ")
}

func nameOf(file string) string {
	if file == "-" {
		return "standard input"
	}
	return file
}

// jsonLines reads messages, one a line. Blank lines are passed over.
type jsonLines struct {
	in     *bufio.Scanner
	number int // of the last line read
}

func newJSONLines(r io.Reader) *jsonLines {
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 0, 64<<10), maxJSONLine)
	return &jsonLines{in: in}
}

// next returns the message of the next line, or io.EOF.
func (l *jsonLines) next() (message, error) {
	for l.in.Scan() {
		l.number++
		if line := bytes.TrimSpace(l.in.Bytes()); len(line) > 0 {
			return parseMessage(line)
		}
	}
	err := l.in.Err()
	if errors.Is(err, bufio.ErrTooLong) {
		l.number++
		err = fmt.Errorf("the line is longer than %d bytes", maxJSONLine)
	}
	return message{}, cmp.Or(err, io.EOF)
}

// parseMessage parses one line. Errors quote no values: these may be of the body.
func parseMessage(line []byte) (message, error) {
	var m message
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		var syntax *json.SyntaxError
		var typ *json.UnmarshalTypeError
		switch {
		case errors.As(err, &syntax):
			return m, fmt.Errorf("it is not JSON: %w at byte %d", err, syntax.Offset)
		case errors.Is(err, io.ErrUnexpectedEOF):
			return m, errors.New("it is not JSON: it ends too early")
		case errors.As(err, &typ) && typ.Field == "":
			return m, fmt.Errorf("want an object, got %s", article(typ.Value))
		case errors.As(err, &typ):
			return m, fmt.Errorf("field %q is %s, want %s", typ.Field, article(typ.Value), jsonKind(typ.Field))
		}
		return m, &Error{0, errors.New(strings.TrimPrefix(err.Error(), "json: ")), "fields: name, key, body, headers, id, delay"}
	}
	if dec.InputOffset() < int64(len(line)) {
		return m, errors.New("there is more behind the object: one message a line")
	}
	if strings.ContainsRune(m.Name+m.Key, utf8.RuneError) {
		return m, errors.New("its name or key contains U+FFFD, which stands for what was not Unicode")
	}
	return m, checkFields(line)
}

// checkFields refuses input that encoding/json accepts and a different parser would
// read differently: text that is not UTF-8, duplicate fields, field names in different
// case. The line is an object.
func checkFields(line []byte) error {
	if !utf8.Valid(line) {
		return errors.New("it is not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(line))
	_, err := dec.Token() // {
	seen := map[string]bool{}
	for err == nil && dec.More() {
		var field json.Token
		if field, err = dec.Token(); err != nil {
			break
		}
		name, _ := field.(string)
		switch {
		case strings.ToLower(name) != name:
			return fmt.Errorf("field %q: fields are in lower case", name)
		case seen[name]:
			return fmt.Errorf("field %q is there twice", name)
		}
		seen[name] = true
		var value json.RawMessage
		err = dec.Decode(&value)
	}
	return err
}

func jsonKind(field string) string {
	if field == "headers" {
		return "an object of strings"
	}
	return "a string"
}

func article(noun string) string {
	if strings.ContainsAny(noun[:1], "aeiou") {
		return "an " + noun
	}
	return "a " + noun
}
