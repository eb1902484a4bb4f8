// Package wayamqp publishes to RabbitMQ and receives from it, through
// rabbitmq/amqp091-go with its automatic recovery off.
//
// A [Publisher] is what a relay publishes through: it has one connection, on it
// one channel in confirm mode for each exchange, and judges every record by the
// broker's confirmation and by whether the broker could route it. A [Consumer]
// is what a worker receives from: it has its own connection, keeps the
// order of each key and holds what waits for a retry. Neither declares
// anything: [Declare] does. docs/wire.md says what a message looks like.
package wayamqp
