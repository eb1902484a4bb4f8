package waycli

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/outbox"
)

// A committing database is one whose commits end with the given errors, in turn.
type committing struct {
	Database
	ends  []error
	sizes []int // messages of each commit
	ids   []waybill.MessageID
}

func (c *committing) Dispatcher(outbox.Config) (Dispatch, error) {
	return func(_ context.Context, msgs ...any) ([]waybill.MessageID, error) {
		c.sizes = append(c.sizes, len(msgs))
		c.ids = nil
		for _, m := range msgs {
			id, _ := waybill.Last[waybill.MessageID](m.(*waybill.Envelope))
			c.ids = append(c.ids, id)
		}
		var err error
		if len(c.ends) > 0 {
			err, c.ends = c.ends[0], c.ends[1:]
		}
		return c.ids, err
	}, nil
}

// dispatchLines dispatches lines from standard input, and returns the error with its
// hint as one text.
func dispatchLines(t *testing.T, db *committing, lines, batch int, body string) (code int, printed string) {
	t.Helper()
	cfg, err := config.Parse("", []byte("messages: {order.placed: {}}\ntransports: {events: {dsn: 'amqp://h/?exchange=e'}}"), nil)
	if err != nil {
		t.Fatal(err)
	}
	in := strings.NewReader(strings.Repeat(`{"name":"order.placed","body":"`+body+"\"}\n", lines))
	var stdout, stderr bytes.Buffer
	s := &session{
		app: App{Name: "shop"}, cfg: cfg, stdin: in, stdout: &output{w: &stdout}, stderr: newScreen(&stderr),
		opened: map[string]Database{cfg.Database.Reveal(): db}, log: slog.New(slog.DiscardHandler),
	}
	if err = s.dispatchFile(t.Context(), dispatchFlags{from: "-", batch: batch}); err != nil {
		PrintError(&stderr, "shop", err, false)
	}
	return ExitCode(err), stderr.String()
}

// Whoever is told that nothing was dispatched sends all of it again, under new ids.
func TestUnknownCommitOfAFileIsAPartThatMayBeThere(t *testing.T) {
	unknown := &waybill.CommitUnknownError{Err: errors.New("connection reset")}
	for name, tt := range map[string]struct {
		ends     []error
		lines    string
		from, to string
	}{
		"first batch":  {[]error{unknown}, "lines 1 to 2", "line 3: tail -n +3 THE INPUT | shop dispatch --from -", "line 1: tail -n +1 THE INPUT"},
		"second batch": {[]error{nil, unknown}, "lines 3 to 4", "line 5: tail -n +5 THE INPUT", "line 3: tail -n +3 THE INPUT"},
	} {
		t.Run(name, func(t *testing.T) {
			db := &committing{ends: tt.ends}
			code, printed := dispatchLines(t, db, 5, 2, "x")
			if code != 5 {
				t.Errorf("exit code %d, want 5", code)
			}
			for _, want := range []string{
				tt.lines + ": all or none of them were dispatched (ids " + db.ids[0].String() + " to " + db.ids[1].String() + ")", "connection reset",
				"look first whether " + db.ids[0].String(), "if so, resume from " + tt.from, "if not, from " + tt.to,
			} {
				if !strings.Contains(printed, want) {
					t.Errorf("it lacks %q:\n%s", want, printed)
				}
			}
			if strings.Contains(printed, "nothing was dispatched") {
				t.Errorf("it says that nothing was dispatched:\n%s", printed)
			}
		})
	}
}

func TestFailedCommitOfAFileSaysWhereToResume(t *testing.T) {
	failed := errors.New("disk full")
	if code, printed := dispatchLines(t, &committing{ends: []error{failed}}, 5, 2, "x"); code != 1 || !strings.Contains(printed, "lines 1 to 2 were not dispatched: disk full\nhint: nothing was dispatched") {
		t.Errorf("code %d:\n%s", code, printed)
	}
	if code, printed := dispatchLines(t, &committing{ends: []error{nil, failed}}, 5, 2, "x"); code != 5 || !strings.Contains(printed, "lines 1 to 2 were dispatched; resume from line 3: tail -n +3 THE INPUT | shop dispatch --from -") {
		t.Errorf("code %d:\n%s", code, printed)
	}
}

// The rest of a file goes where its beginning went.
func TestResumeKeepsTheFlags(t *testing.T) {
	s := &session{app: App{Name: "shop"}, flags: flags{config: "other.yaml", database: "mysql://u:secret@db/shop"}}
	got := s.resume(dispatchFlags{from: "in.jsonl", to: "partners", batch: 1}, 2)
	if want := "tail -n +2 in.jsonl | shop dispatch --from - --to partners --config other.yaml --database DSN --batch 1"; got != want {
		t.Errorf("resume with %s, want %s", got, want)
	}
	if got := s.resume(dispatchFlags{from: "-", batch: defaultBatch}, 2); strings.Contains(got, "--batch") {
		t.Errorf("resume with %s", got)
	}
}

func TestWrongLineIsAMistakeOfTheUser(t *testing.T) {
	if code, printed := dispatchLines(t, &committing{}, 1, 500, `"`); code != 2 || !strings.Contains(printed, "standard input:1: ") {
		t.Errorf("exit code %d, want 2:\n%s", code, printed)
	}
}

func TestBatchOfAFileIsBoundedByBytes(t *testing.T) {
	db := &committing{}
	if code, printed := dispatchLines(t, db, 20, 500, strings.Repeat("x", 1<<20-10)); code != 0 {
		t.Fatalf("code %d:\n%s", code, printed)
	}
	if len(db.sizes) != 3 || db.sizes[0] != 9 || db.sizes[2] != 2 {
		t.Errorf("20 bodies of a MiB came in commits of %v, want 9, 9 and 2", db.sizes)
	}
}
