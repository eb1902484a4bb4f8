package waymysql

import (
	"fmt"
	"strings"
	"time"
)

// cleanText makes s valid for a text column.
func cleanText(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
}

// clip bounds the text of an error, which a broker may have worded, to the size of
// a column.
func clip(s string, max int) string {
	s = cleanText(s)
	if len(s) > max {
		return fmt.Sprintf("%.*s...", max, s)
	}
	return s
}

// Times cross the connection as text and microseconds, because the driver's reading
// of a DATETIME depends on settings of the connection.

// stamp is a time as DATETIME(6) takes it.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000000") }

// at is the time that statements return as TIMESTAMPDIFF(MICROSECOND, ...).
func at(micros int64) time.Time { return time.UnixMicro(micros).UTC() }
