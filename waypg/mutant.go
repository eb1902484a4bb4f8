package waypg

import (
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/internal/lane"
)

// lockAndRead makes one statement of lock_buckets and claim_free, for the mutant
// lock-and-read-at-once.
func (c *claim) lockAndRead() string {
	lock := strings.TrimSuffix(strings.TrimSpace(c.at.outbox.Query("lock_buckets")), ";")
	read := strings.NewReplacer(
		"unnest($2::smallint[], $3::bigint[]) WITH ORDINALITY AS k (bucket, after, n)", "(SELECT bucket, ($6::bigint[])[bucket + 1], 1 FROM locked) AS k (bucket, after, n)",
		"$4", "$9", "$5", "$10").Replace(c.at.outbox.Query("claim_free"))
	return "WITH locked AS MATERIALIZED (" + lock + ") " + read
}

// readAtOnce reads what lockAndRead answers.
func (c *claim) readAtOnce(rows pgx.Rows) (locked []int16, err error) {
	defer rows.Close()
	for rows.Next() {
		r, version := lane.Row{Claimed: newRow()}, int64(0)
		if err := scanFree(rows, &version, &r); err != nil {
			return nil, err
		}
		c.atOnce = append(c.atOnce, r)
		if !slices.Contains(locked, r.Bucket) {
			locked = append(locked, r.Bucket)
		}
	}
	return locked, rows.Err()
}
