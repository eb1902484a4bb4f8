// Package wayotel traces messages with OpenTelemetry: Tracer is an observer of outboxes,
// relays, workers and buses that makes spans by the semantic conventions for messaging, in one
// trace from the dispatch to the last handler.
//
// A dispatch makes a span "create" below the span of its context, and stores its traceparent
// with the message. A relay makes a span "send" below that, a worker a span "process", which is
// in the context of the handlers. A batch of a relay, and a transaction that handlers share
// (inbox.Group), have a span "send_batch" or "process_batch" with links to their messages.
// Spans hold names, ids and times, never keys, headers, bodies or the text of errors.
//
// The package needs the API of OpenTelemetry alone: the program chooses the SDK.
package wayotel
