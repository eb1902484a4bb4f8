// Command waybill relays, consumes, dispatches and administers messages. It is
// package waycli with the databases and brokers that this binary can open; it
// has no handlers.
package main

import (
	"context"
	"os"
	_ "time/tzdata" // schedules work on hosts without time zones

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/waycli"
	"github.com/waybill-go/waybill/waycli/mysql"
	"github.com/waybill-go/waybill/waycli/otlp"
	"github.com/waybill-go/waybill/waycli/postgres"
	"github.com/waybill-go/waybill/waycli/rabbitmq"
	"github.com/waybill-go/waybill/waycli/sqlite"
)

func main() {
	os.Exit(run())
}

func run() int {
	ctx, stop := waycli.WithSignals(context.Background())
	defer stop()
	return waycli.Main(ctx, app(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}

// app is the stock binary.
func app() waycli.App {
	return waycli.App{
		Name:      "waybill",
		Databases: map[string]waycli.Driver{"sqlite": sqlite.Driver(), "postgres": postgres.Driver(), "mysql": mysql.Driver()},
		Brokers:   map[string]waycli.Broker{"amqp": rabbitmq.Broker(), "amqps": rabbitmq.Broker()},
		Traces:    otlp.Traces,
		Commands:  commands(),
	}
}

// commands returns the commands of the stock binary in addition to waycli's.
func commands() []*cobra.Command {
	return []*cobra.Command{demoCommand(), benchCommand()}
}
