package waycli

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/admin"
)

func TestPlainLeavesNothingForATerminalToObey(t *testing.T) {
	for s, want := range map[string]string{
		"order-1":       "order-1",
		"größe/鍵 📦":     "größe/鍵 📦",
		"\x1b[31mred":   `"\x1b[31mred"`,
		"a\tb":          `"a\tb"`,
		"a\nb":          `"a\nb"`,
		"\u202egnp":     `"\u202egnp"`,
		"bad \xff byte": `"bad \xff byte"`,
	} {
		if got := plain(s); got != want {
			t.Errorf("plain(%q) = %s, want %s", s, got, want)
		}
	}
}

func TestNumbersAreEasyToRead(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567", -999: "-999"} {
		if got := count(n); got != want {
			t.Errorf("count(%d) = %s, want %s", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		3 * time.Millisecond: "3ms", 1234 * time.Millisecond: "1.2s", 90 * time.Second: "1m30s", time.Hour: "1h", 50 * time.Hour: "2d", -time.Minute: "in 1m",
	} {
		if got := short(d); got != want {
			t.Errorf("short(%v) = %s, want %s", d, got, want)
		}
	}
	for want, got := range map[string]string{"1 entry": plural(1, "entry"), "2 entries": plural(2, "entry"), "0 keys": plural(0, "key"), "3,000 messages": plural(3000, "message")} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestOutputRemembersTheFirstError(t *testing.T) {
	o := &output{w: failingWriter{}}
	o.json(map[string]int{"n": 1})
	o.table([]string{"N"}, [][]any{{1}})
	if err := o.failure(); err == nil || err.Error() != "disk full" {
		t.Errorf("failure = %v, want disk full", err)
	}
}

// A change whose result cannot be printed is done, which the error says.
func TestLostOutputIsNoFailureOfTheCommand(t *testing.T) {
	var told strings.Builder
	code := Main(t.Context(), App{Name: "shop"}, []string{"version"}, nil, failingWriter{}, &told)
	if want := "shop: disk full\nhint: the command has done its work, its output is incomplete\n"; code != 1 || told.String() != want {
		t.Errorf("exit %d with %q, want 1 with %q", code, told.String(), want)
	}
}

func TestLineWriterPassesWholeLines(t *testing.T) {
	var writes []string
	l := &lineWriter{w: writerFunc(func(p []byte) { writes = append(writes, string(p)) }), prefix: "> "}
	for _, part := range []string{"a", "b\nc\n\nd", "e"} {
		if _, err := l.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	l.flush()
	l.flush()
	if got, want := strings.Join(writes, "|"), "> ab\n|> c\n|> \n|> de\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	writes = nil
	long := strings.Repeat("x", 2*maxLine+10)
	if _, err := l.Write([]byte(long)); err != nil {
		t.Fatal(err)
	}
	l.flush()
	if len(writes) != 3 {
		t.Errorf("a line without an end came in %d writes, want 3", len(writes))
	}
}

type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

func TestScreenRedrawsTheStatusBelowWhatIsWritten(t *testing.T) {
	var b bytes.Buffer
	s := &screen{w: &b, terminal: true}
	s.setStatus("1 published")
	if _, err := s.Write([]byte("a warning\n")); err != nil {
		t.Fatal(err)
	}
	s.setStatus("")
	want := clearLine + "1 published" + clearLine + "a warning\n1 published" + clearLine
	if b.String() != want {
		t.Errorf("wrote %q, want %q", b.String(), want)
	}
}

func TestScreenWithoutATerminalDrawsNoStatus(t *testing.T) {
	var b bytes.Buffer
	s := newScreen(&b)
	s.setStatus("1 published")
	if b.Len() != 0 {
		t.Errorf("wrote %q, want nothing", b.String())
	}
}

func TestStatusLineReadsAsASentence(t *testing.T) {
	got := statusLine([]figure{{"published", 12040}, {"per_second", 310}, {"pending", 12}, {"blocked", 0}})
	if want := "12,040 published, 310/s, 12 pending, 0 blocked"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The examples of a binary's help can be run as they stand.
func TestExamplesNameTheBinary(t *testing.T) {
	for _, name := range []string{"shop", "waybill"} {
		var out bytes.Buffer
		if code := Main(t.Context(), App{Name: name}, []string{"failed", "edit", "--help"}, strings.NewReader(""), &out, &out); code != 0 {
			t.Fatal(out.String())
		}
		if want := "  " + name + " failed edit 17 --body-file mended.json\n"; !strings.Contains(out.String(), want) {
			t.Errorf("the help of %s lacks %q:\n%s", name, want, out.String())
		}
	}
}

// Packages of databases and brokers do not know which program their commands are in.
func TestRemediesNameTheProgram(t *testing.T) {
	const remedy, want = "`waybill schema up --transports` declares it, says waybill", "`shop schema up --transports` declares it, says waybill"
	var text strings.Builder
	PrintError(&text, "shop", errors.New(remedy), false)
	PrintError(&text, "shop", &Error{Usage, errors.New("wrong"), remedy}, false)
	if n := strings.Count(text.String(), want); n != 2 {
		t.Errorf("%d of 2 errors name the program:\n%s", n, &text)
	}
	s := &session{app: App{Name: "shop"}}
	found, err := s.allOf(t.Context(), func(context.Context) ([]admin.Finding, error) {
		return []admin.Finding{admin.NewFinding(admin.MissingQueue, remedy, remedy)}, nil
	})
	if err != nil || len(found) != 1 || found[0].Problem != want || found[0].Remedy != want {
		t.Errorf("findings %+v, error %v, want the text %q", found, err, want)
	}
}
