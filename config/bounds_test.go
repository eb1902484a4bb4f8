package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// user:password@host may stand where a key belongs.
func TestWordWithAnAtSignIsNotPrinted(t *testing.T) {
	_, err := Parse("w.yaml", []byte("'u:"+canary+"@h': x"), environment(nil))
	if err == nil || !strings.Contains(err.Error(), `unknown key "***"`) {
		t.Errorf("error %v, want a masked key", err)
	}
}

func TestRetentionIsLongerThanTheRetries(t *testing.T) {
	c := defaults()
	c.Database = MustParseDSN("sqlite://./w.db")
	c.Transports["a"] = Transport{DSN: MustParseDSN("queue://a"), Retry: DefaultRetry()}
	c.Inbox.Retention = DefaultRetry().longest()
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "is not longer than the retries") {
		t.Errorf("a retention equal to the retries: %v, want an error", err)
	}
	c.Inbox.Retention++
	if err := c.Validate(); err != nil {
		t.Errorf("a longer retention: %v", err)
	}
}

func TestQueueOfADatabaseDoesNotListen(t *testing.T) {
	for option, value := range map[string]string{"listen": "postgres:%252F%252Fh%252Fd", "notify": "true"} {
		_, err := Parse("w.yaml", []byte("transports: {a: {dsn: 'queue://a?database=postgres:%2F%2Fh%2Fd%3F"+option+"="+value+"'}}"), environment(nil))
		if err == nil || !strings.Contains(err.Error(), `option "`+option+`" does nothing for a queue`) {
			t.Errorf("%s: %v, want a refusal", option, err)
		}
	}
}

func TestFileOfExactlyTheLimitIsRead(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "full"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, _, err := (expander{dir: dir}).expand("${file:full}"); err != nil || len(s) != 1<<20 {
		t.Errorf("%d bytes, %v, want 1 MiB", len(s), err)
	}
}
