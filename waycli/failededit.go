package waycli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/headers"
)

func (c *cli) failedEditCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "edit NUMBER",
		Short: "Change the body of a dead letter, before a retry",
		Long: `Change the body of a dead letter in $VISUAL or $EDITOR, or to that of --body-file;
"failed retry" then dispatches it. A JSON message takes valid JSON only. The
body before the change is kept in the audit (waybill_audit).

A handler that has handled the message is not run for the changed one: its id stays.

With --json: {"number", "edited"}; edited is false if the editor left the body as
it was.`,
		Example: `  waybill failed edit 17
  waybill failed edit 17 --body-file mended.json`,
		Args: cobra.ExactArgs(1),
		RunE: c.run(func(ctx context.Context, s *session, args []string) error { return s.failedEdit(ctx, args, file) }),
	}
	cmd.Flags().StringVar(&file, "body-file", "", "file with the new body; - is the standard input")
	return cmd
}

func (s *session) failedEdit(ctx context.Context, args []string, file string) error {
	numbers, err := failedNumbers(args)
	if err != nil {
		return err
	}
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	m, err := s.oneFailed(ctx, db, numbers[0])
	if err == nil {
		err = s.checkChangeable(m)
	}
	if err != nil {
		return err
	}
	content, err := db.FailedContent(ctx, m.Number)
	if err != nil {
		return err
	}
	body, err := s.newBody(ctx, content, file)
	if err != nil {
		return err
	}
	edited := !bytes.Equal(body, content.Body)
	if edited {
		err = db.EditFailed(ctx, m.Number, content.Body, body)
		if errors.Is(err, admin.ErrChanged) {
			return &Error{Refused, err, fmt.Sprintf("`%s failed show %d` shows it as it is now", s.app.Name, m.Number)}
		}
	}
	switch {
	case err != nil:
		return err
	case s.flags.json:
		s.stdout.json(struct {
			Number int64 `json:"number"`
			Edited bool  `json:"edited"`
		}{m.Number, edited})
	case !edited:
		s.stdout.line("message %d: its body has not changed", m.Number)
	default:
		s.stdout.line("message %d edited: `%s failed retry %d` dispatches it", m.Number, s.app.Name, m.Number)
	}
	return nil
}

// newBody returns the body of file, or from an editor.
func (s *session) newBody(ctx context.Context, content admin.FailedContent, file string) (body []byte, err error) {
	isJSON := jsonContent(content)
	switch {
	case file == "-":
		body, err = io.ReadAll(cancelReader{ctx, s.stdin})
	case file != "":
		body, err = os.ReadFile(file)
	default:
		return s.editBody(ctx, content.Body, isJSON)
	}
	if err != nil {
		return nil, &Error{Usage, fmt.Errorf("--body-file: %w", err), ""}
	}
	return body, checkBody(body, isJSON, "mend it, and give it again")
}

// jsonContent reports whether the body of a message is JSON.
func jsonContent(content admin.FailedContent) bool {
	var rec waybill.Record
	if headers.Decode(&rec, string(content.Headers)) != nil {
		return false // the content type is unknown
	}
	kind, _, err := mime.ParseMediaType(rec.ContentType)
	return err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json"))
}

func checkBody(body []byte, isJSON bool, hint string) error {
	var v json.RawMessage
	if !isJSON {
		return nil
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return &Error{Usage, fmt.Errorf("the new body is not JSON: %w", err), hint}
	}
	return nil
}

// editBody returns what an editor makes of body. A result that is refused is kept.
func (s *session) editBody(ctx context.Context, body []byte, isJSON bool) (edited []byte, err error) {
	editor := strings.Fields(cmp.Or(os.Getenv("VISUAL"), os.Getenv("EDITOR")))
	if len(editor) == 0 {
		return nil, &Error{Usage, errors.New("no editor: neither VISUAL nor EDITOR is set"), "set EDITOR, or give the new body with --body-file"}
	}
	name, err := temporary(body, isJSON)
	if err != nil {
		return nil, err
	}
	kept := false
	defer func() {
		if !kept {
			_ = os.Remove(name)
		}
	}()
	cmd := exec.CommandContext(ctx, editor[0], append(editor[1:], name)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.stdin, s.stderr, s.stderr
	if isTerminal(s.stdin) {
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr // an editor wants the terminal itself
	}
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("editor %s: %w: nothing was changed", editor[0], err)
	}
	if edited, err = os.ReadFile(name); err != nil {
		return nil, err
	}
	err = checkBody(edited, isJSON, "it is kept: mend it, and give it with --body-file "+name)
	kept = err != nil
	return edited, err
}

// temporary writes body to a file that only this user can read.
func temporary(body []byte, isJSON bool) (name string, err error) {
	pattern := "waybill-*.txt"
	if isJSON {
		pattern = "waybill-*.json"
	}
	file, err := os.CreateTemp("", pattern)
	if err != nil {
		return "", err
	}
	_, err = file.Write(body)
	if err = errors.Join(err, file.Close()); err != nil {
		_ = os.Remove(file.Name())
		return "", err
	}
	return file.Name(), nil
}
