// Command run starts the servers that tests share, once, for a command that
// runs many of them:
//
//	go run ./internal/test/testserver/run -- go test ./...
//
// The command finds them in WAYBILL_TEST_POSTGRES, WAYBILL_TEST_MARIADB,
// WAYBILL_TEST_RABBITMQ and WAYBILL_TEST_RABBITMQ_API; a server whose variable is
// set already is not started. The command's exit code is passed on and the servers
// end with it.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/waybill-go/waybill/internal/test/testserver"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		fmt.Fprintln(stderr, "usage: run -- command [argument...]")
		return 2
	}
	// From here on a signal is for the command, whose end is ours.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)

	env, end, err := testserver.Share()
	code := 1
	if err == nil {
		code, err = follow(args, env, signals, stdin, stdout, stderr)
	}
	if err := errors.Join(err, end()); err != nil {
		fmt.Fprintf(stderr, "run: %v\n", err)
		return max(code, 1)
	}
	return code
}

// follow runs the command, passes signals on to it and returns its exit code.
func follow(args, env []string, signals <-chan os.Signal, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	select {
	case s := <-signals:
		return 1, fmt.Errorf("%s", s)
	default:
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s)
		case err := <-ended:
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
				return max(exit.ExitCode(), 1), nil // -1 is a signal
			}
			return 0, err
		}
	}
}
