package waycli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
)

func (c *cli) debugCommand() *cobra.Command {
	return group(&cobra.Command{Use: "debug", Short: "Show what waybill makes of the configuration"},
		&cobra.Command{
			Use:   "routes",
			Short: "Print to which transports each message name goes",
			Long: `Print to which transports each message name of the configuration goes.

With --json: {"routes": [{"name", "transports"}]}. No transports: it has no route.`,
			Args: cobra.NoArgs,
			RunE: c.run(func(_ context.Context, s *session, _ []string) error { return s.routes() }),
		})
}

func (s *session) routes() error {
	cfg, err := s.config()
	if err != nil {
		return err
	}
	type route struct {
		Name       string   `json:"name"`
		Transports []string `json:"transports"`
	}
	routes := []route{}
	for _, name := range messageNames(cfg) {
		to := waybill.Routes(cfg.Routing).For(name)
		if to == nil {
			to = []string{}
			if one, err := cfg.OutboxTransport(); err == nil {
				to = append(to, one)
			}
		}
		routes = append(routes, route{name, to})
	}
	if s.flags.json {
		s.stdout.json(struct {
			Routes []route `json:"routes"`
		}{routes})
		return nil
	}
	rows := make([][]any, len(routes))
	for i, r := range routes {
		rows[i] = []any{r.Name, strings.Join(r.Transports, ", ")}
	}
	s.stdout.table([]string{"NAME", "TRANSPORTS"}, rows)
	return nil
}
