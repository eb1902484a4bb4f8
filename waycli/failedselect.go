package waycli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/config"
)

// A failedFilter selects dead letters: by the flags of a command, or by numbers. As JSON
// it is in the audit.
type failedFilter struct {
	Numbers          []int64 `json:"numbers,omitempty"`
	Transport        string  `json:"transport,omitempty"`
	FailureTransport string  `json:"failures,omitempty"`
	Name             string  `json:"name,omitempty"`
	Key              string  `json:"key,omitempty"`
	Handler          string  `json:"handler,omitempty"`
	Error            string  `json:"error,omitempty"`
	Fingerprint      string  `json:"fingerprint,omitempty"`
	Source           string  `json:"source,omitempty"`
	Since            string  `json:"since,omitempty"`
	Until            string  `json:"until,omitempty"`
	All              bool    `json:"all,omitempty"`
}

// filterHelp is the part of a help text about the flags of a failedFilter.
const filterHelp = `
--since and --until compare the time of the last failure with a time (2026-11-23,
2026-11-23T15:04:05Z; without a zone UTC) or an age (2h, 3d). --error is a part of
the error in any case, --failures the failure transport, --fingerprint the one that
"failed groups" shows, --source outbox (of relays) or worker.`

// failedFlags adds the flags of f.
func (c *cli) failedFlags(cmd *cobra.Command, f *failedFilter) {
	c.transportFlag(cmd, &f.Transport)
	p := cmd.Flags()
	p.StringVar(&f.FailureTransport, "failures", "", "only those of this failure transport")
	p.StringVar(&f.Name, "name", "", "only messages of this name")
	p.StringVar(&f.Key, "key", "", "only this partition key")
	p.StringVar(&f.Handler, "handler", "", "only those that this handler failed on")
	p.StringVar(&f.Error, "error", "", "only those with this in their last error")
	p.StringVar(&f.Fingerprint, "fingerprint", "", "only those with this kind of error")
	p.StringVar(&f.Source, "source", "", "only those of the "+admin.FromOutbox+" or of a "+admin.FromWorker)
	p.StringVar(&f.Since, "since", "", "only those that failed since then (a time or an age)")
	p.StringVar(&f.Until, "until", "", "only those that failed before then (a time or an age)")
}

// query returns the query of f.
func (f failedFilter) query(now time.Time) (q admin.FailedQuery, err error) {
	if !slices.Contains([]string{"", admin.FromOutbox, admin.FromWorker}, f.Source) {
		return q, &Error{Usage, fmt.Errorf("--source: unknown source %q", f.Source), "outbox or worker"}
	}
	q = admin.FailedQuery{
		Numbers: f.Numbers, Transport: f.Transport, FailureTransport: f.FailureTransport, Name: f.Name, Key: f.Key,
		Handler: f.Handler, Error: f.Error, Fingerprint: f.Fingerprint, Source: f.Source,
	}
	if q.Since, err = parseMoment("--since", f.Since, now); err != nil {
		return q, err
	}
	if q.Until, err = parseMoment("--until", f.Until, now); err != nil {
		return q, err
	}
	if !q.Since.IsZero() && !q.Until.IsZero() && !q.Since.Before(q.Until) {
		return q, &Error{Usage, fmt.Errorf("--since %s is not before --until %s: nothing can be between them", f.Since, f.Until), "an age counts back from now: --since 2h --until 1h"}
	}
	return q, nil
}

// parseMoment reads a time, or an age as the time so long before now.
func parseMoment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if age, err := config.ParseDuration(text); err == nil && age >= 0 {
		return now.Add(-age), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, &Error{Usage, fmt.Errorf("%s: %q is neither a time nor an age", flag, text), "such as 2026-11-23T15:04:05Z, 2026-11-23 or 2h"}
}

// action returns ctx with f as the filter of an operator's action.
func (f failedFilter) action(ctx context.Context) context.Context {
	text, _ := json.Marshal(f) // strings and numbers
	return admin.WithAction(ctx, admin.Action{Actor: admin.Actor(), Filter: text})
}

