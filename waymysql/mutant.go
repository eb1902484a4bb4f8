package waymysql

import (
	"context"
	"slices"

	"github.com/waybill-go/waybill/internal/readpos"
	"github.com/waybill-go/waybill/outbox"
)

// lockArm is the bucket of the rows that name the buckets locked by lockAndRead.
const lockArm = -4

// lockAndRead returns a read whose statement also takes the locks on buckets, behind
// the arm by which its snapshot is taken: the mutant lock-and-read-at-once.
func (c *claim) lockAndRead(buckets []int16) func(context.Context, clause, outbox.ClaimLimit) ([]readpos.Row, error) {
	lock := c.fill("planted_lock", lockArm, lockArm, c.on.Transport, numbers(buckets))
	return func(ctx context.Context, reading clause, limit outbox.ClaimLimit) ([]readpos.Row, error) {
		found, err := c.read(ctx, unionAll([]clause{lock, reading}), limit)
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
