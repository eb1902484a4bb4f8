package waycli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/worker"
)

func (c *cli) workersCommand() *cobra.Command {
	return group(&cobra.Command{Use: "workers", Short: "List the processes that handle messages; stop them, and pause transports"},
		c.workersListCommand(), c.workersStopCommand(), c.workersPauseCommand(), c.workersResumeCommand())
}

func (c *cli) workersListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the processes that handle messages",
		Long: `List the processes with workers that have reported to the configured database within
the last minute, on all hosts, and the message that each has been handling longest. They
report every five seconds. State is

  running            it takes messages
  paused             its transports are paused: it takes no messages until a resume
  stopping           an operator has told it to stop, and it has not seen that yet
  draining           it takes no more messages and finishes those in flight
  silent for 30s     it hangs, its host is gone, or it cannot reach the database

Of a process with some of its transports paused, state names these. After the processes come
the paused transports: since when, by whom and why. "stats" lists relays.

With --json: {"workers": [{"id", "name", "host", "pid", "started_at", "seen_at",
"age_seconds", "stop_requested_at", "state", "transports", "paused", "concurrency", "busy",
"handled", "failed", "heap_bytes", "running": [{"transport", "name", "id", "handler",
"seconds"}]}], "paused": [{"transport", "since", "actor", "reason"}]}. Running has the ten
longest; handler is empty before the first one has begun.`,
		Example: `  waybill workers list
  waybill workers list --json`,
		Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, s *session, _ []string) error { return s.workersList(ctx) }),
	}
}

func (s *session) workersList(ctx context.Context) error {
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	found, err := workersOf(ctx, db)
	if err != nil {
		return err
	}
	paused, err := db.PausedTransports(ctx)
	if err != nil {
		return err
	}
	if s.flags.json {
		s.stdout.json(struct {
			Workers []admin.Worker `json:"workers"`
			Paused  []admin.Pause  `json:"paused"`
		}{found, paused})
		return nil
	}
	s.workerList(found)
	s.pauseLines(paused)
	return nil
}

func (s *session) workerList(found []admin.Worker) {
	tableOf(s.stdout, []string{"NAME", "TRANSPORTS", "UP", "BUSY", "HANDLED", "FAILED", "HEAP", "STATE", "LONGEST RUNNING"}, found, func(w admin.Worker) []any {
		return []any{
			w.Name, strings.Join(w.Transports, " "), short(w.Ago(w.StartedAt)), fmt.Sprintf("%d/%d", w.Busy, w.Concurrency), count(int(w.Handled)), count(int(w.Failed)),
			fmt.Sprintf("%d MiB", w.HeapBytes>>20), workerState(w), longestRunning(w),
		}
	})
}

const stateSilent, stateStopping = "silent", "stopping"

// workersOf returns the processes with workers. A State that a process cannot report is one, too.
func workersOf(ctx context.Context, db Database) ([]admin.Worker, error) {
	found, err := db.Workers(ctx)
	for i, w := range found {
		switch {
		case w.Ago(w.SeenAt) > silence:
			found[i].State = stateSilent
		case w.StopRequestedAt != nil && w.State != worker.StateDraining:
			found[i].State = stateStopping
		}
	}
	return found, err
}

func workerState(w admin.Worker) string {
	switch {
	case w.State == stateSilent:
		return w.State + " for " + short(w.Ago(w.SeenAt))
	case w.State == worker.StateRunning && len(w.Paused) > 0:
		return w.State + ", paused: " + strings.Join(w.Paused, " ")
	}
	return w.State
}

// longestRunning describes the message that w has been handling longest.
func longestRunning(w admin.Worker) string {
	if len(w.Running) == 0 {
		return ""
	}
	m := w.Running[0]
	text := fmt.Sprintf("%s %s", m.Name, m.ID)
	if m.Handler != "" {
		text += " in " + m.Handler
	}
	return text + " for " + seconds(m.Seconds)
}
