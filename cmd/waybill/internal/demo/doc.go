// Package demo runs the main job of waybill under faults and judges the result.
//
// An order service writes orders and dispatches their events, and rolls some
// transactions back on purpose. Relay processes move the messages to a broker and
// are killed with kill -9 while they work. A billing service consumes
// them, loses a share of its acknowledgements, fails now and then, and writes its
// effects with an inbox in a separate database. At the end the effects are compared
// with the messages that the order service committed.
package demo
