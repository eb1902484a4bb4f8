package worker

import (
	"errors"
	"log/slog"
	"slices"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/crash"
)

// A move is a Move on its way to the store.
type move struct {
	Move
	from   *source
	no     int64               // its place in the order of moves
	behind []*waybill.Delivery // of the retry queue: later deliveries of its key, to be released after it
	err    error               // why it is not stored
}

// move passes m to the goroutine that stores moves, in order. Until it is stored the
// message is in flight.
func (r *running) move(m move) {
	r.lastMove++
	m.no = r.lastMove
	if key := m.Delivery.Record.Key; key != "" && m.DeadLetters == "" {
		r.waiting[key] = m.no
	}
	r.moves <- m // it has room for all that are in flight
}

// moveKey moves a message to the retry queue. Those of its key follow: from the transport they are moved
// behind it, and in the retry queue given back.
func (r *running) moveKey(s *source, m Move) {
	d := m.Delivery
	behind := s.queue.Failed(d)
	if s == r.retries {
		r.move(move{from: s, Move: m, behind: behind})
		return
	}
	r.move(move{from: s, Move: m})
	for _, d := range behind {
		r.move(move{from: s, Move: Move{Delivery: d}})
	}
	s.queue.Forget(d)
}

// maxMoves is how many moves a transaction stores at most.
const maxMoves = 100

// store stores moves, several of a source in one transaction. It returns when moves is closed.
func (r *running) store() {
	for m := range r.moves {
		for ms := gatherSettled(m.from, m, r.moves, maxMoves); len(ms) > 0; {
			n := slices.IndexFunc(ms, func(m move) bool { return m.from != ms[0].from })
			if n < 0 {
				n = len(ms)
			}
			r.storeAll(ms[:n])
			ms = ms[n:]
		}
	}
}

// storeAll stores moves of one source. One that the store refuses does not affect the
// others. After one that was given up because the worker stops, none is stored: it may
// be of the same key.
func (r *running) storeAll(ms []move) {
	err, this := r.gaveUp, loop{nil, "store"}
	if err == nil {
		err = r.storeOnce(ms)
	}
	for pause := minPause; errors.Is(err, waybill.ErrUnavailable) && r.gaveUp == nil; pause = min(2*pause, maxPause) {
		r.outage.Failed(r.work, this, "failed messages not stored, will try again", slog.Int("messages", len(ms)), slog.Duration("retry_in", pause), slog.Any("err", err))
		if !sleep(r.closing, pause) {
			r.gaveUp = err
			break
		}
		err = r.storeOnce(ms)
	}
	if !errors.Is(err, waybill.ErrUnavailable) {
		r.outage.Worked(r.work, this)
	}
	if err != nil && len(ms) > 1 && !errors.Is(err, waybill.ErrUnavailable) {
		for i := range ms {
			r.storeAll(ms[i : i+1])
		}
		return
	}
	for _, m := range ms {
		m.err = err
		r.stored.Store(m.no)
		r.moved <- m // it has room for all that are in flight
	}
}

func (r *running) storeOnce(ms []move) error {
	moves, ds := make([]Move, len(ms)), make([]*waybill.Delivery, len(ms))
	for i, m := range ms {
		moves[i], ds[i] = m.Move, m.Delivery
	}
	ctx, cancel := r.settling(settleTimeout)
	defer cancel()
	if ms[0].from == r.retries {
		crash.At(crash.WorkerBeforeMove)
		err := r.retries.retries.Move(ctx, moves...)
		crash.At(crash.WorkerAfterMove)
		if errors.Is(err, waybill.ErrLeaseLost) {
			r.cfg.Log.LogAttrs(r.work, slog.LevelWarn, "lease lost: what failed is left to another worker", slog.String("transport", r.cfg.Transport), slog.Any("err", err))
			return nil
		}
		return err
	}
	crash.At(crash.WorkerBeforeStore)
	if err := r.retries.retries.Add(ctx, moves...); err != nil {
		return err
	}
	crash.At(crash.WorkerAfterStore)
	if err := r.main.Ack(ctx, ds...); err != nil {
		r.cfg.Log.LogAttrs(r.work, slog.LevelWarn, "acknowledgement of stored messages failed: they come again, and are known", slog.String("transport", r.cfg.Transport), slog.Int("messages", len(ms)), slog.Any("err", err))
	}
	return nil
}

// finishMove lets the key of a stored message go on, or returns a message that was not
// stored to its transport.
func (r *running) finishMove(m move) {
	s, d := m.from, m.Delivery
	switch {
	case errors.Is(m.err, waybill.ErrUnavailable): // the worker has stopped meanwhile
		s.giveBack(r, d, m.behind...)
	case m.err != nil:
		r.cfg.Log.LogAttrs(r.work, slog.LevelError, "the store refused a failed message, which stays at its transport", r.attrs(d, m.err)...)
		r.retryInPlace(s, d, r.cfg.Retry.Longest())
		s.release(r, m.behind)
	case m.DeadLetters != "":
		s.queue.Succeeded(d)
		s.drop(d)
	default:
		s.drop(d)
		if s == r.retries {
			s.release(r, append(m.behind, s.queue.Forget(d)...))
		}
	}
}