// oneFailed returns the message of that number, removed or not.
func (s *session) oneFailed(ctx context.Context, db Database, number int64) (m admin.FailedMessage, err error) {
	for _, state := range []string{"", admin.Removed} {
		found, err := db.Failed(ctx, admin.FailedQuery{Numbers: []int64{number}, State: state})
		if err != nil {
			return m, err
		}
		if len(found) == 1 {
			return found[0], nil
		}
	}
	return m, &Error{NotFound, fmt.Errorf("failed message %d: %w", number, waybill.ErrNotFound), fmt.Sprintf("`%s failed list` lists what there is: a retry that succeeds ends its dead letter", s.app.Name)}
}

func failedNumbers(args []string) ([]int64, error) {
	numbers := make([]int64, len(args))
	for i, arg := range args {
		n, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || n <= 0 {
			return nil, &Error{Usage, fmt.Errorf("%q is not the number of a failed message", arg), "the first column of `failed list` has it"}
		}
		numbers[i] = n
	}
	return numbers, nil
}

// changeable reports whether m can be retried, edited and removed.
func changeable(m admin.FailedMessage) bool {
	return m.State == admin.Skipped || m.State == admin.Failed
}

// checkChangeable returns an error with the reason why m cannot be changed.
func (s *session) checkChangeable(m admin.FailedMessage) error {
	switch {
	case changeable(m):
		return nil
	case m.State == admin.Retrying:
		return &Error{Refused, fmt.Errorf("message %d is being retried already", m.Number), fmt.Sprintf("`%s retries list` shows when; it comes back under its number if it fails", s.app.Name)}
	}
	return &Error{Refused, fmt.Errorf("message %d is %s", m.Number, m.State), "its body is gone: it was removed, or dispatched under another id by `failed retry --as-new`"}
}

// selected is a dead letter of a selection, which may have millions of them.
type selected struct {
	number    int64
	failedAt  time.Time
	id        waybill.MessageID
	transport string
}

// selectPage bounds the dead letters that a selection reads at once.
const selectPage = 1000

// selectFailed returns the messages selected by numbers or flags, which can be changed,
// and sets the numbers of f. A number of another message is an error.
func (s *session) selectFailed(ctx context.Context, db Database, f *failedFilter, args []string) (found []selected, err error) {
	if f.Numbers, err = failedNumbers(args); err != nil {
		return nil, err
	}
	q, err := f.query(time.Now())
	if err != nil {
		return nil, err
	}
	flags := *f
	flags.Numbers, flags.All = nil, false
	filtered := !reflect.ValueOf(flags).IsZero()
	switch {
	case len(args) == 0 && !filtered && !f.All:
		return nil, &Error{Usage, errors.New("which messages? nothing is selected"), "give numbers, a filter such as --name or --fingerprint, or --all"}
	case len(args) > 0 && (filtered || f.All):
		return nil, &Error{Usage, errors.New("numbers exclude filters and --all"), "give one or the other"}
	case filtered && f.All:
		return nil, &Error{Usage, errors.New("--all excludes filters"), "leave --all out: it would not be all"}
	}
	for _, number := range f.Numbers {
		m, err := s.oneFailed(ctx, db, number)
		if err == nil {
			err = s.checkChangeable(m)
		}
		if err != nil {
			return nil, err
		}
	}
	q.Limit = selectPage
	for more := true; more; {
		page, err := db.Failed(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, m := range page {
			if q.After = m.Number; changeable(m) {
				found = append(found, selected{m.Number, m.FailedAt, m.ID, m.Transport})
			}
		}
		more = len(page) == selectPage
	}
	if len(found) == 0 {
		return nil, &Error{NotFound, fmt.Errorf("no failed message is selected: %w", waybill.ErrNotFound), fmt.Sprintf("`%s failed list` lists what there is", s.app.Name)}
	}
	return found, nil
}
