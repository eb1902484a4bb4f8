//go:build unix

// Package orders_test runs the three programs of this example as processes and
// kills the relay while it works.
package orders_test

import (
	"bytes"
	"context"
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

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

// kills is how often the relay dies in each run.
const kills = 3

func TestEveryEventIsBilledOnceInOrderWhileTheRelayIsKilled(t *testing.T) {
	bin := build(t)
	t.Run("testdata", func(t *testing.T) { run(t, bin, filepath.Join("testdata", "orders.jsonl")) })
	if file := os.Getenv("WAYBILL_ORDERS"); file != "" {
		t.Run("WAYBILL_ORDERS", func(t *testing.T) { run(t, bin, file) })
	}
}

// run takes the events of a file through the three services.
func run(t *testing.T, bin, file string) {
	want := readEvents(t, file)
	dir := t.TempDir()
	orders, broker, billing := filepath.Join(dir, "orders.db"), filepath.Join(dir, "broker.db"), filepath.Join(dir, "billing.db")
	startRelay := func() *process {
		return start(t, bin, "relay", "WAYBILL_DATABASE="+orders, "WAYBILL_BROKER="+broker)
	}

	// The order service works for some seconds, also after the last kill.
	pause := 3 * time.Second / time.Duration(len(want))
	shop := start(t, bin, "orderservice", "WAYBILL_DATABASE="+orders, "WAYBILL_ORDERS="+file, "WAYBILL_PAUSE="+pause.String())
	biller := start(t, bin, "billing", "WAYBILL_DATABASE="+billing, "WAYBILL_BROKER="+broker)
	relay := startRelay()

	for kill := 1; kill <= kills; kill++ {
		waitUntil(t, "more is billed", func() (bool, error) {
			n, err := count(billing, "SELECT count(*) FROM ledger")
			return n >= kill*len(want)/(kills+2), err
		})
		if kill == 2 {
			killBeforeDelete(t, relay, orders, billing)
		} else {
			relay.kill(t)
		}
		// What is pending now has not been deleted: it died midway.
		waitUntil(t, "messages wait without a relay", func() (bool, error) {
			left, err := outboxLeft(orders)
			return left.Pending > 0, err
		})
		relay = startRelay()
	}

	if out := shop.wait(t); out != fmt.Sprintf("%d events recorded and dispatched\n", len(want)) {
		t.Errorf("order service said %q, want %d events", out, len(want))
	}
	waitUntil(t, "outbox and queue are empty", func() (bool, error) {
		left, err := outboxLeft(orders)
		if err != nil || left != (outbox.Left{}) {
			return false, err
		}
		n, err := count(broker, "SELECT count(*) FROM waybill_queue")
		return n == 0, err
	})
	relay.stop(t)
	var handled, duplicates int
	if out := biller.stop(t); !scan(out, &handled, &duplicates) || handled-duplicates != len(want) || duplicates == 0 {
		t.Errorf("billing said %q, want %d messages, and some duplicates", out, len(want))
	}

	got := readLedger(t, billing)
	if diff := compare(want, got); diff != "" {
		t.Errorf("the ledger is not the file (-file +ledger), customer by customer:\n%s", diff)
	}
	checkCount(t, billing, "invoices", named(want, "order.placed"))
	checkCount(t, billing, "shipments", named(want, "order.shipped"))
	t.Logf("%d events of %d customers billed once and in order; relay killed midway %d times, %d duplicates suppressed",
		len(got), len(byCustomer(got)), kills, duplicates)
}

// killBeforeDelete kills the relay at the worst moment: it has published a
// message, which is even handled, and has not deleted it from the outbox. To
// keep it there, it holds the lock without which nobody writes to the file.
func killBeforeDelete(t *testing.T, relay *process, orders, billing string) {
	t.Helper()
	db := openFile(t, orders)
	defer db.Close()
	bills := openFile(t, billing)
	defer bills.Close()
	waitUntil(t, "a message is in the outbox", func() (bool, error) {
		tx, err := db.SQL().Begin() // immediate, as all transactions of this pool
		if err != nil {
			return false, err
		}
		defer tx.Rollback()
		pending, err := db.Outbox(t.Context(), admin.OutboxQuery{Limit: 1})
		if err != nil || len(pending) == 0 {
			return false, err
		}
		waitUntil(t, "it is published and handled", func() (bool, error) {
			entries, err := bills.InboxLookup(t.Context(), pending[0].ID.String())
			return len(entries) > 0, err
		})
		relay.kill(t)
		return true, nil
	})
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

func openFile(t *testing.T, file string) *waysqlite.DB {
	t.Helper()
	db, err := waysqlite.Open(file, waysqlite.Config{MustExist: true})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func readLedger(t *testing.T, billing string) (all []fact) {
	t.Helper()
	db := openFile(t, billing)
	defer db.Close()
	rows, err := db.ReadSQL().Query("SELECT customer, event, body FROM ledger ORDER BY entry")
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

func checkCount(t *testing.T, file, table string, want int) {
	t.Helper()
	if n, err := count(file, "SELECT count(*) FROM "+table); err != nil || n != want {
		t.Errorf("%d rows in %s (%v), want %d", n, table, err, want)
	}
}

// count opens and closes the file: it belongs to the programs under test.
func count(file, query string) (n int, err error) {
	db, err := waysqlite.Open(file, waysqlite.Config{MustExist: true})
	if err != nil {
		return 0, err
	}
	defer db.Close()
	err = db.ReadSQL().QueryRow(query).Scan(&n)
	return n, err
}

func outboxLeft(file string) (outbox.Left, error) {
	db, err := waysqlite.Open(file, waysqlite.Config{MustExist: true})
	if err != nil {
		return outbox.Left{}, err
	}
	defer db.Close()
	return db.Left(context.Background(), "events")
}
