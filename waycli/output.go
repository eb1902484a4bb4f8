package waycli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/waybill-go/waybill/config"
)

// An output is stdout. It keeps the first error, so that a full disk is not taken
// for success.
type output struct {
	mu  sync.Mutex
	w   io.Writer // guarded by mu
	err error     // guarded by mu
}

// Write implements io.Writer. It may be called concurrently.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.w.Write(p)
	o.err = err
	return n, err
}

// failure returns the first error of a Write.
func (o *output) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// line prints one line.
func (o *output) line(format string, args ...any) { fmt.Fprintf(o, format+"\n", args...) }

// json prints v, which can be encoded, as one line.
func (o *output) json(v any) {
	enc := json.NewEncoder(o)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // o has the error
}

// table prints rows under a header.
func (o *output) table(header []string, rows [][]any) {
	w := tabwriter.NewWriter(o, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(header, "\t"))
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = plain(fmt.Sprint(cell))
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	_ = w.Flush() // o has the error
}

// tableOf prints a row for each item under a header.
func tableOf[T any](o *output, header []string, items []T, row func(T) []any) {
	rows := make([][]any, len(items))
	for i, item := range items {
		rows[i] = row(item)
	}
	o.table(header, rows)
}

// plain returns s, quoted if it has unprintable characters: keys and errors are
// untrusted, and must not control the terminal.
func plain(s string) string {
	if strings.ContainsFunc(s, unprintable) {
		return strconv.Quote(s)
	}
	return s
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }

// visible returns s with its unprintable characters escaped, for text of which a part
// is a stranger's.
func visible(s string) string {
	if !strings.ContainsFunc(s, unprintable) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if unprintable(r) {
			quoted := strconv.Quote(s[:n])
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}

// ago returns a time as its distance from now, short.
func ago(t time.Time) string { return short(time.Since(t)) }

func short(d time.Duration) string {
	switch {
	case d < 0:
		return "in " + short(-d)
	case d >= 48*time.Hour:
		return strconv.Itoa(int(d/(24*time.Hour))) + "d"
	case d >= time.Minute:
		return config.FormatDuration(d.Round(time.Second))
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// count returns n with thousands separators.
func count(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// plural returns "1 message", "2 messages".
func plural(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "y") && !strings.HasSuffix(noun, "ey"):
		return count(n) + " " + strings.TrimSuffix(noun, "y") + "ies"
	case strings.HasSuffix(noun, "s"):
		return count(n) + " " + noun + "es"
	}
	return count(n) + " " + noun + "s"
}
