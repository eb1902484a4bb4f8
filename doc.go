// Package waybill holds the words that every part of waybill speaks:
// [Envelope] and [Stamp], [Bus] and [Middleware], [Types] and [Codec],
// [Record], [Sender] and [Receiver].
//
// waybill is transactional messaging. A message dispatched inside the
// application's own database transaction reaches the broker in order per key,
// at least once, under an id that never changes; on the other side each
// handler's effect happens exactly once.
//
// A message is a struct with a semantic name:
//
//	type OrderPlaced struct {
//		OrderID string `json:"orderId"`
//		Cents   int    `json:"cents"`
//	}
//
//	func (OrderPlaced) MessageName() string    { return "order.placed" }
//	func (m OrderPlaced) PartitionKey() string { return m.OrderID } // optional
//
// Package outbox dispatches it inside a transaction and relays it to a
// broker, package worker receives it and runs a bus, package inbox gives a
// handler a transaction and its effect once. Databases and brokers are leaf
// packages (waysqlite, ...), each over one client library.
package waybill
