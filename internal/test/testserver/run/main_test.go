package main

import (
	"bufio"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestCommandFindsTheServersAndItsExitCodeIsPassedOn(t *testing.T) {
	pretendServers(t)
	var stdout, stderr strings.Builder
	code := run([]string{"--", "sh", "-c", "cat; echo $WAYBILL_TEST_POSTGRES; exit 7"}, strings.NewReader("input "), &stdout, &stderr)
	if code != 7 || stdout.String() != "input postgres://127.0.0.1:1/x\n" || stderr.String() != "" {
		t.Errorf("run = %d with output %q and %q, want 7 with the input and the variable", code, &stdout, &stderr)
	}
}

func TestSignalsGoToTheCommand(t *testing.T) {
	pretendServers(t)
	out, in := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- run([]string{"sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"}, nil, in, io.Discard)
		in.Close()
	}()
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("output %q, %v, want ready", line, err)
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := <-code; got != 9 {
		t.Errorf("run = %d, want the 9 of the command that was asked to end", got)
	}
}

func TestMissingCommandIsAnError(t *testing.T) {
	pretendServers(t)
	for _, args := range [][]string{nil, {"--"}, {"--", "/no/such/command"}} {
		var stderr strings.Builder
		if code := run(args, nil, io.Discard, &stderr); code == 0 || stderr.Len() == 0 {
			t.Errorf("run(%q) = %d with %q, want an error that is told", args, code, &stderr)
		}
	}
}

// pretendServers makes run believe that servers are there.
func pretendServers(t *testing.T) {
	t.Setenv("WAYBILL_TEST_POSTGRES", "postgres://127.0.0.1:1/x")
	t.Setenv("WAYBILL_TEST_MARIADB", "mysql://root@127.0.0.1:1/x")
	t.Setenv("WAYBILL_TEST_RABBITMQ", "amqp://u:p@127.0.0.1:1/x")
	t.Setenv("WAYBILL_TEST_RABBITMQ_API", "http://u:p@127.0.0.1:1")
}
