package waycli

import (
	"errors"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/outbox"
)

// Kind is the sort of an Error. It decides the exit code.
type Kind int

// The kinds of errors. The zero value is any other error.
const (
	Usage       Kind = iota + 1 // a wrong argument, flag or configuration
	NotFound                    // the requested item does not exist
	Refused                     // it needs a confirmation, or another process is in the way
	Partial                     // a part was done
	Unavailable                 // a database or broker cannot be reached
	CheckFailed                 // a check that was asked for failed
	Interrupted                 // a signal came before it was done
)

// An Error is an error of a command, with a hint.
type Error struct {
	Kind Kind
	Err  error
	Hint string // what to do; may be empty
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

const exitInterrupted = 130

// errInterrupted says that a signal ended a command that had more to do.
var errInterrupted = errors.New("interrupted")

// ExitCode returns the exit code for an error that Execute of the commands returned:
//
//	0    done
//	1    another error
//	2    wrong usage or configuration
//	3    not found
//	4    refused: needs a confirmation, or another process is in the way
//	5    partly done
//	6    a database or broker cannot be reached
//	7    a check failed (schema status, doctor, --fail-if, preflight)
//	130  interrupted before it was done
func ExitCode(err error) int {
	var (
		own     *Error
		invalid *config.Error
		typ     *waybill.TypeError
		setting *outbox.SettingError
	)
	switch {
	case err == nil:
		return 0
	case errors.As(err, &own) && own.Kind == Partial:
		return 5
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case errors.Is(err, waybill.ErrUnavailable):
		return 6
	case errors.Is(err, waybill.ErrNotFound):
		return 3
	case errors.Is(err, waybill.ErrRelayRunning):
		return 4
	case own != nil && own.Kind != 0:
		return codes[own.Kind]
	case errors.As(err, &invalid), errors.As(err, &typ), errors.As(err, &setting):
		return 2
	}
	return 1
}

var codes = map[Kind]int{Usage: 2, NotFound: 3, Refused: 4, Partial: 5, Unavailable: 6, CheckFailed: 7, Interrupted: exitInterrupted}
