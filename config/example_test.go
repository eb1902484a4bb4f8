package config_test

import (
	"fmt"
	"time"

	"github.com/waybill-go/waybill/config"
)

func ExampleParseDSN() {
	d, err := config.ParseDSN("queue://orders?lease=1m&database=mysql%3A%2F%2Fapp%3As3cret%40db%2Fshop")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(d.Scheme, d.Host, d.Duration("lease", 15*time.Second), d.Int("prefetch", 10))
	database, _ := d.DSN("database")
	fmt.Println(database)
	// Output:
	// queue orders 1m0s 10
	// mysql://app:***@db/shop
}

func ExampleParseDSN_unknownOption() {
	_, err := config.ParseDSN("amqp://guest:guest@localhost/%2f?exhange=events")
	fmt.Println(err)
	// Output:
	// dsn: unknown option "exhange" (did you mean "exchange"?)
}

func ExampleParse() {
	file := `
transports:
  events: { dsn: "queue://${QUEUE:-events}" }
  mail:   { dsn: "queue://mail?lease=5" }
routing: { "order.*": evnts }
`
	_, err := config.Parse("waybill.yaml", []byte(file), nil)
	fmt.Println(err)
	// Output:
	// waybill.yaml:4: transports.mail.dsn: option "lease": wrong value "5" (it takes a duration above zero, such as 15s, 1h30m or 30d)
	// waybill.yaml:5: routing."order.*": unknown transport "evnts" (did you mean "events"?)
}
