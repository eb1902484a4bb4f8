// Package rabbitmq lets the commands of waycli reach RabbitMQ: for
// waycli.App.Brokers, under the schemes "amqp" and "amqps".
package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/wayamqp"
	"github.com/waybill-go/waybill/waycli"
)

// Broker returns the broker of amqp:// and amqps:// DSNs.
func Broker() waycli.Broker {
	return waycli.Broker{Publisher: publisher, Receiver: receiver, Declare: declare, Depth: depth, Findings: findings}
}

func publisher(t waycli.BrokerTransport) (waycli.Publisher, error) {
	cfg, err := configOf(t)
	if err != nil {
		return nil, err
	}
	if cfg.Exchange == "" && cfg.Queue == "" {
		return nil, &waycli.Error{Kind: waycli.Usage, Err: errors.New("its DSN names nothing to publish to"), Hint: "add the option exchange, or queue"}
	}
	return wayamqp.NewPublisher(cfg)
}

func receiver(ctx context.Context, t waycli.BrokerTransport) (waycli.Receiver, error) {
	cfg, err := configOf(t)
	if err != nil {
		return nil, err
	}
	if cfg.Queue == "" {
		return nil, &waycli.Error{Kind: waycli.Usage, Err: errors.New("its DSN names no queue to consume"), Hint: "add the option queue"}
	}
	// A broker that cannot be reached at the start is more likely a mistake than
	// an outage. A missing queue is an error of Receive.
	reach := cfg
	reach.Exchange, reach.Queue, reach.Bindings = "", "", nil
	if err := wayamqp.Check(ctx, reach); err != nil {
		return nil, explain(err)
	}
	return wayamqp.NewConsumer(cfg)
}

func depth(ctx context.Context, t waycli.BrokerTransport) (waycli.Depth, error) {
	cfg, err := configOf(t)
	if err != nil || cfg.Queue == "" {
		return waycli.Depth{}, err
	}
	ready, consumers, err := wayamqp.Depth(ctx, cfg)
	return waycli.Depth{Queue: cfg.Queue, Ready: ready, Consumers: consumers}, err
}

// declare declares all exchanges first: a binding may name an exchange of another
// transport.
func declare(ctx context.Context, ts []waycli.BrokerTransport) ([]waycli.Declared, error) {
	all := make([]waycli.Declared, len(ts))
	for i, t := range ts {
		all[i] = waycli.Declared{Transport: t.Name, Things: []string{}}
	}
	for _, only := range []func(*wayamqp.Config){
		func(cfg *wayamqp.Config) { cfg.Queue, cfg.Bindings = "", nil },
		func(cfg *wayamqp.Config) { cfg.Exchange = "" },
	} {
		for i, t := range ts {
			cfg, err := configOf(t)
			if err != nil {
				return all, &waycli.TransportError{Transport: t.Name, Err: err}
			}
			if only(&cfg); cfg.Exchange == "" && cfg.Queue == "" {
				continue
			}
			cfg.KeyHeader = cfg.KeyHeader || slices.ContainsFunc(ts, func(from waycli.BrokerTransport) bool { return sendsKeys(from, cfg) })
			things, err := wayamqp.Declare(ctx, cfg)
			all[i].Things = append(all[i].Things, things...)
			if err != nil {
				return all, &waycli.TransportError{Transport: t.Name, Err: explain(err)}
			}
		}
	}
	return all, nil
}

var codes = map[wayamqp.DefectKind]admin.Code{
	wayamqp.Missing: admin.MissingQueue, wayamqp.DropsMessages: admin.QueueDrops,
	wayamqp.Unordered: admin.QueueUnordered, wayamqp.OtherType: admin.QueueType,
}

