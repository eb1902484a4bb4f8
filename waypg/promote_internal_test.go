package waypg

import (
	"testing"
	"time"
)

func TestPromoterWaitsForHeldLocksAFifthOfTheTimeAtTheMost(t *testing.T) {
	var p promoter
	now := time.Now()
	waited, looks := time.Duration(0), 0
	for start := now; now.Sub(start) < time.Minute; {
		if now.Before(p.next) {
			now = now.Add(time.Millisecond)
			continue
		}
		looks++
		if p.heldUp(now) {
			now, waited = now.Add(heldWait), waited+heldWait
		}
	}
	if waited < 10*time.Second || waited > 12*time.Second {
		t.Errorf("of a minute it waited %v, want a fifth", waited)
	}
	if most := int(time.Minute / heldPause); looks < most/2 || looks > most {
		t.Errorf("it looked %d times in a minute, want up to %d", looks, most)
	}
}
