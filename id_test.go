package waybill_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/gofrs/uuid/v5"
	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
)

func newID(t testing.TB) waybill.MessageID {
	t.Helper()
	id, err := waybill.NewMessageID()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestNewIDsAreUUIDv7AndSort(t *testing.T) {
	last := newID(t)
	for range 1000 {
		id := newID(t)
		if v := uuid.UUID(id).Version(); v != 7 {
			t.Fatalf("version of %s is %d, want 7", id, v)
		}
		if bytes.Compare(last[:], id[:]) >= 0 {
			t.Fatalf("%s was made after %s and sorts before it", id, last)
		}
		last = id
	}
}

func TestKnownIDsParse(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"UUID", "0190d3a2-7b4c-7def-8123-456789abcdef", "0190d3a2-7b4c-7def-8123-456789abcdef"},
		{"UUID in capitals", "0190D3A2-7B4C-7DEF-8123-456789ABCDEF", "0190d3a2-7b4c-7def-8123-456789abcdef"},
		// The ULID of the specification's README, and its bounds.
		{"ULID", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01563e3a-b5d3-d676-4c61-efb99302bd5b"},
		{"ULID in small letters", "01arz3ndektsv4rrffq69g5fav", "01563e3a-b5d3-d676-4c61-efb99302bd5b"},
		{"greatest ULID", "7ZZZZZZZZZZZZZZZZZZZZZZZZZ", "ffffffff-ffff-ffff-ffff-ffffffffffff"},
		{"smallest ULID", "00000000000000000000000001", "00000000-0000-0000-0000-000000000001"},
	} {
		if id, err := waybill.ParseMessageID(tt.in); err != nil || id.String() != tt.want {
			t.Errorf("%s: ParseMessageID(%q) = %v, %v, want %s", tt.name, tt.in, id, err, tt.want)
		}
	}
}

func TestWhatIsNoIDIsRefused(t *testing.T) {
	for name, in := range map[string]string{
		"empty":                 "",
		"nil UUID":              "00000000-0000-0000-0000-000000000000",
		"nil ULID":              "00000000000000000000000000",
		"ULID over 128 bits":    "80000000000000000000000000",
		"ULID with a letter U":  "01ARZ3NDEKTSV4RRFFQ69G5FAU",
		"UUID without hyphens":  "0190d3a27b4c7def8123456789abcdef",
		"UUID with other signs": "0190d3a2-7b4c-7def-8123-456789abcdeg",
		"UUID in braces":        "{0190d3a2-7b4c-7def-8123-456789abcdef}",
		"long":                  strings.Repeat("x", 100000),
	} {
		id, err := waybill.ParseMessageID(in)
		if err == nil {
			t.Errorf("%s: ParseMessageID = %v, nil, want an error", name, id)
		} else if len(err.Error()) > 300 {
			t.Errorf("%s: the error has %d bytes, want it short", name, len(err.Error()))
		}
	}
}

func TestIDRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var id waybill.MessageID
		copy(id[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "bytes"))
		if id.IsZero() {
			return // the nil id is refused, and tested above
		}
		if back, err := waybill.ParseMessageID(id.String()); err != nil || back != id {
			t.Errorf("as text: %v, %v, want %v", back, err, id)
		}
		var back waybill.MessageID
		text, marshalErr := json.Marshal(id)
		if err := json.Unmarshal(text, &back); err != nil || marshalErr != nil || back != id {
			t.Errorf("as JSON %s: %v, %v, want %v", text, back, err, id)
		}
		stored, valueErr := id.Value()
		back = waybill.MessageID{}
		if err := back.Scan(stored); err != nil || valueErr != nil || back != id {
			t.Errorf("stored: %v, %v, want %v", back, err, id)
		}
	})
	var id waybill.MessageID
	for _, src := range []any{nil, "text", []byte{1, 2}, make([]byte, 17)} {
		if err := id.Scan(src); err == nil {
			t.Errorf("Scan(%v) = nil, want an error", src)
		}
	}
}

func FuzzParseMessageID(f *testing.F) {
	for _, s := range []string{"01ARZ3NDEKTSV4RRFFQ69G5FAV", "0190d3a2-7b4c-7def-8123-456789abcdef", "", "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := waybill.ParseMessageID(s)
		if err != nil {
			return
		}
		if id.IsZero() {
			t.Errorf("%q was accepted as the nil id", s)
		}
		if again, err := waybill.ParseMessageID(id.String()); err != nil || again != id {
			t.Errorf("%q is %s, which parses as %s, %v", s, id, again, err)
		}
	})
}
