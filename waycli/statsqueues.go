package waycli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/config"
)

// A queueCount counts a queue of a database.
type queueCount struct {
	admin.QueueStats
	Database string `json:"database,omitempty"` // without its password; empty for the configured one
}

// A brokerQueue counts the queue of a transport at a broker.
type brokerQueue struct {
	Transport string `json:"transport"`
	Depth
}

// A statsProblem keeps messages from moving, or stats from counting them.
type statsProblem struct {
	Where   string `json:"where"` // a transport, or a DSN without its password
	Problem string `json:"problem"`
}

// queueCounts adds the queues of transports in other databases to those of the configured
// one. A database that cannot be read is a problem, and its error is uncounted.
func (s *session) queueCounts(ctx context.Context, own []admin.QueueStats) (all []queueCount, problems []statsProblem, uncounted, err error) {
	all, problems = []queueCount{}, []statsProblem{} // [] and not null in JSON
	for _, q := range own {
		all = append(all, queueCount{QueueStats: q})
	}
	others := map[string][]admin.QueueStats{} // by DSN
	for _, name := range transportNames(s.cfg) {
		dsn := s.cfg.Transports[name].DSN
		if dsn.Scheme != queueScheme || inDatabase(dsn, s.cfg.Database) {
			continue
		}
		other, _ := dsn.DSN("database")
		queues, seen := others[other.Reveal()]
		if !seen {
			if queues, err = s.queuesOf(ctx, name, other); err != nil {
				problems, uncounted = append(problems, statsProblem{other.String(), "queues not counted: " + trimmed(err.Error())}), err
			}
			others[other.Reveal()] = queues
		}
		for _, q := range queues {
			if q.Queue == dsn.Host {
				all = append(all, queueCount{q, other.String()})
			}
		}
	}
	return all, problems, uncounted, ctx.Err()
}

// queuesOf counts the queues of the database of a transport.
func (s *session) queuesOf(ctx context.Context, transport string, dsn config.DSN) ([]admin.QueueStats, error) {
	db, err := s.open(ctx, dsn, fmt.Sprintf("transport %q", transport))
	if err != nil {
		return nil, err
	}
	return db.QueueStats(ctx)
}

// depthTimeout bounds the time in which all brokers answer.
const depthTimeout = 5 * time.Second

// brokerQueues counts the queues of transports at brokers. A broker that is away is one
// problem, however many queues it has.
func (s *session) brokerQueues(ctx context.Context) ([]brokerQueue, []statsProblem) {
	ctx, cancel := context.WithTimeout(ctx, depthTimeout)
	defer cancel()
	names := slices.DeleteFunc(transportNames(s.cfg), func(name string) bool { return s.app.Brokers[s.cfg.Transports[name].DSN.Scheme].Depth == nil })
	depths, errs := make([]Depth, len(names)), make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		broker, transport, err := s.broker(name)
		if err != nil {
			errs[i] = err
			continue
		}
		wg.Go(func() { depths[i], errs[i] = broker.Depth(ctx, transport) })
	}
	wg.Wait()
	queues, problems := []brokerQueue{}, []statsProblem{}
	away := map[string]bool{}
	for i, name := range names {
		dsn := s.cfg.Transports[name].DSN
		broker := config.DSN{Scheme: dsn.Scheme, Host: dsn.Host, Path: dsn.Path}.String()
		switch {
		case errs[i] == nil && depths[i].Queue != "":
			queues = append(queues, brokerQueue{name, depths[i]})
		case errs[i] == nil || away[broker]:
		case errors.Is(errs[i], waybill.ErrUnavailable):
			away[broker] = true
			problems = append(problems, statsProblem{broker, "broker away, its queues are not counted: " + trimmed(errs[i].Error())})
		default:
			problems = append(problems, statsProblem{name, trimmed(errs[i].Error())})
		}
	}
	return queues, problems
}

// trimmed is the text of an error without that of waybill.ErrUnavailable before it.
func trimmed(text string) string {
	return strings.TrimPrefix(text, waybill.ErrUnavailable.Error()+": ")
}

func (s *session) queueTables(queues []queueCount, broker []brokerQueue) {
	tableOf(s.stdout, []string{"QUEUE", "PENDING", "OLDEST", "IN FLIGHT", "RETRYING", "DATABASE"}, queues, func(q queueCount) []any {
		return []any{q.Queue, count(q.Pending), seconds(q.OldestAgeSeconds), count(q.InFlight), count(q.Retrying), q.Database}
	})
	if len(broker) == 0 {
		return
	}
	s.stdout.line("\nQueues of brokers")
	tableOf(s.stdout, []string{"QUEUE", "TRANSPORT", "READY", "CONSUMERS"}, broker, func(q brokerQueue) []any {
		return []any{q.Queue, q.Transport, count(q.Ready), count(q.Consumers)}
	})
}

// checkComplete is check, and an error if its figures lack a queue.
func checkComplete(conditions []condition, figures map[string]float64, uncounted error) error {
	if err := check(conditions, figures); err != nil || len(conditions) == 0 || uncounted == nil {
		return err
	}
	return &Error{Unavailable, fmt.Errorf("check incomplete, no condition holds in what could be counted: %w", uncounted), ""}
}
