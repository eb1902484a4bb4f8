//go:build unix

// Package orders_test runs the three programs of this example as processes and
// kills the relay while it works.
package orders_test

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// kills is how often the relay dies in each run.
const kills = 3

func TestEveryEventIsBilledOnceInOrderWhileTheRelayIsKilled(t *testing.T) {
	bin := build(t)
	for name, on := range map[string]func(*testing.T) *fixture{"sqlite": onSQLite, "postgres": onPostgres, "mariadb": onMariaDB} {
		t.Run(name, func(t *testing.T) {
			t.Run("testdata", func(t *testing.T) { run(t, bin, on(t), filepath.Join("testdata", "orders.jsonl")) })
			if file := os.Getenv("WAYBILL_ORDERS"); file != "" {
				t.Run("WAYBILL_ORDERS", func(t *testing.T) { run(t, bin, on(t), file) })
			}
		})
	}
}

// run takes the events of a file through the three services.
func run(t *testing.T, bin string, p *fixture, file string) {
	want := readEvents(t, file)
	startRelay := func() *process { return start(t, bin, "relay", "--database", p.orders, "--broker", p.broker) }

	// The order service works for some seconds, also after the last kill.
	pause := 3 * time.Second / time.Duration(len(want))
	shop := start(t, bin, "orderservice", "--database", p.orders, "--orders", file, "--pause", pause.String())
	biller := start(t, bin, "billing", "--database", p.billing, "--broker", p.broker)
	relay := startRelay()

	for kill := 1; kill <= kills; kill++ {
		waitUntil(t, "more is billed", func() (bool, error) {
			n, err := count(p.bills, "SELECT count(*) FROM ledger")
			return n >= kill*len(want)/(kills+2), err
		})
		if kill == 2 {
			killBeforeDelete(t, relay, p)
		} else {
			relay.kill(t)
		}
		// Pending rows have not been deleted: the relay died midway.
		waitUntil(t, "messages wait without a relay", func() (bool, error) {
			n, err := count(p.shop, "SELECT count(*) FROM waybill_outbox WHERE id > 0")
			return n > 0, err
		})
		relay = startRelay()
	}

	if out := shop.wait(t); out != fmt.Sprintf("%d events recorded and dispatched\n", len(want)) {
		t.Errorf("order service said %q, want %d events", out, len(want))
	}
	waitUntil(t, "outbox and queue are empty", func() (bool, error) {
		left, err := count(p.shop, "SELECT count(*) FROM waybill_outbox WHERE id > 0")
		if err != nil || left > 0 {
			return false, err
		}
		left, err = p.queued()
		return left == 0, err
	})
	relay.stop(t)
	// Billing may still have messages in flight.
	if err := within(patience, func() (bool, error) {
		n, err := count(p.bills, "SELECT count(*) FROM ledger")
		return n >= len(want), err
	}); err != nil {
		t.Errorf("not all events are billed: %v", err)
	}
	var handled, duplicates int
	if out := biller.stop(t); !scan(out, &handled, &duplicates) || handled-duplicates != len(want) || duplicates == 0 {
		t.Errorf("billing said %q, want %d messages, and some duplicates", out, len(want))
	}
	if left, err := p.queued(); err != nil || left > 0 {
		t.Errorf("billing has left %d messages (%v), want none", left, err)
	}

	got := readLedger(t, p.bills)
	if diff := compare(want, got); diff != "" {
		t.Errorf("the ledger is not the file (-file +ledger), customer by customer:\n%s", diff)
	}
	checkCount(t, p.bills, "invoices", named(want, "order.placed"))
	checkCount(t, p.bills, "shipments", named(want, "order.shipped"))
	if !t.Failed() {
		t.Logf("%d events of %d customers billed once and in order; relay killed midway %d times, %d duplicates suppressed",
			len(got), len(byCustomer(got)), kills, duplicates)
	}
}

// killBeforeDelete kills the relay at the worst moment: it has published a
// message, which is even handled, and has not deleted it from the outbox. To
// keep the row there, the test holds the lock that every delete of it needs.
func killBeforeDelete(t *testing.T, relay *process, p *fixture) {
	t.Helper()
	var id any
	waitUntil(t, "a message is in the outbox", func() (bool, error) {
		tx, err := p.shop.Begin()
		if err != nil {
			return false, err
		}
		defer tx.Rollback()
		if err := tx.QueryRow(p.keep).Scan(&id); err != nil {
			return false, err
		}
		waitUntil(t, "it is published and handled", func() (bool, error) {
			n, err := count(p.bills, "SELECT count(*) FROM waybill_inbox WHERE message_id = "+p.argument, id)
			return n > 0, err
		})
		if p.waiting != "" {
			waitUntil(t, "the server has the relay's delete", func() (bool, error) {
				var n int
				time.Sleep(150 * time.Millisecond) // MariaDB answers more frequent queries from a cache
				err := tx.QueryRow(p.waiting).Scan(&n)
				return n > 0, err
			})
		}
		relay.kill(t)
		if p.end != "" {
			if _, err := tx.Exec(p.end); err != nil {
				t.Fatal(err)
			}
		}
		return true, nil
	})
	if n, err := count(p.shop, "SELECT count(*) FROM waybill_outbox WHERE message_id = "+p.argument, id); err != nil || n != 1 {
		t.Fatalf("%d rows of the message in the outbox (%v), want 1: the relay was killed too late", n, err)
	}
}

