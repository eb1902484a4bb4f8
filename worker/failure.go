package worker

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/waybill-go/waybill"
)

// host is the name of this machine.
var host = func() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}()

// identity names this process in attempts.
var identity = fmt.Sprintf("%s/%d", host, os.Getpid())

// describe returns the record of an error that handling a message ended with.
func describe(err error) Failure {
	f := Failure{Error: fmt.Sprint(err), Type: types(err)} // fmt contains a panic of Error
	var several *waybill.HandlersError
	if errors.As(err, &several) && len(several.Failed) > 0 {
		f.Handler = several.Failed[0].Handler
		f.Type = types(several.Failed[0].Err)
	}
	var panicked *waybill.PanicError
	if errors.As(err, &panicked) {
		f.Stack = string(panicked.Stack)
	}
	kind := strings.Join(strings.Fields(variable.ReplaceAllString(f.Error, "#")), " ") // times pad days with spaces
	sum := sha256.Sum256([]byte(strings.Join([]string{f.Handler, f.Type, kind, topFrame(f.Stack)}, "\x00")))
	f.Fingerprint = hex.EncodeToString(sum[:8])
	return f
}

// variable are the words of an error's text that differ from message to message: those
// with a digit, as numbers, ids and times have, and the names of days and months in times.
var variable = regexp.MustCompile(`[\pL\pN_+-]*\pN(?:[\pL\pN_+-]|[.,:]\pN)*|\b(?:` +
	`Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b`)

// types returns the Go types of err and the errors that it wraps, without those that only
// add text.
func types(err error) string {
	var names []string
	for err != nil && len(names) < 10 {
		if name := fmt.Sprintf("%T", err); name != "*fmt.wrapError" && name != "waybill.unrecoverable" && name != "waybill.retryAfter" {
			names = append(names, name)
		}
		if several, ok := err.(interface{ Unwrap() []error }); ok {
			for _, each := range several.Unwrap() {
				names = append(names, types(each))
			}
			break
		}
		err = errors.Unwrap(err)
	}
	return strings.Join(names, " ")
}

// topFrame returns the function that panicked: the one below the runtime's frame of the
// panic.
func topFrame(stack string) string {
	_, below, found := strings.Cut(stack, "\npanic(")
	if !found {
		return ""
	}
	lines := strings.SplitN(below, "\n", 4)
	if len(lines) < 3 {
		return ""
	}
	function, _, _ := strings.Cut(lines[2], "(0x")
	return function
}
