// Package waycli is the command line of waybill, for the stock binary and for
// the binary of an application: [Main] runs the whole program, [New] returns the
// commands to mount under a root command of the application.
//
// The drivers of databases and brokers are passed in with [App], so that a binary
// compiles only the ones it uses. With [App.Bus] the binary has handlers, and consume
// runs them; without, consume runs a command for each message. It builds on a [Service],
// which opens what the configuration names; run is a whole service in one process.
//
// Results go to stdout, talk, progress and logs to stderr. Every command knows
// --json: one JSON document on stdout (dispatch: one line per message), whose
// fields are only ever added to, and one on stderr for an error. For the exit codes
// see [ExitCode].
package waycli
