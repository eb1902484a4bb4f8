package waymysql

import (
	"cmp"
	"strings"
)

// A repeated is an insert whose row of VALUES is repeated.
type repeated struct {
	head, row, tail string
	rows            strings.Builder
	n               int // rows
	statement
}

// repeating returns an insert without a row yet.
func repeating(text string) *repeated {
	head, rest, _ := strings.Cut(text, "VALUES ")
	row, tail, ends := strings.Cut(rest, "\nON ")
	if ends {
		tail = "\nON " + tail
	}
	return &repeated{head: head, row: row, tail: tail}
}

// maxInsertRows bounds the rows of a statement.
const maxInsertRows = 1000

// full reports whether a row of so many bytes belongs in the next statement. A body above
// maxBlockBytes has a statement for itself: the server would refuse it together with others.
func (p *repeated) full(bytes int) bool {
	return p.n == maxInsertRows || p.n > 0 && p.bytes+bytes > maxBlockBytes
}

// add adds a row with a message of so many bytes, or about it.
func (p *repeated) add(message string, bytes int, values ...any) {
	if p.n++; p.n > 1 {
		p.rows.WriteByte(',')
	}
	row := fill(p.row, values...)
	p.rows.WriteString(row.text)
	p.args, p.inserts = append(p.args, row.args...), cmp.Or(p.inserts, message)
	p.bytes += bytes
}

// flush returns the statement, if it has a row, and begins anew.
func (p *repeated) flush() []statement {
	if p.n == 0 {
		return nil
	}
	done := p.statement
	done.text = p.head + "VALUES " + p.rows.String() + p.tail
	p.statement, p.n = statement{}, 0
	p.rows.Reset()
	return []statement{done}
}
