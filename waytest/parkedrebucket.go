package waytest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

// A release that is in its batches while the buckets change either goes on in the new ones, or says
// that it must be repeated; no row stays aside without an entry.
func rebucketBesideAReleaseLeavesNoKeyParked[TX any](t *testing.T, s *fixture[TX]) {
	operator := s.operator() // or skip
	if _, err := operator.Rebucket(t.Context(), buckets, true); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("the database has no buckets")
	}
	out := s.outbox(outbox.Config{})
	var heads []order
	for i := range 60 {
		heads = append(heads, order{fmt.Sprint("k", i), 0})
		s.put(out, heads[i], order{heads[i].Key, 1})
	}
	stop := s.relaying(s.Store, refusing(heads...), quickly(outbox.Park))
	await(t, "all keys are parked", func() bool {
		found, err := operator.Blocked(t.Context(), "", 0)
		pending := func(b admin.BlockedKey) bool { return b.State != admin.Parked || b.Parked < 2 }
		return err == nil && len(found) == len(heads) && !slices.ContainsFunc(found, pending)
	})
	stop()
	released := make(chan error, 1)
	go func() {
		for {
			_, err := operator.Release(t.Context(), admin.BlockedQuery{})
			if !errors.Is(err, outbox.ErrBucketsChanged) {
				released <- err
				return
			}
		}
	}()
	for n, ended := buckets, false; !ended; {
		n = 3*buckets - n // buckets, twice as many, buckets, ...
		_, err := operator.Rebucket(t.Context(), n, false)
		try(t, "Rebucket", err)
		select {
		case err = <-released:
			try(t, "Release", err)
			ended = true
		case <-time.After(100 * time.Millisecond):
		}
	}
	found, err := operator.Blocked(t.Context(), "", 0)
	if err != nil || len(found) > 0 {
		t.Errorf("%d keys are blocked after the release, %v", len(found), err)
	}
	sink := refusing()
	defer s.relaying(s.Store, sink, outbox.RelayConfig{})()
	await(t, "the released messages arrive", func() bool { return len(sink.all()) == 2*len(heads) })
}
