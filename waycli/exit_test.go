package waycli

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
)

func TestExitCodeSaysWhatHappened(t *testing.T) {
	_, invalid := config.ParseDSN("nonsense")
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("any other"), 1},
		{&Error{Kind: 0, Err: errors.New("a line")}, 1},
		{&Error{Kind: Usage, Err: errors.New("a flag")}, 2},
		{fmt.Errorf("wrapped: %w", invalid), 2},
		{&waybill.TypeError{Type: "main.order", Problem: "p"}, 2},
		{fmt.Errorf("inbox: %w", waybill.ErrNotFound), 3},
		{fmt.Errorf("%w (lock file)", waybill.ErrRelayRunning), 4},
		{&Error{Kind: Refused, Err: errors.New("no terminal")}, 4},
		{&Error{Kind: Partial, Err: waybill.ErrUnavailable}, 5},
		{&Error{Kind: Partial, Err: errInterrupted}, 5},
		{fmt.Errorf("claim: %w", waybill.ErrUnavailable), 6},
		{&Error{Kind: 0, Err: waybill.ErrUnavailable}, 6},
		{&Error{Kind: Unavailable, Err: errors.New("broker")}, 6},
		{&Error{Kind: CheckFailed, Err: errors.New("pending")}, 7},
		{errInterrupted, 130},
		{errors.Join(&Error{Kind: Partial, Err: errors.New("blocked")}), 5},
	} {
		if got := ExitCode(c.err); got != c.want {
			t.Errorf("ExitCode(%v) = %d, want %d", c.err, got, c.want)
		}
	}
}

func TestErrorIsOneLineAndAHint(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.New("plain"), "shop: plain\n"},
		{errors.New("waybill: from the core"), "shop: from the core\n"},
		{errors.Join(errors.New("one"), errors.New("two")), "shop: one; two\n"},
		{&Error{Usage, errors.New("wrong"), "do this"}, "shop: wrong\nhint: do this\n"},
		{fmt.Errorf("outer: %w", &Error{Usage, errors.New("wrong"), "do this"}), "shop: outer: wrong\nhint: do this\n"},
		{waybill.ErrRelayRunning, "shop: another process relays this database\nhint: stop the other one, or let `shop relay --standby` wait to take over\n"},
		{
			errors.Join(&config.Error{File: "f", Line: 1, Problem: "a", Hint: "b"}, &config.Error{File: "f", Line: 2, Problem: "c"}),
			"shop: f:1: a\nhint: b\nshop: f:2: c\n",
		},
	} {
		var b bytes.Buffer
		PrintError(&b, "shop", c.err, false)
		if b.String() != c.want {
			t.Errorf("printed %q, want %q", b.String(), c.want)
		}
	}
}

func TestErrorAsJSONIsOneObject(t *testing.T) {
	var b bytes.Buffer
	PrintError(&b, "shop", &Error{Refused, errors.New("a <b>"), "--yes"}, true)
	want := `{"errors":[{"message":"a <b>","hint":"--yes"}],"exit_code":4}` + "\n"
	if b.String() != want {
		t.Errorf("printed %s, want %s", b.String(), want)
	}
}
