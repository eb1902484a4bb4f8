package waycli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
)

// confirm asks, and returns an error unless the answer is yes. With --yes it
// does not ask; without a terminal it refuses.
func (s *session) confirm(ctx context.Context, question string) error {
	if s.flags.yes {
		return nil
	}
	if !isTerminal(s.stdin) {
		return &Error{Refused, fmt.Errorf("%s There is no terminal to ask on", question), "--yes does it without asking, --dry-run only counts"}
	}
	fmt.Fprintf(s.stderr, "%s [y/N] ", question)
	answer, err := bufio.NewReader(cancelReader{ctx, s.stdin}).ReadString('\n')
	if ctx.Err() != nil {
		return ctx.Err()
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	if err != nil {
		s.say("")
	}
	return &Error{Refused, errors.New("not confirmed: nothing was changed"), ""}
}
