package waycli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/admin"
)

// settingFindings are the notes of config check.
func (s *session) settingFindings(context.Context) ([]admin.Finding, error) {
	var found []admin.Finding
	for _, note := range s.notes(s.cfg) {
		f := admin.NewFinding(admin.UnusableSetting, note, "change the setting, or use a binary that can open it")
		f.Where = cmp.Or(s.configFile(), "the default configuration")
		found = append(found, f)
	}
	return found, nil
}

// databaseFindings are those of the configured database and of the stores of transports.
func (s *session) databaseFindings(ctx context.Context) ([]admin.Finding, error) {
	stores, err := s.stores(ctx)
	if err != nil {
		return nil, err
	}
	var found []admin.Finding
	for _, db := range stores {
		examiner, ok := db.Database.(admin.Examiner)
		if !ok {
			continue
		}
		more, err := examiner.Findings(ctx)
		if err != nil {
			return nil, err
		}
		for _, f := range more {
			f.Where = db.name
			found = append(found, f)
		}
	}
	return found, nil
}

// overdue is the age of a pending message from which on a relay should have published it.
const overdue = time.Minute

// relayFindings compares the reports of relays with the messages that wait.
func (s *session) relayFindings(ctx context.Context) ([]admin.Finding, error) {
	db, err := s.database(ctx)
	if err != nil || !db.Traits().KeepsReports {
		return nil, err
	}
	relays, err := db.Relays(ctx)
	if err != nil {
		return nil, err
	}
	stats, err := db.OutboxStats(ctx)
	if err != nil {
		return nil, err
	}
	var found []admin.Finding
	add := func(code admin.Code, transport, problem, remedy string) {
		f := admin.NewFinding(code, problem, remedy)
		f.Where = fmt.Sprintf("transport %q", transport)
		found = append(found, f)
	}
	for _, r := range relays {
		if why := cmp.Or(r.Problem, r.Degraded); why != "" && time.Since(r.SeenAt) <= silence {
			add(admin.RelayProblem, r.Transport, fmt.Sprintf("the relay of process %d on %s reports: %s", r.PID, r.Host, why), "mend the broker or the connection it names; the relay tries again by itself")
		}
	}
	for _, t := range withoutRelay(stats, relays) {
		if t.OldestAgeSeconds > overdue.Seconds() {
			add(admin.NoRelay, t.Transport, fmt.Sprintf("no relay reports, and the oldest of %s has waited for %s", plural(t.Pending, "message"), seconds(t.OldestAgeSeconds)),
				fmt.Sprintf("run `%s relay`, or look into the log of the process that should", s.app.Name))
		}
	}
	return found, nil
}
