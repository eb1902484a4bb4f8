package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

// retriesView is the data of the page of the retry queues.
type retriesView struct {
	Filter   admin.RetriesQuery
	Messages []admin.RetryingMessage
	More     bool
	Next     string
	Parked   int // of the transport of Filter, or of all
}

func (d *Dashboard) retriesPage(r *request) error {
	values := r.URL.Query()
	v, err := d.readRetries(r.Context(), values)
	if err != nil {
		return err
	}
	if v.More {
		values.Set("after", strconv.FormatInt(v.Messages[len(v.Messages)-1].Row, 10))
		v.Next = "/retries?" + values.Encode()
	}
	stats, _, err := d.figures(r.Context(), patience)
	if err != nil {
		return err
	}
	for _, s := range stats.workers {
		if v.Filter.Transport == "" || s.Transport == v.Filter.Transport {
			v.Parked += s.Parked
		}
	}
	return d.livePage(r, "retries", "Retries", v)
}

func (d *Dashboard) readRetries(ctx context.Context, values url.Values) (v retriesView, err error) {
	p, err := parsePage(values)
	if err != nil {
		return v, err
	}
	v.Filter = admin.RetriesQuery{Transport: values.Get("transport"), Key: values.Get("key"), After: p.After}
	v.Messages, v.More, err = upTo(p.Limit, func(limit int) ([]admin.RetryingMessage, error) {
		q := v.Filter
		q.Limit = limit
		return d.db.Retries(ctx, q)
	})
	return v, err
}

// attemptsView is the data of the page of one message of a retry queue.
type attemptsView struct {
	Transport string
	ID        waybill.MessageID
	Attempts  []admin.FailedAttempt
	Causation *causationView // nil if nothing can be known
}

func (d *Dashboard) attemptsPage(r *request) error {
	id, err := waybill.ParseMessageID(r.PathValue("id"))
	if err != nil {
		return bad("that is no message id", "a UUID or a ULID")
	}
	v := attemptsView{Transport: r.PathValue("transport"), ID: id}
	if v.Attempts, err = d.db.FailedAttempts(r.Context(), v.Transport, id); err != nil {
		return err
	}
	if v.Causation, err = d.causation(r.Context(), r.who, id); err != nil {
		return err
	}
	return d.page(r, "attempts", "Attempts", v)
}

// parkedView is the data of the page that asks before a release of parked retries.
type parkedView struct {
	Transport, Key string
	SkipHead       bool // the parked messages become dead letters
	Count          int
	Changed        bool
}

// countParked counts the parked messages of a transport, or of one of its keys.
func (d *Dashboard) countParked(ctx context.Context, values url.Values) (v parkedView, err error) {
	v.Transport, v.Key, v.SkipHead = values.Get("transport"), values.Get("key"), values.Get("skip_head") == "true"
	if v.Transport == "" {
		return v, bad("release what?", "give a transport, and a key to narrow it down")
	}
	stats, err := d.db.WorkerStats(ctx)
	if i := slices.IndexFunc(stats, func(s admin.WorkerStats) bool { return s.Transport == v.Transport }); i >= 0 {
		v.Count = stats[i].Parked
	}
	if err == nil && v.Key != "" {
		var found []admin.RetryingMessage // the parked ones of a key are its oldest
		found, err = d.db.Retries(ctx, admin.RetriesQuery{Transport: v.Transport, Key: v.Key, Limit: 1000})
		v.Count = len(slices.DeleteFunc(found, func(m admin.RetryingMessage) bool { return !m.Parked }))
	}
	if err == nil && v.Count == 0 {
		err = &Error{http.StatusNotFound, "nothing of that is parked", "it may have been released meanwhile"}
	}
	return v, err
}

func (d *Dashboard) confirmParked(r *request) error {
	v, err := d.countParked(r.Context(), r.URL.Query())
	if err != nil {
		return err
	}
	return d.page(r, "parked", "Release retries", v)
}

func (d *Dashboard) releaseParked(r *request) error {
	v, err := d.countParked(r.Context(), r.PostForm)
	if err != nil {
		return err
	}
	if r.PostForm.Get("count") != strconv.Itoa(v.Count) {
		v.Changed = true
		return d.page(r, "parked", "Release retries", v)
	}
	id, err := d.startParked(r, v)
	if err != nil {
		return err
	}
	return d.redirect(r, "/operations/"+strconv.Itoa(id))
}

func (d *Dashboard) startParked(r *request, v parkedView) (int, error) {
	filter := map[string]string{"transport": v.Transport, "key": v.Key}
	if v.SkipHead {
		return d.startRelease(r, "retries release --skip-head", filter, v.Count, func(ctx context.Context) (int, error) {
			return d.db.SkipParked(ctx, v.Transport, v.Key, d.cfg.FailureTransport(v.Transport))
		})
	}
	return d.startRelease(r, "retries release", filter, v.Count, func(ctx context.Context) (int, error) {
		return d.db.ReleaseRetries(ctx, v.Transport, v.Key)
	})
}

// apiReleaseParked is releaseParked without a page: a form with its count.
func (d *Dashboard) apiReleaseParked(r *request) error {
	v, err := d.countParked(r.Context(), r.PostForm)
	if err != nil {
		return err
	}
	if ok, err := confirmed(r, v.Count); !ok {
		return err
	}
	return d.begun(r)(d.startParked(r, v))
}
