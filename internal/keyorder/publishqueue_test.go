package keyorder

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
)

var (
	errRefused = errors.New("refused")
	errOutage  = fmt.Errorf("broken pipe: %w", waybill.ErrUnavailable)
)

var anyRecord = rapid.Custom(func(t *rapid.T) *waybill.Record {
	rec := &waybill.Record{Key: rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "key")}
	if rapid.IntRange(0, 9).Draw(t, "unreadable") == 0 {
		rec.Problem = errRefused
	}
	return rec
})

// For all answers in any order: one unconfirmed record a key, keys in row order, no
// record after a failure of its key or after an outage, and outcomes that equal the
// answers.
func TestPublishQueueKeepsKeysInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := rapid.SliceOfN(anyRecord, 0, 30).Draw(t, "records")
		window := rapid.IntRange(1, 12).Draw(t, "window")
		c := NewPublishQueue(records, false)
		var open []int
		published, failed := map[int]bool{}, map[int]bool{}
		keyFailed, last, outage := map[string]bool{}, map[string]int{}, false
		for i, rec := range records { // unreadable records fail without being published
			failed[i] = rec.Problem != nil
		}
		for {
			least := 0
			if len(open) == 0 {
				least = 1
			}
			items := c.Take(rapid.IntRange(least, window-len(open)).Draw(t, "take"), nil)
			if len(open)+len(items) == 0 {
				break
			}
			for _, item := range items {
				key := records[item].Key
				switch {
				case outage:
					t.Fatalf("record %d was taken after an outage", item)
				case published[item] || failed[item] || slices.Contains(open, item):
					t.Fatalf("record %d was taken again, or cannot be read", item)
				}
				if key != "" {
					if keyFailed[key] {
						t.Fatalf("record %d was taken after a failure of its key %s", item, key)
					}
					if before, ok := last[key]; ok && before > item {
						t.Fatalf("record %d of key %s was taken after record %d", item, key, before)
					}
					for _, i := range open {
						if records[i].Key == key {
							t.Fatalf("records %d and %d of key %s are unconfirmed at once", i, item, key)
						}
					}
					for i := range item {
						if records[i].Key == key && !published[i] {
							t.Fatalf("record %d of key %s was taken, and record %d is not published", item, key, i)
						}
					}
					last[key] = item
				}
				open = append(open, item)
			}
			if c.Open() != len(open) {
				t.Fatalf("%d are open, the queue says %d", len(open), c.Open())
			}
			i := rapid.IntRange(0, len(open)-1).Draw(t, "answered")
			seq := open[i]
			open = slices.Delete(open, i, i+1)
			err := rapid.SampledFrom([]error{nil, nil, nil, nil, errRefused, errOutage}).Draw(t, "answer")
			c.Done(seq, err)
			switch {
			case err == nil:
				published[seq] = true
			case errors.Is(err, waybill.ErrUnavailable):
				outage = true
			default:
				failed[seq] = true
				keyFailed[records[seq].Key] = true
			}
		}
		for i, rec := range records {
			state, err := c.Outcome(i)
			switch {
			case (state == Published) != published[i]:
				t.Fatalf("record %d is published = %t, want %t", i, state == Published, published[i])
			case state == Refused && (!failed[i] || !errors.Is(err, errRefused)):
				t.Fatalf("record %d counts as refused with %v and was not", i, err)
			case state != Refused && failed[i] && (rec.Key == "" || rec.Problem == nil):
				t.Fatalf("refused record %d is missing", i)
			}
		}
		if got := c.Outage() != nil; got != outage {
			t.Fatalf("outage = %t, want %t", got, outage)
		}
		if !outage {
			for i, rec := range records { // remaining records are behind a failure
				if s, _ := c.Outcome(i); s == Waiting && (rec.Key == "" || !refusedBefore(c, records, i)) {
					t.Fatalf("record %d of key %q was not taken, and no record of its key failed", i, rec.Key)
				}
			}
		}
	})
}

