package waybill

import "iter"

// An Envelope is a message and its stamps. It is immutable: With and Without
// return a new one, so envelopes may be shared between goroutines.
type Envelope struct {
	message any
	stamps  []Stamp
}

// NewEnvelope puts msg, a struct value, into an envelope. An envelope given as
// msg keeps its stamps.
func NewEnvelope(msg any, stamps ...Stamp) *Envelope {
	if env, ok := msg.(*Envelope); ok {
		return env.With(stamps...)
	}
	return &Envelope{message: msg, stamps: append([]Stamp(nil), stamps...)}
}

// Message returns the message.
func (e *Envelope) Message() any { return e.message }

// With returns an envelope that carries stamps as well, the newest last.
func (e *Envelope) With(stamps ...Stamp) *Envelope {
	if len(stamps) == 0 {
		return e
	}
	all := make([]Stamp, 0, len(e.stamps)+len(stamps))
	return &Envelope{message: e.message, stamps: append(append(all, e.stamps...), stamps...)}
}

// Stamps yields all stamps, oldest first.
func (e *Envelope) Stamps() iter.Seq[Stamp] {
	return func(yield func(Stamp) bool) {
		for _, s := range e.stamps {
			if !yield(s) {
				return
			}
		}
	}
}

// Header returns the value of an application header.
func (e *Envelope) Header(name string) (string, bool) {
	for i := len(e.stamps) - 1; i >= 0; i-- {
		if h, ok := e.stamps[i].(header); ok && h.name == name {
			return h.value, true
		}
	}
	return "", false
}

// Headers returns the application headers.
func (e *Envelope) Headers() map[string]string {
	all := map[string]string{}
	for _, s := range e.stamps {
		if h, ok := s.(header); ok {
			all[h.name] = h.value
		}
	}
	return all
}

// Last returns the newest stamp of type S. It does not allocate.
func Last[S Stamp](e *Envelope) (S, bool) {
	for i := len(e.stamps) - 1; i >= 0; i-- {
		if s, ok := e.stamps[i].(S); ok {
			return s, true
		}
	}
	var none S
	return none, false
}

// All returns the stamps of type S, oldest first.
func All[S Stamp](e *Envelope) []S {
	var found []S
	for _, s := range e.stamps {
		if s, ok := s.(S); ok {
			found = append(found, s)
		}
	}
	return found
}

// Without returns an envelope that has no stamp of type S.
func Without[S Stamp](e *Envelope) *Envelope {
	kept := make([]Stamp, 0, len(e.stamps))
	for _, s := range e.stamps {
		if _, ok := s.(S); !ok {
			kept = append(kept, s)
		}
	}
	return &Envelope{message: e.message, stamps: kept}
}
