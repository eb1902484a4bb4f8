package waymysql

import "context"

// flush has the server write what made the rows that were read, if any. InnoDB
// shows a commit before it is in its log: a server that is killed in between
// forgets the row, and gives its id to another. A commit of our own is written
// after all that we have seen. The claim's own session is silent meanwhile: it
// must still be there, and counts anew.
func (h *holder) flush(ctx context.Context, rows int) error {
	if rows == 0 || !h.db.showsUnwritten() {
		return nil
	}
	if _, err := h.db.pool.ExecContext(ctx, h.db.outbox.Query("flush")); err != nil {
		return err
	}
	return h.conn.PingContext(ctx)
}