// refusedBefore reports whether a record of i's key was refused before it.
func refusedBefore(c *PublishQueue, records []*waybill.Record, i int) bool {
	for j := range i {
		if state, _ := c.Outcome(j); state == Refused && records[j].Key == records[i].Key {
			return true
		}
	}
	return false
}

func recordsOf(keys ...string) []*waybill.Record {
	var all []*waybill.Record
	for _, key := range keys {
		all = append(all, &waybill.Record{Key: key})
	}
	return all
}

func TestRecordsWithoutKeyGoAllAtOnce(t *testing.T) {
	if got := NewPublishQueue(recordsOf("", "", ""), false).Take(9, nil); !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("ready %v, want all", got)
	}
	if got := NewPublishQueue(recordsOf("a", "b", "", "a", "b"), false).Take(9, nil); !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("ready %v, want the heads and the record without a key", got)
	}
}

func TestAtomicBatchGoesAllAtOnce(t *testing.T) {
	if got := NewPublishQueue(recordsOf("a", "a", "", "b", "a"), true).Take(9, nil); !slices.Equal(got, []int{0, 1, 2, 3, 4}) {
		t.Errorf("ready %v, want all in order", got)
	}
}

// For all answers, pipelined: a record goes in the same call and the same stream as the
// one before it in its key, or after its confirmation.
func TestPipelinedQueueKeepsKeysInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := rapid.SliceOfN(anyRecord, 0, 30).Draw(t, "records")
		for i := range records {
			records[i].Name = rapid.SampledFrom([]string{"s", "t"}).Draw(t, "stream")
		}
		c := NewPublishQueue(records, false)
		c.Pipeline(func(rec *waybill.Record) string { return rec.Name })
		published, open, calls := map[int]bool{}, []int{}, map[int]int{}
		together, refused := 0, map[string]bool{}
		for call := 1; ; call++ {
			items := c.Take(rapid.IntRange(1, 40).Draw(t, "take"), nil)
			if len(items)+len(open) == 0 {
				break
			}
			for _, item := range items {
				key := records[item].Key
				if calls[item] > 0 || records[item].Problem != nil {
					t.Fatalf("record %d was taken again, or cannot be read", item)
				}
				calls[item], open = call, append(open, item)
				if key == "" {
					continue
				}
				if refused[key] {
					t.Fatalf("record %d was taken after a failure of its key", item)
				}
				before := item - 1
				for before >= 0 && records[before].Key != key {
					before--
				}
				switch {
				case before < 0 || published[before]:
				case calls[before] == call && records[before].Name == records[item].Name:
					together++
				default:
					t.Fatalf("record %d of key %s was taken in call %d, and record %d was in call %d and is not published", item, key, call, before, calls[before])
				}
			}
			n := rapid.IntRange(0, len(open)-1).Draw(t, "answered")
			i := open[n]
			open = slices.Delete(open, n, n+1)
			if rapid.IntRange(0, 9).Draw(t, "answer") == 0 {
				c.Done(i, errRefused)
				refused[records[i].Key] = records[i].Key != ""
			} else {
				c.Done(i, nil)
				published[i] = true
			}
		}
		for i := range records {
			if state, _ := c.Outcome(i); (state == Published) != published[i] {
				t.Fatalf("record %d is published = %t, want %t", i, state == Published, published[i])
			}
		}
	})
}

// Consecutive records of one key and stream are taken in one call.
func TestPipelinedChainsHandOutAKeyAtOnce(t *testing.T) {
	records := make([]*waybill.Record, 5)
	for i := range records {
		records[i] = &waybill.Record{Key: "k", Name: "s"}
	}
	records[3].Name = "t"
	c := NewPublishQueue(records, false)
	c.Pipeline(func(rec *waybill.Record) string { return rec.Name })
	if got := len(c.Take(10, nil)); got != 3 {
		t.Errorf("%d records were taken at once, want the 3 in front of another stream", got)
	}
}
