package dashboard

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/headers"
)

// messageView is the data of the page of one dead letter.
type messageView struct {
	admin.FailedMessage
	Content    contentView
	Attempts   []admin.FailedAttempt
	Causation  *causationView // nil if nothing can be known
	Timeline   []event
	Command    string // dispatches it once more; empty if it cannot be written
	Changeable bool
	Pretty     bool // of Content, which the address asks for
}

// An event is a line of a timeline.
type event struct {
	At   time.Time
	What string
	More string
}

// contentView is the part of a content that a user may see.
type contentView struct {
	Hidden  string // why nothing is shown
	Headers [][2]string
	Body    string // as it is, or as hexadecimal dump if it is no text
	Pretty  string // indented JSON; empty for another body
	Whole   bool   // whether Body is the body itself
	Text    bool
}

func (d *Dashboard) messagePage(r *request) error {
	v, err := d.readMessage(r)
	if err != nil {
		return err
	}
	return d.page(r, "message", fmt.Sprintf("Dead letter %d", v.Number), v)
}

func (d *Dashboard) readMessage(r *request) (v messageView, err error) {
	if v.FailedMessage, err = d.oneFailed(r); err != nil {
		return v, err
	}
	ctx := r.Context()
	if v.Attempts, err = d.attempts(ctx, v.FailedMessage); err != nil {
		return v, err
	}
	entries, err := d.lookup(ctx, v.ID.String())
	if err != nil {
		return v, err
	}
	waiting, err := d.waitingRetry(ctx, v.FailedMessage)
	if err != nil {
		return v, err
	}
	v.Timeline = timeline(v.FailedMessage, v.Attempts, entries, waiting)
	v.Changeable = changeable(v.FailedMessage)
	content, hidden, err := d.content(ctx, r.who, v.FailedMessage)
	if err != nil {
		return v, err
	}
	v.Content = d.show(content, hidden)
	if v.Causation, err = d.causation(ctx, r.who, v.ID); err != nil {
		return v, err
	}
	v.Causation.from(v.Content.Headers)
	if v.Content.Whole && v.Content.Text {
		v.Command = dispatchCommand(d.cfg.Command, v.FailedMessage, v.Content)
	}
	return v, nil
}

// content returns the content of m, or why the user cannot see it.
func (d *Dashboard) content(ctx context.Context, user who, m admin.FailedMessage) (c admin.FailedContent, hidden string, err error) {
	switch {
	case !user.Bodies:
		return c, "You have no right to see bodies and headers.", nil
	case m.State == admin.Removed:
		return c, "It was removed for good.", nil
	}
	c, err = d.db.FailedContent(ctx, m.Number)
	return c, "", err
}

// show makes content readable, without the parts that the rules hide.
func (d *Dashboard) show(c admin.FailedContent, hidden string) contentView {
	if hidden != "" {
		return contentView{Hidden: hidden}
	}
	var rec waybill.Record
	v := contentView{}
	if headers.Decode(&rec, string(c.Headers)) != nil {
		v.Headers = append(v.Headers, [2]string{"(unreadable)", "the headers are no JSON object of texts"})
	}
	for _, name := range slices.Sorted(maps.Keys(rec.Headers)) {
		v.Headers = append(v.Headers, [2]string{name, d.cfg.Redact.header(name, rec.Headers[name])})
	}
	v.Headers = append(v.Headers, [2]string{"content-type", rec.ContentType})
	shown, whole := d.cfg.Redact.body(c.Body)
	if shown == nil && !whole {
		v.Body = "The body is no JSON, and fields of bodies are hidden here."
		return v
	}
	v.Whole, v.Text = whole, utf8.Valid(shown) && !bytes.ContainsRune(shown, 0)
	if !v.Text {
		v.Body = hex.Dump(shown)
		return v
	}
	v.Body = string(shown)
	var pretty bytes.Buffer
	if json.Indent(&pretty, shown, "", "  ") == nil {
		v.Pretty = pretty.String()
	}
	return v
}

// isJSON reports whether the body of a message is to be JSON.
func isJSON(c admin.FailedContent) bool {
	var rec waybill.Record
	if headers.Decode(&rec, string(c.Headers)) != nil {
		return false // the content type is unknown
	}
	kind, _, err := mime.ParseMediaType(rec.ContentType)
	return err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json"))
}

// waitingRetry returns the row of m in a retry queue, if it has one.
func (d *Dashboard) waitingRetry(ctx context.Context, m admin.FailedMessage) (*admin.RetryingMessage, error) {
	if m.State != admin.Retrying {
		return nil, nil
	}
	found, err := d.db.Retries(ctx, admin.RetriesQuery{Transport: m.Transport, Key: m.Key, Limit: maxPage})
	if i := slices.IndexFunc(found, func(q admin.RetryingMessage) bool { return q.ID == m.ID }); i >= 0 {
		return &found[i], err
	}
	return nil, err
}

// timeline puts in order the moments of a message that the tables know.
func timeline(m admin.FailedMessage, attempts []admin.FailedAttempt, handled []admin.InboxEntry, waiting *admin.RetryingMessage) []event {
	events := []event{{m.CreatedAt, "dispatched", "as " + m.Name + " to " + m.Transport}}
	for _, a := range attempts {
		events = append(events, event{a.At, fmt.Sprintf("attempt %d failed", a.Attempt), strings.TrimSpace(a.Handler + " in " + a.Worker)})
	}
	if len(attempts) == 0 && m.FirstFailedAt != nil {
		events = append(events, event{*m.FirstFailedAt, "refused for the first time", ""})
	}
	for _, e := range handled {
		events = append(events, event{e.ProcessedAt, "handled by " + e.Handler, "its effect has happened, and happens once"})
	}
	become := map[string]string{admin.FromWorker: "dead letter of " + m.FailureTransport}[m.Source]
	events = append(events, event{m.FailedAt, cmp.Or(become, "dead letter of the relay"), plural(m.Failures, "failure")})
	if m.RemovedAt != nil {
		events = append(events, event{*m.RemovedAt, "removed by an operator", "the audit has who"})
	}
	if waiting != nil && waiting.DueAt != nil {
		events = append(events, event{*waiting.DueAt, "next attempt", "from the retry queue"})
	}
	slices.SortStableFunc(events, func(a, b event) int { return a.At.Compare(b.At) })
	return events
}

// dispatchCommand is the command line that dispatches a message like m, in the words of a
// POSIX shell.
func dispatchCommand(command string, m admin.FailedMessage, c contentView) string {
	words := []string{command, "dispatch", m.Name, c.Body}
	if m.Key != "" {
		words = append(words, "--key", m.Key)
	}
	for _, h := range c.Headers {
		own := strings.HasPrefix(h[0], "x-") || h[0] == "content-type" || h[0] == "(unreadable)"
		if !own && h[1] != redacted {
			words = append(words, "--header", h[0]+"="+h[1])
		}
	}
	for i, w := range words {
		words[i] = shellQuoted(w)
	}
	return strings.Join(words, " ")
}

// shellQuoted returns a word as a POSIX shell takes it for itself.
func shellQuoted(w string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:=@%+", r)
	}
	if w != "" && !strings.ContainsFunc(w, func(r rune) bool { return !plain(r) }) {
		return w
	}
	return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
}
