// Package wayamqp publishes to RabbitMQ and receives from it, through
// rabbitmq/amqp091-go with its automatic recovery off.
//
// A [Publisher] publishes for a relay: it has one connection, on it one channel in
// confirm mode for each exchange, and derives the result of a record from the
// broker's confirmation and return. A [Consumer] receives for a worker: it has its
// own connection, keeps the order of each key and holds messages that wait for a
// retry. Neither declares anything: [Declare] does. docs/wire.md specifies the
// messages.
package wayamqp
