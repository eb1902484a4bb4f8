package waytest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/waybill-go/waybill/outbox"
)

// parts are all parts of a transport.
var parts = []outbox.Part{outbox.Keyed, outbox.Unkeyed, outbox.Retries}

// claim claims rows of all parts of the default transport, at most limit of each.
func (s *fixture[TX]) claim(limit outbox.ClaimLimit) outbox.Claim {
	s.t.Helper()
	c, err := claimParts(s.Store, outbox.DefaultTransport, limit)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// claimPart claims rows of one part of the default transport.
func (s *fixture[TX]) claimPart(part outbox.Part, limit outbox.ClaimLimit) outbox.Claim {
	s.t.Helper()
	c, err := s.Store.Claim(context.Background(), outbox.DefaultTransport, part, limit)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// A partsClaim is one claim of each part, settled together.
type partsClaim []outbox.Claim

func claimParts(store outbox.Store, transport string, limit outbox.ClaimLimit) (outbox.Claim, error) {
	var all partsClaim
	for _, part := range parts {
		c, err := store.Claim(context.Background(), transport, part, limit)
		if err != nil {
			return nil, errors.Join(err, all.Settle(context.Background(), nil, nil))
		}
		if len(c.Rows()) > 0 {
			all = append(all, c)
		}
	}
	return all, nil
}

// Rows implements outbox.Claim.
func (p partsClaim) Rows() (all []outbox.ClaimedRow) {
	for _, c := range p {
		all = append(all, c.Rows()...)
	}
	return all
}

// Settle implements outbox.Claim.
func (p partsClaim) Settle(ctx context.Context, published []outbox.ClaimedRow, failed []outbox.Failure) (err error) {
	for _, c := range p {
		var done []outbox.ClaimedRow
		var not []outbox.Failure
		for _, row := range c.Rows() {
			for _, other := range published {
				if other.Record == row.Record {
					done = append(done, other)
				}
			}
			for _, f := range failed {
				if f.Row.Record == row.Record {
					not = append(not, f)
				}
			}
		}
		err = errors.Join(err, c.Settle(ctx, done, not))
	}
	return err
}

func (s *fixture[TX]) settle(c outbox.Claim, published []outbox.ClaimedRow, failed ...outbox.Failure) {
	s.t.Helper()
	if err := c.Settle(context.Background(), published, failed); err != nil {
		s.t.Fatal(err)
	}
}

// peek returns all rows of a transport that are due, ordered by id, and lets
// them go again.
func (s *fixture[TX]) peek(transport string) []outbox.ClaimedRow {
	s.t.Helper()
	rows, err := visit(s.Store, transport, false)
	if err != nil {
		s.t.Fatal(err)
	}
	return rows
}

// take is peek for rows that are gone afterwards, as if they were published.
func (s *fixture[TX]) take(transport string) []outbox.ClaimedRow {
	s.t.Helper()
	rows, err := visit(s.Store, transport, true)
	if err != nil {
		s.t.Fatal(err)
	}
	return rows
}

// visit claims until there is no more: a claim may be smaller than its bound.
func visit(store outbox.Store, transport string, publish bool) (all []outbox.ClaimedRow, err error) {
	var claims []outbox.Claim
	type id struct {
		unkeyed bool // ids are unique within a table
		row     int64
	}
	seen := map[id]bool{}
	for {
		c, claimErr := claimParts(store, transport, manyRows)
		if claimErr != nil {
			err = claimErr
			break
		}
		if len(c.Rows()) == 0 {
			break
		}
		claims = append(claims, c)
		all = append(all, c.Rows()...)
		for _, row := range c.Rows() {
			this := id{row.Record.Key == "", row.ID}
			if seen[this] {
				err = fmt.Errorf("row %d is in two claims at once", row.ID)
			}
			seen[this] = true
		}
		if err != nil {
			break
		}
	}
	for _, c := range claims {
		var published []outbox.ClaimedRow
		if publish {
			published = c.Rows()
		}
		err = errors.Join(err, c.Settle(context.Background(), published, nil))
	}
	slices.SortFunc(all, func(a, b outbox.ClaimedRow) int { return int(a.ID - b.ID) })
	return all, err
}

// byKey are the messages of each key, in their order. Those without a key have
// none, and are sorted.
func byKey(rows []outbox.ClaimedRow) map[string][]int {
	all := map[string][]int{}
	for _, row := range rows {
		all[row.Record.Key] = append(all[row.Record.Key], bodyOf(row.Record).Seq)
	}
	slices.Sort(all[""])
	if len(all[""]) == 0 {
		delete(all, "")
	}
	return all
}
