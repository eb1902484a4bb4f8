package waycli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/config"
)

// dispatchFlags are the flags of dispatch.
type dispatchFlags struct {
	key, id, to, bodyFile, from string
	headers                     []string
	delay                       duration
	batch                       int
}

func (c *cli) dispatchCommand() *cobra.Command {
	var f dispatchFlags
	cmd := &cobra.Command{
		Use:   "dispatch NAME [BODY]",
		Short: "Write messages to the outbox, or to a queue of the database",
		Long: `Write a message to the outbox of the configured database, or at once to its
transport if that is a queue of the same database. Routing is that of the
configuration. Only names that stand under messages in it are accepted; a program with
handlers accepts its own in place of these: those of handlers and of waybill.Register.

The body is one JSON value and passes byte for byte: the second argument, the
content of --body-file, or standard input when it is "-" or missing. It prints the
message's id.

With --from FILE (or - for standard input) it reads JSON Lines, one message a
line, with the fields name, key, body, headers, id and delay ("5m"); name and body
are required. Lines are dispatched in transactions of --batch lines or 8 MiB. A
wrong line stops it, and nothing of its batch is dispatched; exit code 5 says that
earlier batches were, or that the result of a commit is unknown, and the error from
which line to resume.

With --json: one line per message, {"id", "name", "key", "transports"}.`,
		Example: `  waybill dispatch order.placed '{"orderId":"o-1"}' --key o-1 --header tenant=acme
  waybill dispatch invoice.send --delay 5m < invoice.json
  waybill dispatch --from orders.jsonl --json`,
		Args: func(_ *cobra.Command, args []string) error { return checkDispatch(args, f) },
		RunE: c.run(func(ctx context.Context, s *session, args []string) error {
			if f.from != "" {
				return s.dispatchFile(ctx, f)
			}
			return s.dispatchOne(ctx, f, args)
		}),
		ValidArgsFunction: c.completeFrom(messageNames),
	}
	p := cmd.Flags()
	p.StringVar(&f.key, "key", "", "partition key: messages of one key keep their order")
	p.StringArrayVar(&f.headers, "header", nil, "header as name=value; may be repeated")
	p.StringVar(&f.id, "id", "", "message id, a UUID or ULID (default: a new UUIDv7)")
	p.Var(&f.delay, "delay", "hold the message back for so long")
	p.StringVar(&f.to, "to", "", "transport, in place of the configured route")
	p.StringVar(&f.bodyFile, "body-file", "", "file with the body")
	p.StringVar(&f.from, "from", "", "file with one message per line")
	p.IntVar(&f.batch, "batch", defaultBatch, "lines per transaction, with --from")
	_ = cmd.RegisterFlagCompletionFunc("to", c.completeFrom(transportNames))
	return cmd
}

// checkDispatch refuses contradictory arguments.
func checkDispatch(args []string, f dispatchFlags) error {
	alone := f.key == "" && f.id == "" && f.bodyFile == "" && f.headers == nil && f.delay == 0
	switch {
	case f.from != "" && (len(args) > 0 || !alone):
		return errors.New("with --from all of a message stands in its line: only --to and --batch go with it")
	case f.batch < 1:
		return fmt.Errorf("--batch: %d is less than 1", f.batch)
	case f.from == "" && f.batch != defaultBatch:
		return errors.New("--batch is for the lines of --from FILE")
	case f.from == "" && len(args) == 0:
		return errors.New("which message? give its name, or --from FILE")
	case len(args) > 2:
		return fmt.Errorf("%d arguments, want NAME and BODY: is the body quoted?", len(args))
	case len(args) == 2 && f.bodyFile != "":
		return errors.New("a body as argument and --body-file: give one of them")
	}
	return nil
}

func messageNames(cfg *config.Config) []string {
	return slices.Sorted(maps.Keys(cfg.Messages))
}

// dispatchOne dispatches the message of the arguments.
func (s *session) dispatchOne(ctx context.Context, f dispatchFlags, args []string) error {
	d, err := s.newDispatcher(ctx, f.to)
	if err != nil {
		return err
	}
	m := message{Name: args[0], Key: f.key, ID: f.id}
	if f.delay != 0 {
		m.Delay = f.delay.String()
	}
	if m.Headers, err = parseHeaders(f.headers); err != nil {
		return err
	}
	if err := d.checkName(m.Name); err != nil {
		return refused(err) // before a wait for standard input
	}
	if m.Body, err = s.readBody(ctx, args[1:], f.bodyFile); err != nil {
		return err
	}
	p, err := d.prepare(m)
	if err != nil {
		return refused(err)
	}
	return d.commit(ctx, p)
}

// refused turns an error of a message from the arguments into a usage error.
func refused(err error) error {
	if own := (*Error)(nil); errors.As(err, &own) {
		return err
	}
	hint := hintOf(err, "")
	if hint == "" {
		hint = "nothing was dispatched"
	}
	return &Error{Usage, err, hint}
}

func parseHeaders(pairs []string) (map[string]string, error) {
	headers := map[string]string{}
	for _, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, &Error{Usage, fmt.Errorf("--header: %q is not name=value", pair), "such as --header tenant=acme"}
		}
		if _, twice := headers[name]; twice {
			return nil, &Error{Usage, fmt.Errorf("--header: %q is given twice", name), "a message has one value for each header"}
		}
		headers[name] = value
	}
	return headers, nil
}

// maxRead bounds the bytes read of a body; it is above the limit of a body, so that
// the error can tell its size.
const maxRead = 64 << 20

func (s *session) readBody(ctx context.Context, args []string, file string) (json.RawMessage, error) {
	var from io.Reader = cancelReader{ctx, s.stdin}
	switch {
	case len(args) == 1 && args[0] != "-":
		return json.RawMessage(args[0]), nil
	case file != "" && file != "-":
		f, err := os.Open(file)
		if err != nil {
			return nil, &Error{Usage, fmt.Errorf("--body-file: %w", err), ""}
		}
		defer func() { _ = f.Close() }() // only read
		from = f
	case isTerminal(s.stdin):
		s.say("reading the body from standard input")
	}
	body, err := io.ReadAll(io.LimitReader(from, maxRead))
	if err != nil {
		return nil, fmt.Errorf("read the body: %w", err)
	}
	return body, nil
}
