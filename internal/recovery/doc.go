// Package recovery holds the campaign that kills servers and cuts connections
// under processes which must recover by themselves, and then compares what was
// committed with what was handled. `make recover` runs it in full; the tests
// run a short form.
package recovery
