package faultproxy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/internal/test/faultproxy"
)

// The bytes of clients; a bar is behind each statement.
func TestStatementsAreFoundInReadsOfAnySize(t *testing.T) {
	for name, c := range map[string]struct {
		splitter func() func([]byte) []int
		stream   string
	}{
		"PostgreSQL": {faultproxy.PostgresStatements, "\x00\x00\x00\x08ssl?" + "\x00\x00\x00\x0c\x00\x03\x00\x00EQSx" + "p\x00\x00\x00\x06QE" + "Q\x00\x00\x00\x09BEGIN|" +
			"P\x00\x00\x00\x05E" + "B\x00\x00\x00\x04" + "E\x00\x00\x00\x05x|" + "S\x00\x00\x00\x04|" + "X\x00\x00\x00\x04"},
		"MySQL": {faultproxy.MySQLStatements, "\x05\x00\x00\x01\x03auth" + "\x00\x00\x00\x03" + "\x06\x00\x00\x00\x03BEGIN|" + "\x02\x00\x00\x00\x16P" +
			"\x05\x00\x00\x00\x17exec|" + "\x03\x00\x00\x01\x03xy" + "\x01\x00\x00\x00\x01"},
	} {
		var want []int
		stream := []byte(strings.ReplaceAll(c.stream, "|", ""))
		for i, part := range strings.Split(c.stream, "|") {
			last := 0
			if i > 0 {
				last = want[i-1]
			}
			want = append(want, last+len(part))
		}
		want = want[:len(want)-1]
		for size := 1; size <= len(stream); size++ {
			split, at := c.splitter(), 0
			var got []int
			for b := range slices.Chunk(stream, size) {
				for _, end := range split(b) {
					got = append(got, at+end)
				}
				at += len(b)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%s, reads of %d bytes: statements end at %v, want %v", name, size, got, want)
			}
		}
	}
}