func scan(out string, handled, duplicates *int) bool {
	n, err := fmt.Sscanf(out, "handled %d messages, %d of them duplicates\n", handled, duplicates)
	return err == nil && n == 2
}

// A fact is an event as it can be compared, on both sides.
type fact struct {
	Customer string
	Name     string
	Body     any // decoded: 14.0 and 14 are the same number
}

// compare returns how got differs from want, and nothing when each customer's
// facts are the same, in the same order, each once.
func compare(want, got []fact) string { return cmp.Diff(byCustomer(want), byCustomer(got)) }

func byCustomer(facts []fact) map[string][]fact {
	all := map[string][]fact{}
	for _, f := range facts {
		all[f.Customer] = append(all[f.Customer], f)
	}
	return all
}

func TestComparisonNoticesWhatCouldGoWrong(t *testing.T) {
	want := readEvents(t, filepath.Join("testdata", "orders.jsonl"))
	if diff := compare(want, readEvents(t, filepath.Join("testdata", "orders.jsonl"))); diff != "" {
		t.Fatalf("a file differs from itself:\n%s", diff)
	}
	// The first two facts of one customer, and another customer's first.
	first := 0
	second := slices.IndexFunc(want[1:], func(f fact) bool { return f.Customer == want[first].Customer }) + 1
	other := slices.IndexFunc(want, func(f fact) bool { return f.Customer != want[first].Customer })
	body := func(facts []fact, i int) map[string]any { return facts[i].Body.(map[string]any) }
	for name, mutate := range map[string]func(got []fact) []fact{
		"lost":              func(got []fact) []fact { return slices.Delete(got, second, second+1) },
		"last one lost":     func(got []fact) []fact { return got[:len(got)-1] },
		"twice":             func(got []fact) []fact { return append(got, got[len(got)-1]) },
		"out of order":      func(got []fact) []fact { got[first], got[second] = got[second], got[first]; return got },
		"another name":      func(got []fact) []fact { got[first].Name = "order.shipped"; return got },
		"another customer":  func(got []fact) []fact { got[first].Customer = got[other].Customer; return got },
		"another number":    func(got []fact) []fact { body(got, first)["freight"] = 46.01; return got },
		"null became empty": func(got []fact) []fact { body(got, first)["shipTo"].(map[string]any)["region"] = ""; return got },
		"accent lost": func(got []fact) []fact {
			body(got, first)["shipTo"].(map[string]any)["name"] = "Cafe Zurisee AG"
			return got
		},
		"a line of the order": func(got []fact) []fact { body(got, first)["lines"] = body(got, first)["lines"].([]any)[1:]; return got },
		"field lost":          func(got []fact) []fact { delete(body(got, first), "requiredAt"); return got },
	} {
		got := mutate(readEvents(t, filepath.Join("testdata", "orders.jsonl")))
		if compare(want, got) == "" {
			t.Errorf("%s: not noticed", name)
		}
	}
	// Customers are independent: their events may come between each other's.
	got := readEvents(t, filepath.Join("testdata", "orders.jsonl"))
	slices.SortStableFunc(got, func(a, b fact) int { return bytes.Compare([]byte(a.Customer), []byte(b.Customer)) })
	if diff := compare(want, got); diff != "" {
		t.Errorf("another order between customers is a difference:\n%s", diff)
	}
}

func readEvents(t *testing.T, file string) (all []fact) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := json.NewDecoder(f); ; {
		var line struct {
			Name, Key string
			Body      any
		}
		if err := lines.Decode(&line); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, fact{line.Key, line.Name, line.Body})
	}
}

func named(facts []fact, name string) (n int) {
	for _, f := range facts {
		if f.Name == name {
			n++
		}
	}
	return n
}

func readLedger(t *testing.T, bills *sql.DB) (all []fact) {
	t.Helper()
	rows, err := bills.Query("SELECT customer, event, body FROM ledger ORDER BY customer, entry")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var f fact
		var body []byte
		if err := rows.Scan(&f.Customer, &f.Name, &body); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(body, &f.Body); err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func checkCount(t *testing.T, db *sql.DB, table string, want int) {
	t.Helper()
	if n, err := count(db, "SELECT count(*) FROM "+table); err != nil || n != want {
		t.Errorf("%d rows in %s (%v), want %d", n, table, err, want)
	}
}
