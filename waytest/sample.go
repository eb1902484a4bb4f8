package waytest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

// samplesAreTheOldestAndTheNewest has messages with and without a key, delayed ones and
// dead letters, of two names.
func samplesAreTheOldestAndTheNewest[TX any](t *testing.T, s *fixture[TX]) {
	db, ok := s.Store.(admin.Sampler)
	if !ok {
		t.Skip("the store is no admin.Sampler")
	}
	out := s.outbox(outbox.Config{})
	s.put(out, named("x", order{"d", 0}))
	c := s.claim(manyRows)
	s.settle(c, nil, outbox.Failure{Row: s.row(c, order{"d", 0}), Err: errRefused, Policy: outbox.Skip, Exhausted: true})
	for i := range 6 {
		s.put(out, order{fmt.Sprintf("k%d", i), i})
	}
	s.put(out, order{"", 6}, named("y", order{"k0", 7}), waybill.NewEnvelope(order{"k1", 8}, waybill.Delay(time.Hour)))
	for _, c := range []struct {
		n    int
		want string
	}{
		{1, "delayed order.placed 1 of 1: k18, failed x 1 of 1: d0, outbox order.placed 1 of 7: k00, outbox y 1 of 1: k07"},
		{3, "delayed order.placed 1 of 1: k18, failed x 1 of 1: d0, outbox order.placed 3 of 7: 6 k00 k11, outbox y 1 of 1: k07"},
		{6, "delayed order.placed 1 of 1: k18, failed x 1 of 1: d0, outbox order.placed 6 of 7: 6 k00 k11 k22 k44 k55, outbox y 1 of 1: k07"},
		{50, "delayed order.placed 1 of 1: k18, failed x 1 of 1: d0, outbox order.placed 7 of 7: 6 k00 k11 k22 k33 k44 k55, outbox y 1 of 1: k07"},
	} {
		if diff := cmp.Diff(c.want, sampled(t, db, c.n)); diff != "" {
			t.Errorf("Sample of %d (-want +got):\n%s", c.n, diff)
		}
	}
	if err := db.Sample(t.Context(), 1, func(admin.Sample) error { return errRefused }); err == nil || !strings.Contains(err.Error(), errRefused.Error()) {
		t.Errorf("Sample with a function that fails = %v, want its error", err)
	}
}

// sampled lists samples of up to n messages, by source and name.
func sampled(t testing.TB, db admin.Sampler, n int) string {
	t.Helper()
	groups, all := map[string][]string{}, map[string]int{}
	err := db.Sample(t.Context(), n, func(m admin.Sample) error {
		at := m.Source + " " + m.Name
		seq := strings.Trim(string(m.Record.Body[strings.LastIndexByte(string(m.Record.Body), ':')+1:]), "} ")
		groups[at] = append(groups[at], m.Record.Key+seq)
		all[at] = m.Messages
		if m.Record.ID.IsZero() || m.Record.Name != m.Name || m.Row == 0 || m.Transport != outbox.DefaultTransport || m.Record.Problem != nil {
			t.Errorf("incomplete sample %+v of %+v", m, m.Record)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	lines := []string{}
	for at, found := range groups {
		slices.Sort(found)
		lines = append(lines, fmt.Sprintf("%s %d of %d: %s", at, len(found), all[at], strings.Join(found, " ")))
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}
