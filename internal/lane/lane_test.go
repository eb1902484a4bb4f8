package lane

import (
	"testing"
	"time"
)

// What a claim has learned is worth nothing once all was forgotten, because
// another worker of the process met an error or another server.
func TestLaneKeepsNothingOfAnEarlierTime(t *testing.T) {
	for name, forget := range map[string]func(l *Lane, v *View){
		"an error":               func(l *Lane, _ *View) { l.Forget() },
		"another server":         func(l *Lane, _ *View) { l.Serves(l.Look(), "2") },
		"a truncated table":      func(l *Lane, _ *View) { l.Serves(l.Look(), "1/9") },
		"a row below the mark":   func(l *Lane, _ *View) { l.Lower(7, 5) },
		"the same, by this view": func(l *Lane, v *View) { l.Serves(v, "3") },
	} {
		l := New(1, 64)
		first := l.Look()
		if !l.Serves(first, "1") {
			t.Fatal("the first server is not served")
		}
		l.mark(first, 7, 10)
		l.setCursor(first, 8, &cursor{after: 20, version: 1, until: time.Now().Add(time.Hour)})
		v := l.Look()
		if v.marks[7] != 10 || v.cursors[8] == nil {
			t.Fatalf("%s: marks %v before", name, v.marks)
		}
		forget(l, v)
		l.mark(v, 7, 30)
		l.setCursor(v, 7, &cursor{after: 30, version: 9, until: time.Now().Add(time.Hour)})
		if now := l.Look(); now.marks[7] > 4 || now.cursors[7] != nil {
			t.Errorf("%s: mark %d and cursor %v of a claim that began before", name, now.marks[7], now.cursors[7])
		}
		if l.Serves(v, l.server) {
			t.Errorf("%s: a view from before still holds", name)
		}
	}
}

// Only cursors of one version can hold at a time.
func TestOldCursorsAreDropped(t *testing.T) {
	l := New(1, 64)
	v := l.Look()
	until := time.Now().Add(time.Hour)
	l.setCursor(v, 1, &cursor{after: 10, version: 4, until: until})
	l.setCursor(v, 2, &cursor{after: 20, version: 5, until: until})
	got := l.Look()
	after, marks, _ := got.After()
	if got.Version() != 5 || after[1] != 0 || after[2] != 20 || marks[2] != 0 {
		t.Errorf("version %d, after %v", got.Version(), after[:3])
	}
}

func TestMoverWaitsForHeldLocksAFifthOfTheTimeAtTheMost(t *testing.T) {
	var m Moving
	now := time.Now()
	const wait = time.Second
	waited, looks := time.Duration(0), 0
	for start := now; now.Sub(start) < time.Minute; {
		if !m.Due(now) {
			now = now.Add(time.Millisecond)
			continue
		}
		looks++
		if m.Held(now, wait) {
			now, waited = now.Add(wait), waited+wait
		}
	}
	if waited < 10*time.Second || waited > 12*time.Second {
		t.Errorf("of a minute it waited %v, want a fifth", waited)
	}
	if most := int(time.Minute / heldPause); looks < most/2 || looks > most {
		t.Errorf("it looked %d times in a minute, want up to %d", looks, most)
	}
}
