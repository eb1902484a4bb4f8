package waytest

import (
	"context"

	"github.com/waybill-go/waybill/outbox"
)

// NoTraits is all of an outbox.Publisher but Publish: without a connection and without
// traits. A test embeds it in a publisher of its own.
type NoTraits struct{}

// Traits implements outbox.Publisher.
func (NoTraits) Traits() outbox.PublisherTraits { return outbox.PublisherTraits{} }

// Connect implements outbox.Publisher.
func (NoTraits) Connect(context.Context) error { return nil }

// Isolated implements outbox.Publisher.
func (NoTraits) Isolated() outbox.Publisher { return nil }
