package waycli

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
)

func (c *cli) failedShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show NUMBER",
		Short: "Show one dead letter: headers, body, and every attempt of a worker",
		Long: `Show one dead letter by its number in "failed list": headers, body, and every
failed attempt of workers with its time, process, error and stack (of a panic).

With --json: what "failed list" has, "headers", "body", or "body_base64" where the
body is no text, and "attempts": [{"attempt", "at", "worker", "handler",
"error_type", "error", "stack", "fingerprint"}].`,
		Example: "  waybill failed show 17",
		Args:    cobra.ExactArgs(1),
		RunE:    c.run(func(ctx context.Context, s *session, args []string) error { return s.failedShow(ctx, args) }),
	}
}

// failedShown is the JSON output of failed show.
type failedShown struct {
	admin.FailedMessage
	Headers  json.RawMessage       `json:"headers"`
	Text     *string               `json:"body,omitempty"`
	Bytes    []byte                `json:"body_base64,omitempty"`
	Attempts []admin.FailedAttempt `json:"attempts,omitempty"`
}

func (s *session) failedShow(ctx context.Context, args []string) error {
	numbers, err := failedNumbers(args)
	if err != nil {
		return err
	}
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	m, err := s.oneFailed(ctx, db, numbers[0])
	if err != nil {
		return err
	}
	content, err := db.FailedContent(ctx, numbers[0])
	if err != nil {
		return err
	}
	var attempts []admin.FailedAttempt
	if m.Source == admin.FromWorker {
		if attempts, err = db.FailedAttempts(ctx, m.Transport, m.ID); err != nil {
			return err
		}
	}
	if s.flags.json {
		shown := failedShown{FailedMessage: m, Headers: content.Headers, Attempts: attempts}
		if text := string(content.Body); utf8.ValidString(text) {
			shown.Text = &text
		} else {
			shown.Bytes = content.Body
		}
		s.stdout.json(shown)
		return nil
	}
	s.showFailed(m, content)
	s.showAttempts(attempts)
	return nil
}

func (s *session) showFailed(m admin.FailedMessage, content admin.FailedContent) {
	rows := [][]any{
		{"state", m.State}, {"transport", m.Transport}, {"name", m.Name}, {"key", m.Key}, {"id", m.ID},
		{"created", m.CreatedAt.Format(time.RFC3339)}, {"failed", m.FailedAt.Format(time.RFC3339)}, {"failures", m.Failures},
	}
	if m.RemovedAt != nil {
		rows = append(rows, []any{"removed", m.RemovedAt.Format(time.RFC3339)})
	}
	if m.Source == admin.FromWorker {
		rows = append(rows, []any{"failure transport", m.FailureTransport}, []any{"handler", m.Handler}, []any{"error type", m.ErrorType}, []any{"fingerprint", m.Fingerprint})
	}
	rows = append(rows, []any{"error", m.LastError}, []any{"headers", string(content.Headers)}, []any{"body", string(content.Body)})
	s.stdout.table([]string{"NUMBER", strconv.FormatInt(m.Number, 10)}, rows)
}

func (s *session) showAttempts(attempts []admin.FailedAttempt) {
	if len(attempts) == 0 {
		return
	}
	s.stdout.line("")
	tableOf(s.stdout, []string{"ATTEMPT", "AT", "WORKER", "HANDLER", "TYPE", "ERROR"}, attempts, func(a admin.FailedAttempt) []any {
		return []any{a.Attempt, a.At.Format(time.RFC3339), a.Worker, a.Handler, a.ErrorType, a.Error}
	})
	for _, a := range attempts {
		if a.Stack == "" {
			continue
		}
		s.stdout.line("\nStack of attempt %d", a.Attempt)
		for line := range strings.Lines(a.Stack) {
			s.stdout.line("  %s", visible(strings.ReplaceAll(strings.TrimRight(line, "\r\n"), "\t", "    ")))
		}
	}
}
