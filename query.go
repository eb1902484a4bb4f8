package waybill

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// HandleQuery registers fn as the one handler of a query, a message that Query gets an answer
// to. The name is that of Handle. It panics where Handle does, and if the message has another
// handler.
func HandleQuery[Q, R any](b *Bus, name string, fn func(ctx context.Context, q Q) (R, error)) {
	b.refuseNil(name, fn == nil)
	message, run := typed(b, name, func(ctx context.Context, q Q) error {
		result, err := fn(ctx, q)
		switch run := currentRun(ctx); {
		case run.answer == nil: // dispatched
		case err == nil:
			run.answer.result = &result
		case errors.Is(err, ErrDuplicate): // which counts as success, without a result
			err = fmt.Errorf("a query has no duplicates: return the result again, or another error than %q", err)
		}
		return err
	})
	b.add(message, handler{name: name, run: run, answers: reflect.TypeFor[R]()})
}

// Query has the one handler of a query, which HandleQuery has registered, answer it at once,
// in this process and within the middleware of the bus. R is the handler's type of result.
// The error is a *HandlersError when the handler failed, a *QueryError when the bus cannot
// answer the query: then the handler was not called, unless middleware has replaced it.
//
// A query that is dispatched is handled as any other message, and its result is dropped.
func Query[R any](ctx context.Context, b *Bus, query any, stamps ...Stamp) (R, error) {
	var none R
	env, err := b.serializer.Prepare(ctx, NewEnvelope(query, stamps...))
	if err != nil {
		return none, err
	}
	name, err := b.Types().NameOf(env.Message())
	if err != nil {
		return none, err
	}
	if problem := b.cannotAnswer(name, env, reflect.TypeFor[R]()); problem != "" {
		return none, &QueryError{b.name, name, problem}
	}
	id, _ := Last[MessageID](env)
	a := &answer{query: id}
	if err := b.dispatch(context.WithValue(ctx, answerKey{}, a), env.With(BusName(b.name))); err != nil {
		return none, err
	}
	result, ok := a.result.(*R)
	if !ok {
		return none, &QueryError{b.name, name, "a middleware has returned without error and without calling the handler: have it return an error"}
	}
	return *result, nil
}

// cannotAnswer says why a query has no answer here. It is empty if it has one.
func (b *Bus) cannotAnswer(name string, env *Envelope, result reflect.Type) string {
	handlers := b.Handlers(name)
	to := b.routes.For(name)
	if override, ok := Last[TransportNames](env); ok {
		to = override
	}
	_, later := Last[DispatchAfterCurrentBus](env)
	switch {
	case len(handlers) == 0:
		return "it has no handler: register one with waybill.HandleQuery"
	case len(handlers) > 1:
		return fmt.Sprintf("it has %d handlers (%s), and a query has one: use Dispatch, or register one alone, with waybill.HandleQuery", len(handlers), strings.Join(handlers, ", "))
	case len(to) > 0:
		return fmt.Sprintf("it is routed to %s, and a query is answered in this process: use a bus without that route", strings.Join(to, ", "))
	case later:
		return "it waits for the end of the current message, by DispatchAfterCurrentBus, and a query is answered at once: leave out the stamp"
	}
	switch answers := b.handlers[name][0].answers; answers {
	case nil:
		return fmt.Sprintf("its handler %q returns no result: register it with waybill.HandleQuery, or use Dispatch", handlers[0])
	case result:
		return ""
	default:
		return fmt.Sprintf("its handler %q returns %s, not %s: use waybill.Query[%[2]s]", handlers[0], answers, result)
	}
}

// A QueryError says why a bus has no answer to a query.
type QueryError struct{ Bus, Name, Problem string }

func (e *QueryError) Error() string {
	return fmt.Sprintf("waybill: bus %s: query %s: %s", e.Bus, e.Name, e.Problem)
}

// An answer is the result of one query.
type answer struct {
	query  MessageID
	result any // a pointer to it
}

type answerKey struct{}

// answerTo returns where the result of a message belongs if it is the query of ctx, or nil:
// messages that its handler and middleware dispatch are not.
func answerTo(ctx context.Context, env *Envelope) *answer {
	a, _ := ctx.Value(answerKey{}).(*answer)
	if id, _ := Last[MessageID](env); a == nil || a.query != id {
		return nil
	}
	return a
}
