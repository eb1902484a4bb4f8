package config

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

func FuzzParseDSN(f *testing.F) {
	for _, s := range []string{
		"sqlite://./a.db?synchronous=full&busy_timeout=10s&prefix=waybill_", "queue://a?database=sqlite:%2F%2F./b&ordered=true",
		"amqp://u:p@h:5672/%2f?exchange=e&type=topic&bind=e:a.*,e:b", "nats://:t@a:1,b:2?stream=s", "redis://:p@h/0",
		"kafka://a:1,b:2/t?group=g", "ordered-symfony+mysql://u:p@h/db?redeliver_timeout=1h", "memory://", "sync://",
		"postgres://u:p@h/db?sslmode=verify-full&listen=postgres:%2F%2Fh",
	} {
		f.Add(s, "a", "b", "h/db")
	}
	f.Add("x", "p@", "?", "h?exchange=e")
	f.Fuzz(func(t *testing.T, s, left, right, rest string) {
		if d, err := ParseDSN(s); err == nil {
			checkRoundTrip(t, d)
		}
		// A canary in the password of any DSN, well formed or not.
		malformed := "amqp://u:" + left + canary + right + "@" + rest
		d, err := ParseDSN(malformed)
		if text := fmt.Sprintf("%v %+v %v", d, d, err); !strings.Contains(left+right+rest, canary) {
			refuseCanary(t, malformed, text)
		}
		// Any password, properly written.
		secret := canary + left + right
		d, err = ParseDSN("amqp://u:" + escape(secret, "") + "@h/" + escape("v", "") + "?exchange=e")
		if err != nil || d.RevealPassword() != secret {
			t.Fatalf("password %q becomes %q, %v", secret, d.RevealPassword(), err)
		}
		refuseCanary(t, "a proper DSN", fmt.Sprintf("%v %+v %#v", d, d, d))
		checkRoundTrip(t, d)
	})
}

func checkRoundTrip(t *testing.T, d DSN) {
	t.Helper()
	revealed, err := ParseDSN(d.Reveal())
	if err != nil || !revealed.Equal(d) {
		t.Errorf("%q is not the same after Reveal and ParseDSN: %v, %v", d.Reveal(), revealed, err)
	}
	printed, err := ParseDSN(d.String())
	if err != nil || !printed.Equal(d.Redacted()) {
		t.Errorf("%q is not the same after String and ParseDSN: %v, %v", d.String(), printed, err)
	}
}

func FuzzExpand(f *testing.F) {
	for _, s := range []string{"", "a", "$$", "${A}", "${B:-c}", "x${A}y$$z${file:f}", "${", "$", "${A:-$$}", "${A:-${B}}", "${file:}", "${:-}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		// No file of this machine is read, for any path.
		s = strings.ReplaceAll(s, "file:", "")
		x := expander{getenv: environment(map[string]string{"A": "$${A}"}), dir: filepath.Join(t.TempDir(), "none")}
		got, _, err := x.expand(s)
		if !strings.Contains(s, "$") && (err != nil || got != s) {
			t.Errorf("expand(%q) = %q, %v, want it unchanged", s, got, err)
		}
		escaped := strings.ReplaceAll(s, "$", "$$")
		if got, origins, err := x.expand(escaped); err != nil || got != s || origins != nil {
			t.Errorf("expand(%q) = %q, %v, %v, want %q", escaped, got, origins, err, s)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte("a: &x [1, *x]\n---\n? b\n: !t c\n<<: {}\n"))
	f.Add([]byte("transports: {a: {dsn: 'memory://'}}\nrouting: {'*': [a, a]}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if strings.Contains(string(data), "file:") {
			t.Skip("no file of this machine is to be read")
		}
		c, err := Parse("waybill.yaml", data, environment(nil))
		if (c == nil) == (err == nil) {
			t.Fatalf("Parse = %v, %v", c, err)
		}
		if c != nil && c.Validate() != nil {
			t.Errorf("Parse returned a Config that Validate refuses: %v", c.Validate())
		}
	})
}
