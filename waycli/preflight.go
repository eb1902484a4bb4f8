package waycli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/config"
)

const preflightHelp = `Decode samples of all stored messages with this build, before it is deployed: of the
outbox, delayed ones, queue:// queues, retry queues of workers and dead letters, in the
configured database, the stores of transports and the databases of queues. Of each
source, transport and message name the newest and the oldest are decoded, up to --sample.

Findings, with which it exits with 7:

  unknown name       the name is not registered in this build
  a decoding error   the body does not fit the Go type of its name, or its upcaster fails
  no handler         a worker would take it from a queue or a retry queue, and none has it

With TRANSPORT only messages of these transports are findings: name those that this
build consumes if the database has messages for other services too. Errors are told
without any part of the body; of an error of an own codec or UnmarshalJSON only its
type is told, for its text may quote the body; so of an upcaster.

A message name with a handler or an upcaster, or an alias, of which nothing is stored is
drained: its handler, its upcaster or the alias may go. What lies at a broker is not
read: "unread" has these transports. A binary without handlers checks the names under
messages instead.

With --json: {"messages": [{"database", "source", "transport", "name", "messages",
"samples", "handlers", "failures": [{"error", "samples", "row", "id"}]}], "drained":
[{"name", "alias_of", "upcast_to", "handlers"}], "unread", "findings"}. Source is outbox, delayed,
queue, retries or failed; row and id are of an example.`

func (c *cli) preflightCommand() *cobra.Command {
	var sample int
	cmd := &cobra.Command{
		Use:   "preflight [TRANSPORT...]",
		Short: "Decode samples of what is stored with this build, before it is deployed",
		Long:  preflightHelp,
		Example: `  waybill preflight
  waybill preflight orders mail --sample 1000 --json`,
		RunE: c.run(func(ctx context.Context, s *session, transports []string) error {
			if sample < 1 {
				return &Error{Usage, fmt.Errorf("--sample: %d is less than 1", sample), "it is how many messages are decoded of each source, transport and name"}
			}
			return s.preflight(ctx, transports, sample)
		}),
		ValidArgsFunction: c.completeFrom(transportNames),
	}
	cmd.Flags().IntVar(&sample, "sample", 100, "decode so many of each source, transport and name")
	return cmd
}

// preflightResult is the JSON output of preflight.
type preflightResult struct {
	Messages []*preflightGroup `json:"messages"`
	Drained  []drained         `json:"drained"`
	Unread   []string          `json:"unread"` // transports at brokers
	Findings int               `json:"findings"`
}

// A drained is a message name with a handler or an upcaster, or an alias, of which nothing
// is stored.
type drained struct {
	Name     string   `json:"name"`
	AliasOf  string   `json:"alias_of,omitempty"`
	UpcastTo string   `json:"upcast_to,omitempty"`
	Handlers []string `json:"handlers"`
}

func (s *session) preflight(ctx context.Context, transports []string, sample int) error {
	selected, err := s.selectedTransports(transports)
	if err != nil {
		return err
	}
	bus, err := s.preflightBus(ctx)
	if err != nil {
		return err
	}
	databases, err := s.messageDatabases(ctx)
	if err != nil {
		return err
	}
	result, seen := preflightResult{Messages: []*preflightGroup{}, Unread: []string{}}, map[string]bool{}
	for _, db := range databases {
		check := preflightCheck{bus: bus, database: db.name, selected: selected, seen: seen}
		if err := db.Sample(ctx, sample, check.add); err != nil {
			return err
		}
		result.Messages = append(result.Messages, check.sorted()...)
	}
	result.Drained = drainedOf(bus, seen)
	for _, name := range transportNames(s.cfg) {
		if !ownTransport(s.cfg.Transports[name].DSN) {
			result.Unread = append(result.Unread, name)
		}
	}
	for _, g := range result.Messages {
		result.Findings += len(g.Failures)
	}
	s.printPreflight(result)
	if result.Findings == 0 {
		return nil
	}
	return &Error{CheckFailed, fmt.Errorf("preflight has %s: this build breaks on stored messages", plural(result.Findings, "finding")),
		fmt.Sprintf("deploy a build that reads them, or wait until they are handled; `%s preflight TRANSPORT` leaves other transports out", s.app.Name)}
}

// selectedTransports returns a set of transports as samples name them. It is nil if none
// is given, which means all.
func (s *session) selectedTransports(names []string) (map[string]bool, error) {
	if len(names) == 0 {
		return nil, nil
	}
	selected := map[string]bool{}
	for _, name := range names {
		t, err := s.transport(name)
		if err != nil {
			return nil, err
		}
		selected[name] = true
		if t.DSN.Scheme == queueScheme {
			selected[queueScheme+"://"+t.DSN.Host] = true
		}
	}
	return selected, nil
}

