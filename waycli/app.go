package waycli

import (
	"context"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/history"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/schedule"
	"github.com/waybill-go/waybill/worker"
)

// An App is the binary that the commands are part of.
type App struct {
	// Name is the name of the command. Empty means "waybill".
	Name string
	// Version is printed by `version`. Empty means the version that the Go toolchain
	// recorded in the binary.
	Version string
	// Databases are the drivers, by the scheme of their DSNs.
	Databases map[string]Driver
	// Brokers are the brokers, by the scheme of their DSNs.
	Brokers map[string]Broker
	// Bus returns the application's handlers, which may use what svc has opened. It is
	// called once per command that needs them; ctx lives as long as the command. A panic
	// with an error in it, as of a refused message type, is reported like a returned one.
	// Nil means that the binary has no handlers.
	Bus func(ctx context.Context, svc *Service) (*waybill.Bus, error)
	// Traces returns a tracer of messages and what ends it, or nil for none: see package
	// waycli/otlp. Its error is logged, and keeps no command from its work. Nil means no traces.
	Traces func(ctx context.Context, service string, log *slog.Logger) (tracer waybill.Tracer, shutdown func(context.Context) error, err error)
	// Commands are further commands of the binary.
	Commands []*cobra.Command
}

// A Driver opens one kind of database for the commands.
type Driver struct {
	// Open opens the database of dsn. An error wraps waybill.ErrUnavailable if the
	// database cannot be reached; any other error means that dsn is wrong, and may
	// be an *Error with a hint.
	Open func(ctx context.Context, dsn config.DSN, how Open) (Database, error)
	// SchemaSQL returns the SQL of SchemaUp for an empty database, without opening
	// one.
	SchemaSQL func(names Names) (string, error)
	// Schema returns the schema (namespace) of the tables of dsn. Nil means that its
	// databases have no schemas.
	Schema func(dsn config.DSN) string
}

// Names are the schema and the prefix of the tables. Empty ones mean the default.
type Names struct {
	Schema string // only with Driver.Schema
	Prefix string
}

// Open is how a Driver opens a database.
type Open struct {
	// Create allows to create the database if it does not exist.
	Create bool
	// Retention is how long inbox entries are kept.
	Retention time.Duration
	// IdleTimeout is how long a relay or worker that holds locks may be silent before the
	// database ends its session.
	IdleTimeout time.Duration
	// ReadOnly has the database refuse every write of its sessions.
	ReadOnly bool
	// Connections is how many connections the command can use at once. Zero means
	// the driver's usual limit.
	Connections int
}

// A Database is one open database. Its methods may be called concurrently.
type Database interface {
	admin.Database
	admin.Retries
	admin.DeadLetters
	admin.Sampler
	admin.MessageFinder
	admin.Workers
	admin.Schedules
	history.Store
	worker.Store
	worker.Registry
	outbox.Store
	inbox.Log
	inbox.Pruner
	// Dispatcher returns a Dispatch for an outbox on the database: NewDispatch.
	Dispatcher(cfg outbox.Config) (Dispatch, error)
	// Schedule returns the Run of schedules that dispatch to an outbox on the database:
	// RunSchedules.
	Schedule(cfg outbox.Config, log *slog.Logger, schedules []schedule.Schedule) (Run, error)
	// Queue returns the queue of a queue:// DSN in this database; the database option
	// of the DSN is ignored. Each call returns a separate receiver.
	Queue(dsn config.DSN) (Queue, error)
	Close() error
}

// Dispatch dispatches messages, each a struct or an *waybill.Envelope, in one
// transaction: all or none.
type Dispatch func(ctx context.Context, msgs ...any) ([]waybill.MessageID, error)

// A Queue is the publisher and the receiver of a transport that is a table.
type Queue interface {
	outbox.Publisher
	waybill.Receiver
}
