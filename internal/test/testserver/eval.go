package testserver

import (
	"fmt"
	"strings"
)

// Eval runs an Erlang expression inside a RabbitMQ and returns its value as text,
// for actions that no client offers, such as suspending a queue's process.
func (s *Server) Eval(expression string) (value string) {
	s.tb.Helper()
	s.do("eval", func(in *instance) (err error) { value, err = in.eval(expression); return err })
	return value
}

func (in *instance) eval(expression string) (string, error) {
	ctl, err := program("rabbitmqctl", rabbitPrograms, rabbitMissing)
	if err != nil {
		return "", err
	}
	env := in.commands[len(in.commands)-1].env
	out, err := in.command(command{path: ctl, args: []string{"eval", expression}, env: env}).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return strings.TrimSpace(string(out)), nil
}
