package waymysql

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/internal/lane"
	"github.com/waybill-go/waybill/outbox"
)

// lockArm is the bucket of the rows that name what lockAndRead has locked.
const lockArm = -4

// lockAndRead returns a readFrom whose statement also takes the locks on buckets,
// behind the arm by which its snapshot is taken: the mutant lock-and-read-at-once.
func (c *claim) lockAndRead(buckets []int16) func(context.Context, string, outbox.Max) (int64, []lane.Row, error) {
	lock := fmt.Sprintf(" UNION ALL (SELECT %d, bucket, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM %soutbox_bucket FORCE INDEX (PRIMARY) WHERE lane = %d AND bucket IN (%s) FOR UPDATE SKIP LOCKED) UNION ALL ",
		lockArm, qualified(c.db.schema, c.db.prefix), c.Lane.ID, join(lane.Keyed(buckets)))
	return func(ctx context.Context, text string, limit outbox.Max) (int64, []lane.Row, error) {
		version, found, err := c.readFrom(ctx, strings.Replace(text, " UNION ALL ", lock, 1), limit)
		var locked []int64
		return version, slices.DeleteFunc(found, func(r lane.Row) bool {
			if r.Bucket == lockArm {
				locked = append(locked, *r.Last)
				return true
			}
			return !slices.Contains(locked, int64(r.Bucket))
		}), err
	}
}
