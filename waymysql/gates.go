package waymysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill/internal/sqlfile"
	"github.com/waybill-go/waybill/outbox"
)

// A gate is a bucket's dispatch lock. Transport 0 is that of all queues.
type gate struct {
	transport, bucket int16
	name              string // of its row; not part of its order
}

// gateName is the name of a transport's gates. It changes with the number of buckets: a
// process that knows another number finds no gate, and cannot take the wrong one.
func gateName(transport string, buckets int) string {
	if buckets == outbox.DefaultBuckets {
		return transport
	}
	return fmt.Sprintf("%s/%d", transport, buckets)
}

func (g gate) compare(h gate) int {
	if g.transport != h.transport {
		return int(g.transport) - int(h.transport)
	}
	return int(g.bucket) - int(h.bucket)
}

// together reports whether all locks are of one transport.
func together(locks []gate) bool {
	return locks[0].transport > 0 && locks[0].transport == locks[len(locks)-1].transport
}

// locking returns the condition for gates, by transport.
func (db *DB) locking(locks []gate) statement {
	var of []clause
	for i := 0; i < len(locks); {
		n := 1
		for i+n < len(locks) && locks[i+n].transport == locks[i].transport {
			n++
		}
		of = append(of, gatesOf(db.dispatching, locks[i:i+n]))
		i += n
	}
	all := or(of)
	return statement{gates: len(locks), text: all.text, args: all.args}
}

// noGate says why no gate was found for so many buckets: their number has changed, or
// this is not the outbox's database, or one that was restored, whose numbers are known now.
func (db *DB) noGate(ctx context.Context, tx executor, buckets int) error {
	if err := db.sameBuckets(ctx, tx, buckets); err != nil {
		return err
	}
	_, err := db.readTransports(ctx, tx)
	return errors.Join(errForeign, err)
}

// sameBuckets returns outbox.ErrBucketsChanged if the number of buckets has changed. It
// asks in the transaction, and does not wait: the number is locked while it changes.
func (db *DB) sameBuckets(ctx context.Context, tx executor, buckets int) error {
	share := "share_buckets"
	if db.isMariaDB() {
		share = "share_buckets_mariadb"
	}
	var n int
	switch err := tx.QueryRowContext(ctx, db.dispatching.Query(share)).Scan(&n); {
	case errors.Is(err, sql.ErrNoRows):
		return outbox.ErrBucketsChanged
	case is(err, errNoTable):
		return errForeign
	case err != nil:
		return fmt.Errorf("number of buckets: %w", translate(err))
	case n != buckets:
		db.setBuckets(n)
		return outbox.ErrBucketsChanged
	}
	return nil
}

// gatesOf is the condition for gates of one transport.
func gatesOf(named sqlfile.Set, locks []gate) clause {
	of := make([]int16, len(locks))
	for i, g := range locks {
		of[i] = g.bucket
	}
	return fill(named.Query("gates_of_transport"), locks[0].transport, of[0], of[len(of)-1], numbers(of), []byte(locks[0].name))
}