// findings examines what declare declares.
func findings(ctx context.Context, ts []waycli.BrokerTransport) (found []admin.Finding) {
	away := map[string]bool{} // by address
	for _, t := range ts {
		cfg, err := configOf(t)
		if err != nil || cfg.Exchange == "" && cfg.Queue == "" || away[address(t.DSN)] {
			continue
		}
		cfg.KeyHeader = cfg.KeyHeader || slices.ContainsFunc(ts, func(from waycli.BrokerTransport) bool { return sendsKeys(from, cfg) })
		add := func(f admin.Finding) {
			f.Where = fmt.Sprintf("transport %q", t.Name)
			found = append(found, f)
		}
		defects, err := wayamqp.Examine(ctx, cfg)
		if err != nil {
			away[address(t.DSN)] = errors.Is(err, waybill.ErrUnavailable)
			add(admin.NewFinding(admin.BrokerUnchecked, "the broker was not looked at: "+err.Error(), "mend the connection, and run it again"))
		}
		for _, d := range defects {
			add(admin.NewFinding(codes[d.Kind], d.Problem, d.Remedy))
		}
	}
	return found
}

// sendsKeys reports whether a transport sends partition keys to the queue of cfg.
func sendsKeys(from waycli.BrokerTransport, cfg wayamqp.Config) bool {
	exchange := from.DSN.Text("exchange", "")
	switch {
	case !from.DSN.Bool("key_header", false):
		return false
	case exchange == "":
		return from.DSN.Text("queue", "") == cfg.Queue
	}
	return slices.ContainsFunc(cfg.Bindings, func(b wayamqp.Binding) bool { return b.Exchange == exchange })
}

func configOf(t waycli.BrokerTransport) (wayamqp.Config, error) {
	dsn := t.DSN
	cfg := wayamqp.Config{
		URL:                  address(dsn),
		Name:                 t.Client,
		Heartbeat:            dsn.Duration("heartbeat", 0),
		Exchange:             dsn.Text("exchange", ""),
		ExchangeType:         dsn.Enum("type", ""),
		RoutingKey:           dsn.Text("routing_key", ""),
		Routes:               t.Routes,
		KeyHeader:            dsn.Bool("key_header", false),
		Queue:                dsn.Text("queue", ""),
		QueueType:            dsn.Enum("queue_type", ""),
		SingleActiveConsumer: dsn.Bool("single_active_consumer", false),
		CompetingConsumers:   !dsn.Bool("single_active_consumer", true), // written as false
		Prefetch:             cmp.Or(t.Prefetch, dsn.Int("prefetch", 0)),
		KeyOf:                t.KeyOf,
		Log:                  t.Log,
	}
	for _, b := range dsn.List("bind") {
		exchange, key, _ := strings.Cut(b, ":")
		cfg.Bindings = append(cfg.Bindings, wayamqp.Binding{Exchange: exchange, Key: key})
	}
	if len(cfg.Bindings) > 0 && cfg.Queue == "" {
		return cfg, &waycli.Error{Kind: waycli.Usage, Err: errors.New("its DSN has bindings and no queue to bind"), Hint: "add the option queue, or remove bind"}
	}
	var err error
	if dsn.Scheme == "amqps" {
		cfg.TLS, err = secure(dsn)
	}
	return cfg, err
}

// address is dsn without options.
func address(dsn config.DSN) string {
	u := url.URL{Scheme: dsn.Scheme, Host: dsn.Host}
	if dsn.User != "" || dsn.HasPassword() {
		u.User = url.UserPassword(dsn.User, dsn.RevealPassword()) // a user alone would be given guest's
	}
	if dsn.Path != "" {
		u.Path, u.RawPath = "/"+dsn.Path, "/"+url.PathEscape(dsn.Path)
	}
	return u.String()
}

// explain adds a hint to an error that is no outage.
func explain(err error) error {
	if errors.Is(err, waybill.ErrUnavailable) {
		return err
	}
	return &waycli.Error{Kind: waycli.Usage, Err: err, Hint: "what was declared stays, and the command may be repeated"}
}
