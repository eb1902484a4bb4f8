package sqlcore

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/worker"
)

// The headers under which a row keeps those parts of a record that no column holds: its
// name and key as Go strings in quotes, where the columns have others, and the text of its
// Problem. They are not delivered.
const (
	originalName = "x-waybill-name"
	originalKey  = "x-waybill-key"
	problemText  = "x-waybill-problem"
)

// The widths of the columns, in bytes; those of texts are bounds without a column's.
const (
	maxName, maxKey    = 190, 255
	maxShort, maxType  = 255, 1 << 10
	maxError, maxStack = 8 << 10, 16 << 10
	maxReason          = 2000 // of a relay's errors
)

// storable returns moves as rows. No message is impossible to keep, whatever is in it.
func storable(moves []worker.Move) ([]RetryRow, error) {
	rows := make([]RetryRow, len(moves))
	for i, m := range moves {
		// An operator's replay or release tries a message again as it is: the cause of a
		// Problem may have been mended, and each has an id by then.
		again := m.DeadLetters != "" || m.Parked
		rec, err := storableRecord(m.Delivery.Record, again)
		if err != nil {
			return nil, err
		}
		meta, err := headers.Encode(rec)
		if err != nil {
			return nil, err
		}
		rows[i] = RetryRow{
			Record: rec, Headers: meta, Failures: m.Delivery.Failures, Attempt: storableAttempt(m.Attempt),
			Delay: m.Delay, Parked: m.Parked, DeadLetters: text(m.DeadLetters, maxShort),
		}
	}
	return rows, nil
}

// storableRecord returns a copy of rec, without its Problem if that is no longer to count.
// A record without an id gets one.
func storableRecord(rec *waybill.Record, solved bool) (*waybill.Record, error) {
	kept := *rec
	if kept.ID.IsZero() {
		var err error
		if kept.ID, err = waybill.NewMessageID(); err != nil {
			return nil, err
		}
	}
	kept.Name = cmp.Or(text(rec.Name, maxName), "unnamed")
	kept.Key = text(rec.Key, maxKey)
	kept.ContentType = text(rec.ContentType, maxType)
	kept.DispatchedAt = storableTime(rec.DispatchedAt)
	if kept.Body == nil {
		kept.Body = []byte{} // not NULL
	}
	kept.Headers = make(map[string]string, len(rec.Headers)+3)
	for name, value := range rec.Headers {
		kept.Headers[Valid(name)] = Valid(value)
	}
	keep := func(name, value string, needed bool) {
		if delete(kept.Headers, name); needed {
			kept.Headers[name] = value
		}
	}
	keep(originalName, strconv.QuoteToASCII(rec.Name), kept.Name != rec.Name)
	keep(originalKey, strconv.QuoteToASCII(rec.Key), kept.Key != rec.Key)
	keep(problemText, text(fmt.Sprint(rec.Problem), maxError), rec.Problem != nil && !solved)
	return &kept, nil
}

// restore gives rec back its parts that no column holds.
func restore(rec *waybill.Record) {
	if problem, ok := rec.Headers[problemText]; ok && rec.Problem == nil {
		rec.Problem = errors.New(problem)
	}
	for name, field := range map[string]*string{originalName: &rec.Name, originalKey: &rec.Key} {
		if original, err := strconv.Unquote(rec.Headers[name]); err == nil {
			*field = original
		}
		delete(rec.Headers, name)
	}
	delete(rec.Headers, problemText)
}

// CompleteSample gives the record of m its stored headers, and what they keep of a worker's
// message, so that it decodes as it does for a relay or a worker.
func CompleteSample(m *admin.Sample, stored string) {
	m.Record.Name = m.Name
	m.Record.DispatchedAt = m.Record.DispatchedAt.UTC()
	m.Record.Problem = headers.Decode(m.Record, stored)
	if m.Source == admin.SourceRetries || m.Source == admin.SourceFailed {
		restore(m.Record)
	}
}

func storableAttempt(a *worker.Attempt) *worker.Attempt {
	if a == nil {
		return nil
	}
	return &worker.Attempt{At: storableTime(a.At), Worker: text(a.Worker, maxShort), Failure: worker.Failure{
		Handler: text(a.Handler, maxShort), Type: text(a.Type, maxType), Error: text(a.Error, maxError),
		Stack: text(a.Stack, maxStack), Fingerprint: text(a.Fingerprint, maxShort),
	}}
}

// storableTime is at in UTC, or now in place of a time that not every database has.
func storableTime(at time.Time) time.Time {
	if at = at.UTC(); at.Year() < 1970 || at.Year() > 9999 {
		return time.Now().UTC()
	}
	return at
}

// text is s in valid form, clipped to a number of bytes.
func text(s string, limit int) string {
	if s = Valid(s); len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "")
	}
	return s
}

// Clip is the text of an error in valid form, cut to maxReason.
func Clip(s string) string {
	if s = Valid(s); len(s) > maxReason {
		return text(s, maxReason) + "..."
	}
	return s
}

// Valid is s in UTF-8 without NUL, which no column of text takes everywhere.
func Valid(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
