package waymysql

import (
	"context"
	"fmt"
	"slices"

	"github.com/waybill-go/waybill/internal/readpos"
	"github.com/waybill-go/waybill/outbox"
)

// lockArm is the bucket of the rows that name what lockAndRead has locked.
const lockArm = -4

// lockAndRead returns a read whose statement also takes the locks on buckets, behind
// the arm by which its snapshot is taken: the mutant lock-and-read-at-once.
func (c *claim) lockAndRead(buckets []int16) func(context.Context, string, outbox.ClaimLimit) ([]readpos.Row, error) {
	text := fmt.Sprintf("(SELECT %d, id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM %stransport LIMIT 1) UNION ALL"+
		" (SELECT %[1]d, bucket, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM %[2]soutbox_bucket FORCE INDEX (PRIMARY) WHERE transport = %d AND bucket IN (%s) FOR UPDATE SKIP LOCKED) UNION ALL ",
		lockArm, qualified(c.db.schema, c.db.prefix), c.on.Transport, join(buckets))
	return func(ctx context.Context, reading string, limit outbox.ClaimLimit) ([]readpos.Row, error) {
		found, err := c.read(ctx, text+reading, limit)
		var locked []int64
		return slices.DeleteFunc(found, func(r readpos.Row) bool {
			if r.Bucket == lockArm {
				locked = append(locked, *r.Last)
				return true
			}
			return !slices.Contains(locked, int64(r.Bucket))
		}), err
	}
}
