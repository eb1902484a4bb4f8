package admin

import (
	"context"
	"time"

	"github.com/waybill-go/waybill"
)

// FindLimit is how many messages of each table the tools of operators search.
const FindLimit = 5000

// A MessageFinder finds messages by their ids, beside a Database. Its method may be called
// concurrently, also while relays and workers run.
type MessageFinder interface {
	// FindMessages lists the stored messages with an id or with it as causation id, in the
	// order of their dispatch. Ids and headers have no index: it searches up to limit messages
	// of each table, the newest where ids give their order. A message that was handled is not
	// stored any more.
	FindMessages(ctx context.Context, id waybill.MessageID, limit int) ([]StoredMessage, error)
}

// A StoredMessage is a message that waits in a table, or is a dead letter.
type StoredMessage struct {
	Source        string            `json:"source"`    // SourceOutbox and its like
	Transport     string            `json:"transport"` // of a queue of the database: queue://NAME
	Row           int64             `json:"row"`       // in its table, or the number of a dead letter
	Name          string            `json:"name"`
	Key           string            `json:"key"`
	ID            waybill.MessageID `json:"id"`
	CreatedAt     time.Time         `json:"created_at"`
	CausationID   string            `json:"causation_id,omitempty"`
	CorrelationID string            `json:"correlation_id,omitempty"`
}
