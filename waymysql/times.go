package waymysql

import "time"

// Times cross the connection as text and microseconds, because the driver's reading
// of a DATETIME depends on settings of the connection.

// stamp is a time as DATETIME(6) takes it.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000000") }

// at is the time that statements return as TIMESTAMPDIFF(MICROSECOND, ...).
func at(micros int64) time.Time { return time.UnixMicro(micros).UTC() }
