package waycli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/dashboard"
)

// tokenVariable is the environment variable with the bearer token of --server.
const tokenVariable = "WAYBILL_SERVER_TOKEN"

// remoteCommands are the commands that the JSON API of a dashboard covers.
var remoteCommands = []string{
	"stats", "outbox list", "outbox blocked", "outbox release", "failed list", "failed groups", "failed show", "failed edit", "failed retry", "failed remove",
	"retries list", "retries release", "inbox list", "inbox lookup", "workers list", "workers stop", "workers pause", "workers resume", "schedules list", "schedules trigger",
}

// checkServer refuses --server with a command that the API does not cover.
func (c *cli) checkServer(cmd *cobra.Command, _ []string) error {
	if c.flags.server == "" {
		if c.flags.tokenFile != "" {
			return &Error{Usage, errors.New("--token-file without --server"), ""}
		}
		return nil
	}
	_, command, _ := strings.Cut(cmd.CommandPath(), " ")
	if !slices.Contains(remoteCommands, command) {
		return &Error{Usage, fmt.Errorf("%s with --server: the API of the dashboard does not cover it", cmd.CommandPath()), "it covers " + strings.Join(remoteCommands, ", ") + "; leave --server out to use the database"}
	}
	if c.flags.database != "" || c.flags.config != "" {
		return &Error{Usage, errors.New("--server excludes --database and --config"), "the server has the database"}
	}
	return nil
}

// A remote is the database of a dashboard, by its JSON API: as much of a Database as
// remoteCommands need. The embedded one is nil.
type remote struct {
	Database
	base     *url.URL
	token    string
	client   *http.Client
	attempts map[waybill.MessageID][]admin.FailedAttempt // of messages that were shown
	figures  *dashboard.Figures                          // nil until they are needed
}

// remote returns the database of --server.
func (s *session) remote() (Database, error) {
	base, err := url.Parse(s.flags.server)
	switch {
	case err != nil, base.Scheme != "http" && base.Scheme != "https", base.Host == "", base.RawQuery != "", base.Fragment != "":
		return nil, &Error{Usage, errors.New("--server: not the address of a dashboard"), "such as https://ops.example.com/waybill/"}
	case base.User != nil:
		return nil, &Error{Usage, errors.New("--server: the address has a name or a password in it, which other users of this machine can read"), "use a bearer token in " + tokenVariable + " or --token-file"}
	}
	token := os.Getenv(tokenVariable)
	if s.flags.tokenFile != "" {
		text, err := os.ReadFile(s.flags.tokenFile)
		if err != nil {
			return nil, &Error{Usage, fmt.Errorf("--token-file: %w", err), ""}
		}
		token = string(text)
	}
	token = strings.TrimSpace(token)
	if ip := net.ParseIP(base.Hostname()); token != "" && base.Scheme == "http" && base.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, &Error{Usage, errors.New("--server: the token would cross the network in the clear"), "use https"}
	}
	return &remote{
		base: base.JoinPath("api", "v1"), token: token, attempts: map[waybill.MessageID][]admin.FailedAttempt{},
		client: &http.Client{Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}, nil
}

// maxAnswer bounds an answer: a page of a thousand messages has some hundred kilobytes.
const maxAnswer = 64 << 20

