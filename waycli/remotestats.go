package waycli

import (
	"context"
	"errors"
	"net/url"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/history"
	"github.com/waybill-go/waybill/outbox"
)

// stats reads the figures, once.
func (r *remote) stats(ctx context.Context) (*dashboard.Figures, error) {
	if r.figures != nil {
		return r.figures, nil
	}
	f := &dashboard.Figures{}
	if err := r.call(ctx, "stats", nil, nil, f); err != nil {
		return &dashboard.Figures{}, err
	}
	r.figures = f
	return f, nil
}

// OutboxStats implements admin.Database.
func (r *remote) OutboxStats(ctx context.Context) ([]admin.OutboxStats, error) {
	f, err := r.stats(ctx)
	return f.Outbox, err
}

// QueueStats implements admin.Database.
func (r *remote) QueueStats(ctx context.Context) ([]admin.QueueStats, error) {
	f, err := r.stats(ctx)
	return f.Queues, err
}

// WorkerStats implements admin.Retries.
func (r *remote) WorkerStats(ctx context.Context) ([]admin.WorkerStats, error) {
	f, err := r.stats(ctx)
	return f.Retries, err
}

// InboxStats implements admin.Database.
func (r *remote) InboxStats(ctx context.Context) ([]admin.InboxStats, error) {
	f, err := r.stats(ctx)
	return f.Inbox, err
}

// Relays implements admin.Database.
func (r *remote) Relays(ctx context.Context) ([]admin.Relay, error) {
	f, err := r.stats(ctx)
	return f.Relays, err
}

// Traits implements outbox.Store, after Relays.
func (r *remote) Traits() outbox.StoreTraits {
	return outbox.StoreTraits{KeepsReports: r.figures != nil && r.figures.Reports}
}

// History implements history.Store.
func (r *remote) History(context.Context, history.Query) ([]history.Row, error) {
	return nil, &Error{Usage, errors.New("--history with --server: the API does not cover it"), "the first page of the dashboard has the charts"}
}

// Workers implements admin.Workers.
func (r *remote) Workers(ctx context.Context) ([]admin.Worker, error) {
	return listed[admin.Worker](ctx, r, "workers", url.Values{}, 0, 0)
}

// PausedTransports implements admin.Workers.
func (r *remote) PausedTransports(ctx context.Context) ([]admin.Pause, error) {
	return listed[admin.Pause](ctx, r, "workers/paused", url.Values{}, 0, 0)
}

// Schedules implements admin.Schedules. The time is one at which the same schedules are overdue.
func (r *remote) Schedules(ctx context.Context) (all []admin.Schedule, now time.Time, err error) {
	rows, err := listed[struct {
		admin.Schedule
		Overdue float64 `json:"overdue_seconds"`
	}](ctx, r, "schedules", url.Values{}, 0, 0)
	late := false
	for _, row := range rows {
		all = append(all, row.Schedule)
		if row.Overdue > 0 {
			now, late = row.Due().Add(time.Duration(row.Overdue*float64(time.Second))), true
		}
		if !late && (now.IsZero() || row.Due().Before(now)) {
			now = row.Due()
		}
	}
	return all, now, err
}