// preflightBus returns the application's bus, or that of a consume with --exec.
func (s *session) preflightBus(ctx context.Context) (*waybill.Bus, error) {
	if s.app.Bus != nil {
		return s.bus(ctx)
	}
	cfg, err := s.config()
	if err != nil {
		return nil, err
	}
	names := messageNames(cfg)
	if len(names) == 0 {
		return nil, &Error{Usage, fmt.Errorf("%s has no handlers of its own, and the configuration names no messages", s.app.Name),
			"run preflight of the binary with your handlers, or add the names, such as messages: { order.placed: {} }"}
	}
	return newExecBus(&execHandler{handler: "exec"}, names)
}

// A namedDatabase is a database with its DSN, without the password.
type namedDatabase struct {
	Database
	name string
}

// namedDatabases are different ones.
type namedDatabases []namedDatabase

func (all *namedDatabases) add(dsn config.DSN, db Database, err error) error {
	if err == nil && !slices.ContainsFunc(*all, func(have namedDatabase) bool { return have.Database == db }) {
		*all = append(*all, namedDatabase{db, dsn.String()})
	}
	return err
}

// messageDatabases opens each database that keeps messages: the stores, and those of queues.
func (s *session) messageDatabases(ctx context.Context) (namedDatabases, error) {
	all, err := s.stores(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range transportNames(s.cfg) {
		dsn := s.cfg.Transports[name].DSN
		if dsn.Scheme != queueScheme {
			continue
		}
		if other, ok := dsn.DSN("database"); ok {
			db, err := s.open(ctx, other, fmt.Sprintf("transport %q", name))
			if err := all.add(other, db, err); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// stores opens the configured database and the stores of transports.
func (s *session) stores(ctx context.Context) (all namedDatabases, err error) {
	if _, err := s.config(); err != nil {
		return nil, err
	}
	db, err := s.database(ctx)
	if err := all.add(s.cfg.Database, db, err); err != nil {
		return nil, err
	}
	for _, name := range transportNames(s.cfg) {
		db, err := s.storeOf(ctx, name)
		if err := all.add(s.cfg.StoreOf(name), db, err); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// drainedOf lists the names with handlers or an upcaster, and the aliases, that are not in
// seen.
func drainedOf(bus *waybill.Bus, seen map[string]bool) []drained {
	all := []drained{}
	for _, name := range bus.Types().Names() {
		if handlers := bus.Handlers(name); len(handlers) > 0 && !seen[name] {
			all = append(all, drained{Name: name, Handlers: handlers})
		}
	}
	handlers := func(name string) []string {
		versions := bus.Types().Versions(name)
		return bus.Handlers(versions[len(versions)-1])
	}
	for old, name := range bus.Types().Aliases() {
		if !seen[old] {
			all = append(all, drained{Name: old, AliasOf: name, Handlers: handlers(name)})
		}
	}
	for old, next := range bus.Types().Upcasters() {
		if !seen[old] {
			all = append(all, drained{Name: old, UpcastTo: next, Handlers: handlers(next)})
		}
	}
	slices.SortFunc(all, func(a, b drained) int { return strings.Compare(a.Name, b.Name) })
	return all
}

func (s *session) printPreflight(r preflightResult) {
	if s.flags.json {
		s.stdout.json(r)
		return
	}
	tableOf(s.stdout, []string{"SOURCE", "TRANSPORT", "NAME", "MESSAGES", "SAMPLES", "HANDLERS", "RESULT", "DATABASE"}, r.Messages, func(g *preflightGroup) []any {
		return []any{g.Source, g.Transport, g.Name, count(g.Messages), count(g.Samples), strings.Join(g.Handlers, ", "), g.verdict(), g.Database}
	})
	for _, g := range r.Messages {
		for _, f := range g.Failures {
			s.stdout.line("%s", visible(fmt.Sprintf("finding: %s of %s in %s: %s (%s of %s, such as row %d, id %s)",
				g.Name, g.Transport, sourceNames[g.Source], f.Error, count(f.Samples), plural(g.Samples, "sample"), f.Row, f.ID)))
		}
	}
	for _, d := range r.Drained {
		switch {
		case d.AliasOf != "":
			s.stdout.line("%s: drained: its alias of %s may go", d.Name, d.AliasOf)
		case d.UpcastTo != "":
			s.stdout.line("%s: drained: its upcaster to %s may go", d.Name, d.UpcastTo)
		default:
			s.stdout.line("%s: drained: its handler may go (%s)", d.Name, strings.Join(d.Handlers, ", "))
		}
	}
	if len(r.Unread) > 0 {
		s.say("not read, for they are at a broker: the queues of %s: what is drained here may still be there", strings.Join(r.Unread, ", "))
	}
}

// sourceNames are the sources in sentences.
var sourceNames = map[string]string{
	admin.SourceOutbox: "the outbox", admin.SourceDelayed: "the delayed messages", admin.SourceQueue: "a queue",
	admin.SourceRetries: "the retry queue", admin.SourceFailed: "the dead letters",
}
