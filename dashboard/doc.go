// Package dashboard is a web page of the outbox, the dead letters, the retries and the
// inbox of a database, and an HTTP API on the same: an http.Handler on the contract of
// package admin.
//
// The server renders all of it: there is no JavaScript, and nothing is loaded from another
// host. Without Config.Authenticate a dashboard answers requests from its own machine only.
// Changes of many messages run in the background as operations, counted exactly before they
// begin, and are recorded in the audit table with the name of the user.
//
// A route is one line of the table in routes.go, with the role that it needs. Each handler
// returns an error, and one place renders it.
package dashboard
