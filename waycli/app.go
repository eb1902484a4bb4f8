package waycli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/outbox"
)

// An App is the binary that the commands are part of.
type App struct {
	// Name is what the user types. Empty means "waybill".
	Name string
	// Version is printed by `version`. Empty means what the Go toolchain
	// recorded in the binary.
	Version string
	// Databases are those that can be opened, by the scheme of their DSN.
	Databases map[string]Driver
	// Brokers are those that can be opened, by the scheme of their DSN.
	Brokers map[string]Broker
	// Bus returns the application's handlers. It is called once per command that
	// needs them; ctx lives as long as the command. A panic with an error in it,
	// as of a refused message type, is reported like a returned one. Nil means
	// that the binary has no handlers.
	Bus func(ctx context.Context, cfg *config.Config) (*waybill.Bus, error)
	// Commands are further commands of the binary's own.
	Commands []*cobra.Command
}

// A Driver is what the commands need of one kind of database.
type Driver struct {
	// Open opens what dsn names. An error that wraps waybill.ErrUnavailable says
	// that it cannot be reached, any other that dsn is wrong; as an *Error it may
	// say what to do.
	Open func(ctx context.Context, dsn config.DSN, how Open) (Database, error)
	// SchemaSQL returns what SchemaUp runs on an empty database, without one.
	SchemaSQL func(names Names) (string, error)
	// Schema returns where the tables are that dsn names, in the database's words
	// a schema. Nil means that its databases have none.
	Schema func(dsn config.DSN) string
}

// Names are those of tables. Empty ones mean the default.
type Names struct {
	Schema string // only with Driver.Schema
	Prefix string
}

// Open says how a database is to be opened.
type Open struct {
	// Create allows to create the database if it does not exist.
	Create bool
	// Retention is how long the inbox remembers.
	Retention time.Duration
	// IdleTimeout is how long a relay may be silent before what it has in hand is
	// taken from it.
	IdleTimeout time.Duration
	// Connections is how many the command can use at once. Zero means that it
	// needs no more than usual.
	Connections int
}

// A Database is one open database. Its methods may be called concurrently.
type Database interface {
	admin.Database
	outbox.Store
	inbox.Log
	// Dispatcher returns a Dispatch for an outbox on the database.
	Dispatcher(cfg outbox.Config) (Dispatch, error)
	// Queue returns the queue that a queue:// DSN names, whichever database that
	// DSN says it is in. Each call returns a receiver of its own.
	Queue(dsn config.DSN) (Queue, error)
	Close() error
}

// Dispatch dispatches messages, each a struct or an *waybill.Envelope, in one
// transaction: all or none.
type Dispatch func(ctx context.Context, msgs ...any) ([]waybill.MessageID, error)

// A Queue is both ends of a transport that is a table.
type Queue interface {
	outbox.Publisher
	waybill.Receiver
}
