// Package wayprom counts messages for Prometheus: Metrics is an observer of outboxes, relays,
// workers and buses, NewCollector reads the figures of a database when it is scraped.
//
// Labels are transports, handlers and names of messages, never ids or keys. Names beyond the
// first MaxNames, and those that no type is registered for, count as "other", so that nobody
// who can send messages can fill a server with series.
package wayprom