// call sends a form, or a GET without one, and decodes the answer into to.
func (r *remote) call(ctx context.Context, path string, query, form url.Values, to any) error {
	at := *r.base.JoinPath(path)
	at.RawQuery = query.Encode()
	method, body := http.MethodGet, io.Reader(nil)
	if form != nil {
		method, body = http.MethodPost, strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(ctx, method, at.String(), body)
	if err != nil {
		return err
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	res, err := r.client.Do(req)
	if err != nil {
		return &Error{Unavailable, fmt.Errorf("--server: %w", err), "check the address, and that `waybill dashboard` runs there"}
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return &Error{Unavailable, fmt.Errorf("--server: %w", err), ""}
	}
	if res.StatusCode >= 300 {
		return refusal(res.StatusCode, text)
	}
	if err := json.Unmarshal(text, to); err != nil {
		return &Error{Usage, fmt.Errorf("--server: the answer is not that of a dashboard: %w", err), "the address is that of its first page"}
	}
	return nil
}

// refusal is the error of an answer.
func refusal(status int, text []byte) error {
	var answer struct {
		Problem string `json:"error"`
		Hint    string `json:"hint"`
	}
	if err := json.Unmarshal(text, &answer); err != nil || answer.Problem == "" {
		return &Error{Usage, fmt.Errorf("--server: answered %d %s", status, http.StatusText(status)), "the address is that of the first page of a dashboard"}
	}
	err := &Error{0, errors.New("--server: " + visible(answer.Problem)), visible(answer.Hint)}
	switch {
	case status == http.StatusUnauthorized:
		err.Kind, err.Hint = Refused, "put a bearer token into "+tokenVariable+" or --token-file"
	case status == http.StatusForbidden, status == http.StatusConflict:
		err.Kind = Refused
	case status == http.StatusNotFound:
		err.Kind, err.Err = NotFound, fmt.Errorf("%w: %w", err.Err, waybill.ErrNotFound)
	case status == http.StatusBadRequest:
		err.Kind = Usage
	case status == http.StatusServiceUnavailable:
		err.Kind, err.Err = Unavailable, fmt.Errorf("%w: %w", err.Err, waybill.ErrUnavailable)
	}
	return err
}

// maxRemotePage is the most that a page of the API has.
const maxRemotePage = 1000

// listed reads the pages of a list, up to limit items; zero means all.
func listed[T any](ctx context.Context, r *remote, path string, query url.Values, from int64, limit int) (all []T, err error) {
	all = []T{}
	after := ""
	if from > 0 {
		after = strconv.FormatInt(from, 10)
	}
	for {
		size := maxRemotePage
		if limit > 0 {
			size = min(limit-len(all), maxRemotePage)
		}
		query.Set("limit", strconv.Itoa(size))
		set(query, "after", after)
		var page struct {
			Items []T             `json:"items"`
			More  bool            `json:"more"`
			After json.RawMessage `json:"after"` // a number or a text
		}
		if err := r.call(ctx, path, query, nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		switch {
		case !page.More || limit > 0 && len(all) >= limit:
			return all, nil
		case len(page.After) == 0 || string(page.After) == strconv.Quote(after): // a list without pages
			return nil, &Error{Usage, fmt.Errorf("--server: there are more than %s", count(len(all))), "narrow it down, or give --limit"}
		}
		after = strings.Trim(string(page.After), `"`)
	}
}

// set adds the parameters that have a value.
func set(v url.Values, pairs ...string) url.Values {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			v.Set(pairs[i], pairs[i+1])
		}
	}
	return v
}

// Outbox implements admin.Database.
func (r *remote) Outbox(ctx context.Context, q admin.OutboxQuery) ([]admin.OutboxMessage, error) {
	return listed[admin.OutboxMessage](ctx, r, "outbox", set(url.Values{}, "transport", q.Transport, "key", q.Key, "name", q.Name), q.After, q.Limit)
}

// Blocked implements admin.Database.
func (r *remote) Blocked(ctx context.Context, transport string, limit int) ([]admin.BlockedKey, error) {
	return listed[admin.BlockedKey](ctx, r, "blocked", set(url.Values{}, "transport", transport), 0, limit)
}

// BlockedKeys implements admin.Database, for the first page.
func (r *remote) BlockedKeys(ctx context.Context, q admin.BlockedKeysQuery) ([]admin.BlockedKey, error) {
	return listed[admin.BlockedKey](ctx, r, "blocked", set(url.Values{}, "transport", q.Transport, "key", q.Key), 0, q.Limit)
}

// FindMessages implements admin.MessageFinder, with the limit of the server.
func (r *remote) FindMessages(ctx context.Context, id waybill.MessageID, _ int) ([]admin.StoredMessage, error) {
	return listed[admin.StoredMessage](ctx, r, "messages", url.Values{"id": {id.String()}}, 0, 0)
}

// Retries implements admin.Retries.
func (r *remote) Retries(ctx context.Context, q admin.RetriesQuery) ([]admin.RetryingMessage, error) {
	return listed[admin.RetryingMessage](ctx, r, "retries", set(url.Values{}, "transport", q.Transport, "key", q.Key), q.After, q.Limit)
}

// InboxLookup implements admin.Database.
func (r *remote) InboxLookup(ctx context.Context, idOrKey string) ([]admin.InboxEntry, error) {
	found, err := listed[admin.InboxEntry](ctx, r, "inbox", set(url.Values{}, "id", idOrKey), 0, 0)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("inbox entry of %q: %w", idOrKey, waybill.ErrNotFound)
	}
	return found, err
}

