package verdict

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestCompareSeesEachViolation(t *testing.T) {
	of := func(key string, n int) Message { return Message{Key: key, N: n, ID: key + "-id"} }
	free := func(n int) Message { return Message{Key: "free", N: n, Unordered: true} }
	committed := []Message{of("a", 1), of("a", 2), of("a", 3), of("b", 1), free(1), free(2)}
	for _, c := range []struct {
		name string
		came []Message
		want Findings
	}{
		{"all is well", committed, Findings{}},
		{"a copy of an earlier one", append(committed[:len(committed):len(committed)], of("a", 1)), Findings{Duplicates: 1}},
		{"one is missing", committed[:5], Findings{Lost: 1}},
		{"one that is missing in the middle is a gap, too", append([]Message{of("a", 1)}, committed[2:]...), Findings{Lost: 1, Disorders: 1}},
		{"two in the wrong order", append([]Message{of("a", 2), of("a", 1)}, committed[2:]...), Findings{Disorders: 2}},
		{"without an order", append(committed[:4:4], free(2), free(1)), Findings{}},
		{"one that was never committed", append(committed[:6:6], of("a", 4)), Findings{Phantoms: 1}},
		{"one of another transaction", append(committed[1:6:6], Message{Key: "a", N: 1, ID: "a-id", Origin: "rolled back"}), Findings{Phantoms: 1, Lost: 1, Disorders: 1}},
		{"another id", append([]Message{{Key: "a", N: 1, ID: "other"}}, committed[1:]...), Findings{IDChanges: 1}},
	} {
		got := Compare(committed, c.came)
		if diff := cmp.Diff(c.want, got, cmpopts.IgnoreFields(Findings{}, "Words", "Arrived")); diff != "" {
			t.Errorf("%s (-want +got)\n%s%q", c.name, diff, got.Words)
		}
	}
}

func TestCompareSeesTwoCommitsOfOneNumber(t *testing.T) {
	one, other := Message{Key: "a", N: 1, ID: "1"}, Message{Key: "a", N: 1, ID: "2"}
	if got := Compare([]Message{one, other}, []Message{other}); got.Phantoms != 1 {
		t.Errorf("%+v, want a phantom", got)
	}
}
