// Package wayprom counts messages for Prometheus: Metrics is an observer of outboxes, relays,
// workers and buses, NewCollector reads the figures of a database when it is scraped.
//
// Labels are transports, handlers and names of messages, never ids or keys. Names beyond the
// first MaxNames, and names without a registered type, count as "other", so that no
// sender of messages can fill a server with series.
package wayprom
