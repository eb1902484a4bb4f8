package waycli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// answerTimeout is the default of --timeout.
const answerTimeout = duration(time.Minute)

func timeoutFlag(cmd *cobra.Command) *duration {
	limit := answerTimeout
	cmd.Flags().Var(&limit, "timeout", "give up, with exit code 6, if the answers take longer; 0 never")
	return &limit
}

var errNoAnswer = errors.New("no answer in time")

// within runs look, which changes nothing, for so long: a monitor must not wait for as long as a
// session locks a table. Zero means no limit.
func within(ctx context.Context, limit duration, look func(context.Context) error) error {
	if limit == 0 {
		return look(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(limit), errNoAnswer)
	defer cancel()
	err := look(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(context.Cause(ctx), errNoAnswer) {
		return err
	}
	return &Error{Unavailable, fmt.Errorf("no answer within %s", limit.String()), "a session may have locked a table of waybill, or the database is overloaded; --timeout allows more time"}
}
