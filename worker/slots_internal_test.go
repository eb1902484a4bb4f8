package worker

import (
	"context"
	"testing"
	"testing/synctest"
)

// A grant looks at each worker of its Slots, and not at each of their messages. A worker without a
// message that waits is forgotten, whether its last one got a slot or gave up.
func TestSlotsLookAtWorkersNotAtMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := NewSlots(1)
		if err != nil {
			t.Fatal(err)
		}
		shares := []*slotShare{{weight: 1, most: 1}, {weight: 1, most: 1}, {weight: 1, most: 1}}
		ctx, cancel := context.WithCancel(t.Context())
		had := make(chan bool, 100)
		for i := range 100 {
			go func() { had <- s.acquire(ctx, shares[i%3]) }()
		}
		synctest.Wait()
		if len(s.wait) != 3 {
			t.Errorf("a grant looks at %d, want the 3 workers", len(s.wait))
		}
		for range 30 {
			for _, share := range shares {
				if share.running > 0 {
					s.release(share)
					break
				}
			}
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		granted := 0
		for range 100 {
			if <-had {
				granted++
			}
		}
		if granted != 31 || len(s.wait) != 0 {
			t.Errorf("%d of 100 messages had the slot, and a grant looks at %d workers, want 31 and none", granted, len(s.wait))
		}
	})
}
