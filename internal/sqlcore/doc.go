// Package sqlcore is the part of a database leaf that is the same on every
// database: migrations, the buffer of a unit of work, the shell of a queue, and
// wake-ups. It has no SQL.
package sqlcore
