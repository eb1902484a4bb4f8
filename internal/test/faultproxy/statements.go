package faultproxy

import "encoding/binary"

// PostgresStatements finds the ends of statements among the bytes of a client, read by
// read. A Sync is one: it commits what has no transaction of its own.
func PostgresStatements() func(b []byte) (ends []int) {
	started := false
	return splitter(func(head []byte) (size int, statement, ok bool) {
		switch {
		case started && len(head) == 5:
			return 1 + int(binary.BigEndian.Uint32(head[1:])), head[0] == 'Q' || head[0] == 'E' || head[0] == 'S', true
		case !started && len(head) == 4: // the first message has no type; one of 8 bytes asks for encryption
			size = int(binary.BigEndian.Uint32(head))
			started = size != 8
			return size, false, true
		}
		return 0, false, false
	})
}

// MySQLStatements does so for MySQL and MariaDB.
func MySQLStatements() func(b []byte) (ends []int) {
	const query, execute = 0x03, 0x17
	return splitter(func(head []byte) (size int, statement, ok bool) {
		if len(head) < 4 {
			return 0, false, false
		}
		size = int(head[0]) | int(head[1])<<8 | int(head[2])<<16
		if size > 0 && len(head) < 5 {
			return 0, false, false
		}
		begins := size > 0 && head[3] == 0
		return 4 + size, begins && (head[4] == query || head[4] == execute), true
	})
}

// splitter cuts a stream into messages. parse gets the first bytes of one, until it knows
// the size of the whole.
func splitter(parse func(head []byte) (size int, statement, ok bool)) func(b []byte) (ends []int) {
	var head []byte
	rest, counts := 0, false
	return func(b []byte) (ends []int) {
		for i := 0; i < len(b); {
			if rest > 0 {
				n := min(rest, len(b)-i)
				rest, i = rest-n, i+n
			} else {
				head = append(head, b[i])
				i++
				size, statement, ok := parse(head)
				if !ok {
					continue
				}
				rest, counts, head = size-len(head), statement, head[:0]
			}
			if rest == 0 && counts {
				ends = append(ends, i)
			}
		}
		return ends
	}
}
