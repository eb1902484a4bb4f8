package schedule

import "time"

// Missed is the policy for ticks at which no process could send.
type Missed string

const (
	// Latest sends the newest of the missed ticks alone.
	Latest Missed = "latest"
	// Skip sends no tick that is more than a minute late.
	Skip Missed = "skip"
	// All sends them all, oldest first, but no more than the newest 1000.
	All Missed = "all"
)

const (
	tooLate = time.Minute // of Skip
	mostAll = 1000        // of All
	batch   = 100         // ticks in one transaction
)

// A plan is the next step of a schedule.
type plan struct {
	ticks []time.Time // to send, oldest first; at most batch
	until time.Time   // afterwards no tick up to here is sent any more; zero if none is due
	lost  time.Time   // first of the ticks that are not sent; zero if all are
}

// next decides which ticks after done, up to now, are to be sent.
func (m Missed) next(t Timing, done, now time.Time) plan {
	first := t.Next(done)
	if first.IsZero() || first.After(now) {
		return plan{}
	}
	var p plan
	switch m {
	case All:
		p.ticks = newest(t, done, now, mostAll)
		p.ticks = p.ticks[:min(len(p.ticks), batch)]
		p.until = p.ticks[len(p.ticks)-1]
	case Skip:
		p.until = newest(t, done, now, 1)[0]
		from := now.Add(-tooLate - time.Nanosecond)
		if from.Before(done) {
			from = done
		}
		p.ticks = between(t, from, now)
	default:
		p.ticks = newest(t, done, now, 1)
		p.until = p.ticks[0]
	}
	if len(p.ticks) == 0 || p.ticks[0].After(first) {
		p.lost = first
	}
	return p
}

// newest returns the last n ticks after a time, up to another. It looks back no further than
// it must.
func newest(t Timing, after, until time.Time, n int) []time.Time {
	for back := time.Hour; ; back *= 4 {
		from := until.Add(-back)
		all := !from.After(after) || back > 1<<60
		if all {
			from = after
		}
		if ticks := between(t, from, until); all || len(ticks) >= n {
			return ticks[max(0, len(ticks)-n):]
		}
	}
}

// between returns the ticks after a time, up to another.
func between(t Timing, after, until time.Time) (ticks []time.Time) {
	for tick := t.Next(after); !tick.IsZero() && !tick.After(until); tick = t.Next(tick) {
		ticks = append(ticks, tick)
	}
	return ticks
}