// InboxEntries implements admin.Database, for the first page.
func (r *remote) InboxEntries(ctx context.Context, q admin.InboxQuery) ([]admin.InboxEntry, error) {
	return listed[admin.InboxEntry](ctx, r, "inbox", set(url.Values{}, "handler", q.Handler), 0, q.Limit)
}

func failedValues(q admin.FailedQuery) url.Values {
	v := set(url.Values{}, "state", q.State, "transport", q.Transport, "failures", q.FailureTransport, "name", q.Name, "key", q.Key,
		"handler", q.Handler, "error", q.Error, "fingerprint", q.Fingerprint, "source", q.Source)
	if !q.Since.IsZero() {
		v.Set("since", q.Since.Format(time.RFC3339Nano))
	}
	if !q.Until.IsZero() {
		v.Set("until", q.Until.Format(time.RFC3339Nano))
	}
	return withNumbers(v, q.Numbers)
}

func withNumbers(v url.Values, numbers []int64) url.Values {
	for _, n := range numbers {
		v.Add("number", strconv.FormatInt(n, 10))
	}
	return v
}

// Failed implements admin.Database.
func (r *remote) Failed(ctx context.Context, q admin.FailedQuery) ([]admin.FailedMessage, error) {
	return listed[admin.FailedMessage](ctx, r, "failed", failedValues(q), q.After, q.Limit)
}

// FailedGroups implements admin.DeadLetters.
func (r *remote) FailedGroups(ctx context.Context, q admin.FailedQuery) ([]admin.FailedGroup, error) {
	return listed[admin.FailedGroup](ctx, r, "failed/groups", failedValues(q), 0, 0)
}

// FailedContent implements admin.Database. It is an error if the server shows this user no
// content, or a part of it.
func (r *remote) FailedContent(ctx context.Context, number int64) (c admin.FailedContent, err error) {
	var m struct {
		admin.FailedMessage
		Hidden   string                `json:"hidden"`
		Headers  map[string]string     `json:"headers"`
		Body     string                `json:"body"`
		Whole    bool                  `json:"whole"`
		Attempts []admin.FailedAttempt `json:"attempts"`
	}
	if err := r.call(ctx, "failed/"+strconv.FormatInt(number, 10), nil, nil, &m); err != nil {
		return c, err
	}
	switch {
	case m.Hidden != "":
		return c, &Error{Refused, fmt.Errorf("--server: headers and body of %d are not shown: %s", number, visible(m.Hidden)), "`failed list` shows the rest"}
	case !m.Whole:
		return c, &Error{Refused, fmt.Errorf("--server: it shows a part of the body of %d", number), "the page of the dashboard has that part, and the database the whole"}
	}
	r.attempts[m.ID] = m.Attempts
	if m.Headers["content-type"] == "application/json" { // which a database leaves out
		delete(m.Headers, "content-type")
	}
	if c.Headers = json.RawMessage("{}"); len(m.Headers) > 0 {
		c.Headers, err = json.Marshal(m.Headers)
	}
	c.Body = []byte(m.Body)
	return c, err
}

// FailedAttempts implements admin.Retries, for messages of FailedContent.
func (r *remote) FailedAttempts(_ context.Context, _ string, id waybill.MessageID) ([]admin.FailedAttempt, error) {
	return r.attempts[id], nil
}
