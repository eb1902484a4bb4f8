package waycli

import (
	"cmp"
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
)

func (c *cli) debugCommand() *cobra.Command {
	return group(&cobra.Command{Use: "debug", Short: "Show what waybill makes of the configuration"},
		&cobra.Command{
			Use:   "routes",
			Short: "Print to which transports each message name goes",
			Long: `Print to which transports each message name of the configuration goes, and where
their brokers take it if outbox.routes says otherwise than the DSN.

With --json: {"routes": [{"name", "transports", "exchange", "routing_key",
"on_exhausted"}]}. No
transports: it has no route. No exchange or routing key: as in the DSN.`,
			Example: "  waybill debug routes",
			Args:    cobra.NoArgs,
			RunE:    c.run(func(_ context.Context, s *session, _ []string) error { return s.routes() }),
		},
		c.debugRetryCommand())
}

func (s *session) routes() error {
	cfg, err := s.config()
	if err != nil {
		return err
	}
	type route struct {
		Name       string   `json:"name"`
		Transports []string `json:"transports"`
		Exchange   string   `json:"exchange,omitempty"`
		RoutingKey string   `json:"routing_key,omitempty"`

		OnExhausted config.OnExhausted `json:"on_exhausted"`
	}
	override := routesOf(cfg.Outbox.Routes)
	routes := []route{}
	for _, name := range messageNames(cfg) {
		to := waybill.Routes(cfg.Routing).For(name)
		if to == nil {
			to = []string{}
			if one, err := cfg.OutboxTransport(); err == nil {
				to = append(to, one)
			}
		}
		r := override(name)
		routes = append(routes, route{name, to, r.Exchange, r.RoutingKey, cmp.Or(r.OnExhausted, cfg.Outbox.OnExhausted)})
	}
	if s.flags.json {
		s.stdout.json(map[string]any{"routes": routes})
		return nil
	}
	header := []string{"NAME", "TRANSPORTS"}
	if len(cfg.Outbox.Routes) > 0 {
		header = append(header, "EXCHANGE", "ROUTING KEY", "ON EXHAUSTED")
	}
	tableOf(s.stdout, header, routes, func(r route) []any {
		return []any{r.Name, strings.Join(r.Transports, ", "), r.Exchange, r.RoutingKey, r.OnExhausted}[:len(header)]
	})
	return nil
}
