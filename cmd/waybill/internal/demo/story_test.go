package demo_test

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// The story is on the pages within seconds, and its retry in the audit within a minute.
func TestDashboardOfTheDemoShowsItsStory(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	cmd := exec.Command(binary, "demo", "--dashboard", "--listen", "127.0.0.1:0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "http://127.0.0.1:") {
		t.Fatalf("the first line is %q: %v\n%s", line, err, &stderr)
	}
	url := strings.TrimSpace(line)
	for _, page := range []struct {
		path, shows string
	}{
		{"", "orders"}, {"workers", "shop-1"},
		{"failed", "payment gateway: 503 Service Unavailable"}, {"failed", "mail template order.html"},
		{"audit", "failed retry"},
	} {
		awaitPage(t, url+page.path, page.shows)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("at SIGINT it ended with %v, want exit code 0\n%s", err, &stderr)
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("it left %v in the temporary directory (%v)", left, err)
	}
	if _, err := http.Get(url); err == nil {
		t.Error("the dashboard still answers")
	}
}

// awaitPage waits until a page shows something.
func awaitPage(t *testing.T, url, what string) {
	t.Helper()
	var text []byte
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		res, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		text, err = io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err == nil && res.StatusCode == http.StatusOK && strings.Contains(string(text), what) {
			return
		}
	}
	t.Errorf("%s does not show %q within a minute:\n%s", url, what, text)
}
