package waycli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/internal/suggest"
)

// A complaint is one line of an error, with its hint.
type complaint struct {
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// PrintError prints an error that Execute of the commands returned: a line for each
// problem, with its hint, or one JSON object. Name is the name of the program. Main
// calls it.
func PrintError(w io.Writer, name string, err error, asJSON bool) {
	all := complaints(err, name)
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(struct {
			Errors   []complaint `json:"errors"`
			ExitCode int         `json:"exit_code"`
		}{all, ExitCode(err)})
		return
	}
	for _, c := range all {
		fmt.Fprintf(w, "%s: %s\n", name, visible(c.Message))
		if c.Hint != "" {
			fmt.Fprintf(w, "hint: %s\n", visible(c.Hint))
		}
	}
}

// complaints lists the problems in err: each error of a configuration is one.
func complaints(err error, name string) []complaint {
	if several, ok := err.(interface{ Unwrap() []error }); ok && invalidConfig(several.Unwrap()) {
		var all []complaint
		for _, one := range several.Unwrap() {
			all = append(all, complaints(one, name)...)
		}
		return all
	}
	if invalid, ok := err.(*config.Error); ok {
		bare := *invalid
		bare.Hint = ""
		return []complaint{{bare.Error(), invalid.Hint}}
	}
	// Errors of the core begin with the name of their package, as this line does.
	text := strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\n", "; "), "waybill: ")
	if errors.Is(err, errInterrupted) {
		text = "interrupted"
	}
	return []complaint{{commandsOf(name, text), commandsOf(name, hintOf(err, name))}}
}

// commandsOf returns a text of a package that does not know its program, with the commands in
// it as those of the program.
func commandsOf(name, text string) string { return strings.ReplaceAll(text, "`waybill ", "`"+name+" ") }

func invalidConfig(errs []error) bool {
	for _, err := range errs {
		if _, ok := err.(*config.Error); !ok {
			return false
		}
	}
	return len(errs) > 0
}

// hintOf returns the hint of err, or an empty one.
func hintOf(err error, name string) string {
	var (
		own     *Error
		invalid *config.Error
		unknown *waybill.UnknownNameError
		limit   *waybill.LimitError
	)
	switch {
	case errors.As(err, &own) && own.Hint != "":
		return own.Hint
	case errors.As(err, &invalid):
		return invalid.Hint
	case errors.Is(err, waybill.ErrRelayRunning):
		return fmt.Sprintf("stop the other one, or let `%s relay --standby` wait to take over", name)
	case errors.Is(err, waybill.ErrCommitUnknown):
		return fmt.Sprintf("`%s outbox list` shows whether they are there", name)
	case errors.Is(err, waybill.ErrUnavailable):
		return "is it locked, out of space, not permitted or not running? Try again when it can be reached"
	case errors.As(err, &unknown):
		return suggest.Hint(unknown.Name, unknown.Known, "names") + " (names stand under messages in the configuration; a program with handlers has its own in place of these, by a handler or by waybill.Register)"
	case errors.As(err, &limit):
		return "keep large data elsewhere and let the message say where"
	}
	return ""
}
