package waysqlite

import (
	"context"
	"encoding/json"

	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// Settle implements outbox.Claim.
func (c *claim) Settle(ctx context.Context, published []outbox.ClaimedRow, failed []outbox.Failure) error {
	if len(c.rows) == 0 {
		return nil
	}
	defer c.db.letGo(c.part)
	if len(published)+len(failed) == 0 {
		return nil
	}
	s := &settlement{claim: c, failed: c.blocking(published, failed)}
	if err := s.findParked(ctx); err != nil {
		return err
	}
	err := c.db.write(ctx, func(tx *txn) error { return s.write(ctx, tx, published) })
	if err == nil && s.changed {
		c.db.wakes.Hint(c.part.transport) // keys may be unblocked
	}
	return err
}

// A settlement is the state of one Settle.
type settlement struct {
	*claim
	failed  []outbox.Failure
	parked  []int64 // rows to set aside
	changed bool    // the set of blocked keys changes
}

// blocking returns the failures that count: of each key the first, moved to the
// key's first row that is not published. With several rows of a key in flight, the
// row in front of a refused one may have no result.
func (c *claim) blocking(published []outbox.ClaimedRow, failed []outbox.Failure) (counted []outbox.Failure) {
	gone := map[int64]bool{}
	for _, row := range published {
		gone[row.ID] = true
	}
	of := map[int64]outbox.Failure{}
	for _, f := range failed {
		of[f.Row.ID] = f
		gone[f.Row.ID] = f.Skips()
	}
	heads, done := map[string]outbox.ClaimedRow{}, map[string]bool{} // by key
	for _, row := range c.rows {
		key := row.Record.Key
		f, refused := of[row.ID]
		if _, ok := heads[key]; !ok && !gone[row.ID] && key != "" {
			heads[key] = row
		}
		if !refused || done[key] {
			continue
		}
		if head, ok := heads[key]; ok && head.ID != row.ID && !f.Skips() {
			f.Row, f.Suspect = head, true // the head was not refused: no failure counts
		}
		done[key] = key != "" && !f.Skips()
		counted = append(counted, f)
	}
	return counted
}

// maxParked bounds the rows that one settlement sets aside; later rows of the keys
// stay and wait.
const maxParked = 10_000

// findParked reads the rows of the keys to park before the write transaction:
// dispatchers need not wait for a scan, and rows that they commit meanwhile wait
// behind the entry.
func (s *settlement) findParked(ctx context.Context) (err error) {
	var heads []int64
	for _, f := range s.failed {
		if f.Parks() {
			heads = append(heads, f.Row.ID)
		}
	}
	if len(heads) == 0 {
		return nil
	}
	s.parked, err = ids(s.db.readRows(ctx, s.db.outboxSQL.Query("rows_of_keys"), s.transport, list(heads), maxParked))
	return err
}

func (s *settlement) write(ctx context.Context, tx *txn, published []outbox.ClaimedRow) error {
	if _, err := tx.exec(ctx, s.db.outboxSQL.Query("delete"), list(rowIDs(published))); err != nil {
		return err
	}
	if s.part.part == outbox.Retries {
		for _, row := range published {
			if err := s.unblock(ctx, tx, row); err != nil {
				return err
			}
		}
	}
	for _, f := range s.failed {
		if err := s.refuse(ctx, tx, f); err != nil {
			return err
		}
	}
	if len(s.parked) > 0 {
		if _, err := tx.exec(ctx, s.db.outboxSQL.Query("set_aside"), list(s.parked)); err != nil {
			return err
		}
	}
	if !s.changed {
		return nil
	}
	return s.bump(ctx, tx)
}

// refuse records a failure and follows its policy.
func (s *settlement) refuse(ctx context.Context, tx *txn, f outbox.Failure) error {
	row, count := f.Row, 1
	if f.Suspect {
		count = 0
	}
	delay := min(f.RetryIn, longestDelay).Microseconds()
	entered, err := tx.exec(ctx, s.db.outboxSQL.Query("block"), row.ID, count, delay, sqlcore.Clip(f.Err.Error()), string(f.Policy))
	if err != nil || entered == 0 { // an operator has removed the row
		return err
	}
	s.changed = s.changed || s.part.part == outbox.Keyed
	switch {
	case f.Parks():
		_, err = tx.exec(ctx, s.db.outboxSQL.Query("park"), s.transport, row.Record.Key, row.ID)
	case f.Skips():
		if err := s.db.skip(ctx, tx, row.ID); err != nil {
			return err
		}
		err = s.unblock(ctx, tx, row)
	case s.part.part == outbox.Unkeyed:
		_, err = tx.exec(ctx, s.db.outboxSQL.Query("hold"), row.ID)
	}
	return err
}

// skip moves a row that has an entry to the failed messages.
func (db *DB) skip(ctx context.Context, tx *txn, id int64) error {
	if n, err := tx.exec(ctx, db.outboxSQL.Query("skip"), id); err != nil || n == 0 {
		return err
	}
	_, err := tx.exec(ctx, db.outboxSQL.Query("delete"), list([]int64{id}))
	return err
}

// unblock deletes the entry of a row that has left the outbox.
func (s *settlement) unblock(ctx context.Context, tx *txn, row outbox.ClaimedRow) error {
	s.changed = s.changed || row.Record.Key != ""
	_, err := tx.exec(ctx, s.db.outboxSQL.Query("unblock"), s.transport, row.Record.Key, row.ID)
	return err
}

// bump invalidates the transport's cursor.
func (c *claim) bump(ctx context.Context, tx *txn) error {
	_, err := tx.exec(ctx, c.db.outboxSQL.Query("bump"), c.transport)
	return err
}

func rowIDs(rows []outbox.ClaimedRow) []int64 {
	ids := make([]int64, len(rows))
	for i, row := range rows {
		ids[i] = row.ID
	}
	return ids
}

// list encodes ids for json_each, nil as null.
func list(ids []int64) string {
	text, _ := json.Marshal(ids) // numbers always encode
	return string(text)
}
