package bench

import "testing"

// A queue that loses or doubles messages must not have a rate.
func TestWrongHandlingsAreFound(t *testing.T) {
	for _, tt := range []struct {
		name    string
		handled []int
		want    string
	}{
		{"each once", []int{2, 0, 1}, ""},
		{"one is missing", []int{0, 1}, "message 2 was handled 0 times, want once"},
		{"one came twice", []int{0, 1, 2, 1}, "message 1 was handled 2 times, want once"},
	} {
		h := newHandlings(3)
		for _, n := range tt.handled {
			if err := h.add(sold{Cents: n}); err != nil {
				t.Fatal(err)
			}
		}
		got := ""
		if err := h.complete(); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	if newHandlings(3).add(sold{Cents: 3}) == nil {
		t.Error("a message that nobody sent was counted")
	}
}
