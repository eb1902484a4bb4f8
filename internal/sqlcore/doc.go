// Package sqlcore is the common part of the packages waypg, waymysql and waysqlite:
// migrations, the buffer of a unit of work and its savepoints, the receiver of a queue
// in a table, repairs by an operator, and wake-ups. It has no statement on a table.
package sqlcore
