package waybill

import (
	"context"
	"errors"
)

// Prepare returns env as the envelope of a dispatch, for middleware: with an id, with the
// name of its message, and without the stamps of a received message. A handler may pass on
// the envelope that it was given: it is dispatched, not handled again.
func (s *Serializer) Prepare(ctx context.Context, env *Envelope) (*Envelope, error) {
	stamps := make([]Stamp, 0, len(env.stamps)+3) // a bus adds its name
	for _, stamp := range env.stamps {
		switch stamp.(type) {
		case MessageName, UpcastFrom, Received, Redelivery, HandledBy:
		default:
			stamps = append(stamps, stamp)
		}
	}
	// Without a name there is no stamp, and encoding refuses the message: a middleware may
	// replace it before that.
	if name, err := s.types().NameOf(env.message); err == nil {
		stamps = append(stamps, MessageName(name))
	}
	if given, ok := Last[MessageID](env); ok {
		if given.IsZero() {
			return nil, &InvalidError{"message id", given.String(), "the nil id identifies nothing"}
		}
		return &Envelope{env.message, stamps}, nil
	}
	id, err := newID(ctx, env)
	if err != nil {
		return nil, err
	}
	return &Envelope{env.message, append(stamps, id)}, nil
}

// newID returns the id of a message that was dispatched without one.
func newID(ctx context.Context, env *Envelope) (MessageID, error) {
	label, ok := Last[DerivedID](env)
	if !ok {
		return NewMessageID()
	}
	run, handler := currentRun(ctx), ""
	if run != nil {
		handler = run.handling()
	}
	if handler == "" {
		return MessageID{}, errors.New("waybill: DerivedID needs the context given to a handler")
	}
	parent, _ := Last[MessageID](run.env)
	return derivedFrom(parent, handler, string(label)), nil
}
