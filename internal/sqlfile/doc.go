// Package sqlfile reads SQL from separate files.
//
// A leaf embeds one file of named statements and parses it once:
//
//	-- name: claim
//	-- Leases due records to one owner, oldest first.
//	UPDATE waybill_outbox SET owner = ?1 WHERE id = ?2;
//
//	-- name: done
//	-- Forgets a confirmed record.
//	DELETE FROM waybill_outbox WHERE id = ?1;
//
// Set.Query gives back the statement alone, without its comments and without
// the semicolon that makes it pasteable into the database's shell. Rewrite puts
// another table prefix in the place of waybill_; Statements cuts a migration
// script into the statements a driver takes one by one.
//
// The package reads the SQL that SQLite, PostgreSQL and MySQL agree on, plus
// dollar quotes, backticks and the bodies of triggers and routines. Where the
// three disagree the files keep to the common ground: a quote inside a string
// is doubled and never escaped by a backslash (except in E'text'), double
// quotes hold names and single quotes hold strings, comments are written with
// -- or /* */ and do not nest, a # is no comment. A body of several statements
// stands between BEGIN and END, or between dollar quotes.
package sqlfile
