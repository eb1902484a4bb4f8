package sim

import (
	"slices"
	"time"
)

// buckets and keys are few, so that conflicts are frequent.
const buckets, keys = 3, 7

// idleTimeout is how long a relay's transaction may be silent; see outbox's fence.
const idleTimeout = 30 * time.Second

// A message is a dispatched message.
type message struct {
	no     int // its number, and its id
	key    int
	commit int  // its number in commit order; 0 before its commit
	buried bool // it was a dead letter, and has left the order of its key
}

// A row is a row of the outbox.
type row struct {
	id      int64
	bucket  int16 // plus aside while its key is parked
	message *message
	visible bool // its transaction has committed
	gone    bool
}

// database models a database with row locks and READ COMMITTED. A statement
// is instantaneous, except where its snapshot is older than its locks.
type database struct {
	*world
	last     int64
	rows     []*row
	dispatch [buckets]gate // dispatch locks
	claims   [buckets]gate // locks of the rows of the bucket table
	versions [buckets]int64
	blocked  map[int]*blocked
	inbox    map[int]*entry
	retries  []*retry // the retry queue, in order
	letters  []*deadLetter
	sessions []*tx // open ones
	commits  int
}

// A gate is a lock with a queue of waiting transactions.
type gate struct {
	holder  *tx
	waiting []waiter
}

type waiter struct {
	tx   *tx
	then func()
}

// blocked is the entry of a blocked key.
type blocked struct {
	head     *row
	failures int
	until    time.Duration
	parked   bool // until it is released
	retrying *tx  // the transaction that has the entry's lock
}

// An entry is an inbox entry.
type entry struct {
	by        *tx
	committed bool
	waiting   []func()
}

// A tx is a transaction with its session.
type tx struct {
	db       *database
	process  *process
	over     bool
	heard    time.Duration // time of its last statement
	onCommit []func()
	onEnd    []func()
}

// begin opens a transaction.
func (db *database) begin(p *process) *tx {
	t := &tx{db: db, process: p, heard: db.now}
	db.sessions = append(db.sessions, t)
	return t
}

// gone rolls back the open transactions of a killed process: the server soon notices
// the closed sockets.
func (db *database) gone(p *process) {
	for _, t := range db.sessions {
		if t.process == p {
			db.after(db.between(0, 20*time.Millisecond), func() { t.end(false) })
		}
	}
}

// idle makes the server roll the transaction back after idleTimeout without a
// statement.
func (t *tx) idle() {
	t.db.after(idleTimeout, func() {
		switch silent := t.db.now - t.heard; {
		case t.over:
		case silent >= idleTimeout:
			t.db.trace("%s: its transaction was idle for too long", t.process.name)
			t.end(false)
		default:
			t.idle()
		}
	})
}

// do runs a statement, and reports whether the transaction was still open.
func (t *tx) do(th *thread, step string, statement func()) (ok bool) {
	th.request(step, func(reply func()) {
		if ok = !t.over; ok {
			t.heard = t.db.now
			statement()
		}
		reply()
	})
	return ok
}

// commit commits, and reports whether the transaction was still open.
func (t *tx) commit(th *thread, step string) bool {
	return t.do(th, step, func() { t.end(true) })
}

func (t *tx) rollback(th *thread, step string) { t.do(th, step, func() { t.end(false) }) }

// end commits or rolls back.
func (t *tx) end(commit bool) {
	if t.over {
		return
	}
	t.over = true
	t.db.sessions = slices.DeleteFunc(t.db.sessions, func(other *tx) bool { return other == t })
	if commit {
		for _, do := range t.onCommit {
			do()
		}
	}
	for _, do := range t.onEnd {
		do()
	}
}

// restart rolls back all open transactions.
func (db *database) restart() {
	db.trace("the database is restarted")
	for _, t := range slices.Clone(db.sessions) {
		t.end(false)
	}
}

// lock acquires a gate, once its holder has released it, and calls then. It calls then
// without the gate if t is over.
func (db *database) lock(t *tx, g *gate, then func()) {
	switch {
	case t.over || g.holder == t:
		then()
		return
	case g.holder != nil:
		g.waiting = append(g.waiting, waiter{t, then})
		return
	}
	g.holder = t
	t.onEnd = append(t.onEnd, func() {
		g.holder = nil
		for g.holder == nil && len(g.waiting) > 0 {
			next := g.waiting[0]
			g.waiting = g.waiting[1:]
			db.lock(next.tx, g, next.then)
		}
	})
	then()
}

// insert writes messages to the outbox; they get their ids now.
func (db *database) insert(t *tx, messages []*message) {
	for _, m := range messages {
		db.last++
		r := &row{id: db.last, bucket: int16(m.key % buckets), message: m}
		db.rows = append(db.rows, r)
		t.onCommit = append(t.onCommit, func() {
			r.visible = true
			db.commits++
			m.commit = db.commits
			db.laws.committed(m)
			db.trace("%s: message %d of key %d is committed as %d, row %d", t.process.name, m.no, m.key, m.commit, r.id)
		})
		t.onEnd = append(t.onEnd, func() { r.gone = r.gone || !r.visible })
	}
}

// visible returns the rows of the outbox in a snapshot taken now.
func (db *database) visible() []*row {
	db.rows = slices.DeleteFunc(db.rows, func(r *row) bool { return r.gone })
	var all []*row
	for _, r := range db.rows {
		if r.visible {
			all = append(all, r)
		}
	}
	return all
}

// remember inserts an inbox entry, after the end of an open transaction with the same
// entry. fresh is true if the entry was inserted.
func (db *database) remember(t *tx, no int, then func(fresh bool)) {
	e := db.inbox[no]
	switch {
	case t.over:
		then(false)
	case e == nil:
		e = &entry{by: t}
		db.inbox[no] = e
		t.onCommit = append(t.onCommit, func() { e.committed = true })
		t.onEnd = append(t.onEnd, func() {
			if !e.committed {
				delete(db.inbox, no)
			}
			for _, again := range e.waiting {
				again()
			}
		})
		then(true)
	case e.committed:
		then(false)
	default:
		e.waiting = append(e.waiting, func() { db.remember(t, no, then) })
	}
}
