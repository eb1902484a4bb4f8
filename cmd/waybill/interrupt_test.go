package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/waycli"
)

// One signal ends a command that has no work to finish.
func TestInterruptEndsTheWaitForStandardInput(t *testing.T) {
	t.Chdir(t.TempDir())
	file := "transports: { work: { dsn: queue://work } }\nmessages: { order.placed: {} }\n"
	if err := os.WriteFile("waybill.yaml", []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if code := waycli.Main(t.Context(), app(), []string{"schema", "up"}, strings.NewReader(""), &stdout, &stderr); code != 0 {
		t.Fatalf("schema up: exit %d: %s", code, stderr.String())
	}
	for _, c := range []struct {
		args  []string
		input string
		code  int
		says  string
	}{
		{[]string{"dispatch", "order.placed"}, `{"a":`, 130, "waybill: interrupted\n"},
		{[]string{"dispatch", "--from", "-"}, `{"name":"order.placed","body":1}` + "\n", 130, "waybill: interrupted\nhint: nothing was dispatched\n"},
		{[]string{"dispatch", "--from", "-", "--batch", "1"}, `{"name":"order.placed","body":1}` + "\n", 5, "resume from line 2"},
	} {
		stdout.Reset()
		stderr.Reset()
		ctx, cancel := context.WithCancel(t.Context())
		in, feed := io.Pipe()
		go func() {
			_, _ = io.WriteString(feed, c.input)
			_, _ = feed.Write([]byte(" ")) // accepted once the earlier bytes were read
			cancel()
		}()
		code := waycli.Main(ctx, app(), c.args, in, &stdout, &stderr)
		_ = in.Close()
		cancel()
		if code != c.code || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("waybill %s: exit %d with %q, want %d with %q", strings.Join(c.args, " "), code, stderr.String(), c.code, c.says)
		}
	}
}
