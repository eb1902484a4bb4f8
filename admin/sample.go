package admin

import (
	"context"

	"github.com/waybill-go/waybill"
)

// A Sampler reads samples of all stored messages, beside a Database. Its method may be
// called concurrently, also while relays and workers run.
type Sampler interface {
	// Sample calls fn for the newest and the oldest messages of each source, transport and
	// name, up to n together, in no order, as they were at one moment. It reads the names of
	// all stored messages, and the bodies of the samples. An error of fn ends it.
	Sample(ctx context.Context, n int, fn func(Sample) error) error
}

// The sources of a Sample.
const (
	SourceOutbox  = "outbox"  // due messages of the outbox
	SourceDelayed = "delayed" // delayed ones, of the outbox and of queues
	SourceQueue   = "queue"   // queues of the database
	SourceRetries = "retries" // retry queues of workers
	SourceFailed  = "failed"  // dead letters, but for removed ones
)

// Sample is one stored message with its content, which may be secret.
type Sample struct {
	Source    string
	Transport string // of a queue of the database: queue://NAME
	Name      string // as in the table, also where Record has a longer one
	Messages  int    // how many there are of this source, transport and name
	Row       int64  // in its table, or the number of a dead letter
	Record    *waybill.Record
}
