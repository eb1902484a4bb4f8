// Package inbox gives each handler its effect exactly once: the handler runs in
// a transaction together with a row that remembers the message, and both commit
// or neither. A message that arrives again finds the row and is left alone.
package inbox
