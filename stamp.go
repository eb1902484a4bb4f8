package waybill

import "time"

// A Stamp is one piece of metadata on an envelope, found by its type. The stamps of
// this package that the wire format knows travel with the message; stamps of the
// application stay in the process that set them, except a [Header].
type Stamp interface{ Stamp() }

type (
	// MessageName is the semantic name under which the message travels. Dispatch and
	// decoding set it, whatever was set before.
	MessageName string

	// PartitionKey orders the message among messages with an equal key. As a stamp
	// it overrides the message's own PartitionKey method. At most 255 bytes of
	// UTF-8 without NUL; empty means unordered.
	PartitionKey string

	// Delay holds the message back for this long after its dispatch. In its
	// key's order it counts from the moment it is due.
	Delay time.Duration

	// IdempotencyKey is a business key such as "payment-42-v3": handlers with
	// an inbox run once for it, however many messages of one name carry it.
	IdempotencyKey string

	// Unique makes an outbox send one message of all that are dispatched with this key
	// under one name, from the first on for the time For, by the database's clock. A
	// later dispatch sends nothing and returns the id of the first, without an error. Two
	// dispatchers of a key wait for each other: the second waits until the transaction of
	// the first has ended, and sends if that was rolled back. At most 255 bytes.
	Unique struct {
		Key string
		For time.Duration
	}

	// CorrelationID is shared by all messages of one conversation.
	CorrelationID string

	// CausationID is the id of the message whose handler dispatched this one.
	CausationID string

	// TransportNames overrides the routing of one dispatch. It names a transport once.
	TransportNames []string

	// DerivedID asks for an id computed from the message being handled, its
	// handler and this label, so that a handler that runs again dispatches the
	// same id again. It needs a context given to a handler.
	DerivedID string

	// DispatchAfterCurrentBus makes a message dispatched by a handler or middleware wait
	// until the bus has handled or sent the current one without error; if it fails, the
	// message is dropped. The current one is the outermost: that which was received, or
	// dispatched first. Elsewhere the stamp does nothing. The message belongs to no
	// transaction, and a crash after the handler loses it: use an outbox for messages
	// that must not be lost. A handler with an inbox is refused it.
	DispatchAfterCurrentBus struct{}

	// DispatchedAt is when the message was dispatched.
	DispatchedAt time.Time

	// UpcastFrom is the name under which a message travelled that an upcaster has
	// converted; MessageName is that of the newest version.
	UpcastFrom string

	// BusName is the name of the bus that the message passes.
	BusName string

	// Received says that the message came from the named transport; without it
	// a bus is dispatching.
	Received struct{ Transport string }

	// Redelivery counts how often handling this message has failed before.
	Redelivery struct{ Failures int }

	// SentToFailureTransport names the transport on which the retries ended.
	SentToFailureTransport struct{ From string }

	// ErrorDetails describes the failure of one attempt.
	ErrorDetails struct {
		Handler string
		Error   string
		At      time.Time
	}

	// HandledBy says that the named handler has already succeeded, so that a
	// retry leaves it out.
	HandledBy string

	header struct{ name, value string }
)

// Header returns a stamp that travels as an application header. Encoding refuses a
// name that waybill or a broker uses itself.
func Header(name, value string) Stamp { return header{name, value} }

// Stamp marks the type as a stamp, as do the methods below.
func (MessageName) Stamp()             {}
func (PartitionKey) Stamp()            {}
func (Delay) Stamp()                   {}
func (IdempotencyKey) Stamp()          {}
func (Unique) Stamp()                  {}
func (CorrelationID) Stamp()           {}
func (CausationID) Stamp()             {}
func (TransportNames) Stamp()          {}
func (DerivedID) Stamp()               {}
func (DispatchAfterCurrentBus) Stamp() {}
func (DispatchedAt) Stamp()            {}
func (UpcastFrom) Stamp()              {}
func (BusName) Stamp()                 {}
func (Received) Stamp()                {}
func (Redelivery) Stamp()              {}
func (SentToFailureTransport) Stamp()  {}
func (ErrorDetails) Stamp()            {}
func (HandledBy) Stamp()               {}
func (header) Stamp()                  {}
