package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/internal/test/testserver/port"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waycli"
	"github.com/waybill-go/waybill/waycli/mysql"
	"github.com/waybill-go/waybill/waycli/postgres"
	"github.com/waybill-go/waybill/waycli/sqlite"
	"github.com/waybill-go/waybill/waysqlite"
)

// runService runs a command of a service with the given file, and returns its exit code and
// its output.
func runService(t *testing.T, file string, bus func(context.Context, *waycli.Service) (*waybill.Bus, error), args ...string) (exit int, said string) {
	t.Helper()
	var out bytes.Buffer
	app := waycli.App{Name: "service", Databases: everyDatabase, Bus: bus}
	path := filepath.Join(t.TempDir(), "waybill.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	exit = waycli.Main(t.Context(), app, append(args, "--config", path), strings.NewReader(""), &out, &out)
	return exit, out.String()
}

// exchange has a service dispatch to a queue of its database, and handle it with an inbox, by
// its configuration. It fails unless the handlers' database is the configured one.
func exchange[TX any](ctx context.Context, svc *waycli.Service, db interface {
	outbox.Writer[TX]
	inbox.Store[TX]
	MaxConns() int
}) (*waybill.Bus, error) {
	cfg, err := svc.Outbox()
	if err != nil {
		return nil, err
	}
	out, err := outbox.New(db, cfg)
	if err != nil {
		return nil, err
	}
	handled := make(chan string)
	svc.Go("exchange", func(ctx context.Context) error {
		err := out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[TX]) error {
			_, err := tx.Dispatch(ctx, orderPlaced{"o-1"})
			return err
		})
		if err != nil {
			return err
		}
		select {
		case got := <-handled:
			return fmt.Errorf("%w %s", errExchanged, got)
		case <-ctx.Done():
			return nil
		}
	})
	bus := waybill.NewBus("service")
	inbox.Handle(bus, db, "print", func(ctx context.Context, _ TX, m orderPlaced) error {
		select {
		case handled <- m.OrderID:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if n := db.MaxConns(); n > 1 && n < 20 {
		return nil, errors.New("fewer connections than handlers")
	}
	return bus, nil
}

// errExchanged ends a service in which a message has arrived.
var errExchanged = errors.New("exchanged")

func TestServiceUsesTheConfiguredDatabase(t *testing.T) {
	buses := map[string]func(context.Context, *waycli.Service) (*waybill.Bus, error){
		"sqlite": func(ctx context.Context, svc *waycli.Service) (*waybill.Bus, error) {
			db, err := sqlite.DB(ctx, svc)
			if err != nil {
				return nil, err
			}
			return exchange[*sql.Tx](ctx, svc, db)
		},
		"postgres": func(ctx context.Context, svc *waycli.Service) (*waybill.Bus, error) {
			db, err := postgres.DB(ctx, svc)
			if err != nil {
				return nil, err
			}
			return exchange[pgx.Tx](ctx, svc, db)
		},
		"mysql": func(ctx context.Context, svc *waycli.Service) (*waybill.Bus, error) {
			db, err := mysql.DB(ctx, svc)
			if err != nil {
				return nil, err
			}
			return exchange[*sql.Tx](ctx, svc, db)
		},
	}
	for name, newDSN := range map[string]func() string{
		"sqlite":   func() string { return "sqlite://" + filepath.Join(t.TempDir(), "service.db") },
		"postgres": func() string { return testserver.Postgres(t) },
		"mariadb":  func() string { return testserver.MariaDB(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := newDSN()
			scheme, _, _ := strings.Cut(dsn, ":")
			file := "database: " + dsn + "\ntransports: { orders: { dsn: \"queue://orders\" } }\nworkers: { orders: { concurrency: 20 } }\nlimits: { time: 20s }\n"
			if exit, said := runService(t, file, buses[scheme], "schema", "up"); exit != 0 {
				t.Fatal(said)
			}
			if exit, said := runService(t, file, buses[scheme], "run"); exit != 1 || !strings.Contains(said, "service: exchanged o-1") {
				t.Errorf("run exits with %d, want the end of the exchange: %s", exit, said)
			}
			for other, bus := range buses {
				if other == scheme {
					continue
				}
				if exit, said := runService(t, file, bus, "run"); exit != 2 || !strings.Contains(said, "the service wants a database that is") || !strings.Contains(said, "change the DSN") {
					t.Errorf("a program for %s exits with %d: %s", other, exit, said)
				}
			}
		})
	}
}

// The default database is one all the same if the handlers use it: dead letters are kept
// there.
func TestServiceOnTheDefaultDatabaseKeepsWhatFails(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("WAYBILL_DATABASE_URL", "")
	bus := func(ctx context.Context, svc *waycli.Service) (*waybill.Bus, error) {
		db, err := sqlite.DB(ctx, svc)
		if err != nil {
			return nil, err
		}
		bus := waybill.NewBus("service")
		inbox.Handle(bus, db, "refuse", func(context.Context, *sql.Tx, orderPlaced) error {
			return waybill.Unrecoverable(errRefusedHere)
		})
		return bus, nil
	}
	const file = "transports: { orders: { dsn: \"queue://orders\", on_exhausted: skip } }\nworkers: { orders: {} }\n"
	for _, args := range [][]string{{"schema", "up"}, {"dispatch", "order.placed", `{"orderId":"o-1"}`}, {"consume", "--limit", "1", "--idle-exit", "5s"}} {
		if exit, said := runService(t, file, bus, args...); exit != 0 {
			t.Fatalf("%v: %s", args, said)
		}
	}
	if _, said := runService(t, file, bus, "failed", "list"); !strings.Contains(said, errRefusedHere.Error()) {
		t.Errorf("no dead letter: %s", said)
	}
}

// Two messages of one event have one effect, and the report of the service says so.
func TestServiceCountsDuplicates(t *testing.T) {
	bus := func(ctx context.Context, svc *waycli.Service) (*waybill.Bus, error) {
		db, err := sqlite.DB(ctx, svc)
		if err != nil {
			return nil, err
		}
		cfg, err := svc.Outbox()
		if err != nil {
			return nil, err
		}
		out, err := outbox.New(db, cfg)
		if err != nil {
			return nil, err
		}
		svc.Go("form", func(ctx context.Context) error { // submitted twice
			return out.InTx(ctx, func(ctx context.Context, tx waysqlite.Tx) error {
				for range 2 {
					if _, err := tx.Dispatch(ctx, orderPlaced{"o-1"}, waybill.IdempotencyKey("form-7")); err != nil {
						return err
					}
				}
				return nil
			})
		})
		bus := waybill.NewBus("service")
		inbox.Handle(bus, db, "bill", func(context.Context, *sql.Tx, orderPlaced) error { return nil })
		return bus, nil
	}
	file := "database: sqlite://" + filepath.Join(t.TempDir(), "service.db") + "\ntransports: { orders: { dsn: \"queue://orders\" } }\nworkers: { orders: {} }\n"
	for _, args := range [][]string{{"schema", "up"}, {"run", "form"}} {
		if exit, said := runService(t, file, bus, args...); exit != 0 {
			t.Fatalf("%v: %s", args, said)
		}
	}
	if exit, said := runService(t, file, bus, "consume", "orders", "--limit", "2", "--json"); exit != 0 || !strings.Contains(said, `"handled":2,"duplicates":1,"failed":0`) {
		t.Errorf("exit code %d, want a duplicate in: %s", exit, said)
	}
}

// A service may configure its outbox before it opens the database: the history has both.
func TestServiceHasAHistoryInAnyOrder(t *testing.T) {
	form := func(svc *waycli.Service, db *waysqlite.DB, cfg outbox.Config) (*waybill.Bus, error) {
		out, err := outbox.New(db, cfg)
		svc.Go("form", func(ctx context.Context) error {
			return out.InTx(ctx, func(ctx context.Context, tx waysqlite.Tx) error {
				_, err := tx.Dispatch(ctx, orderPlaced{"o-1"})
				return err
			})
		})
		return waybill.NewBus("service"), err
	}
	for name, bus := range map[string]func(context.Context, *waycli.Service) (*waybill.Bus, error){
		"database first": func(ctx context.Context, svc *waycli.Service) (*waybill.Bus, error) {
			db, err := sqlite.DB(ctx, svc)
			cfg, failed := svc.Outbox()
			if err := errors.Join(err, failed); err != nil {
				return nil, err
			}
			return form(svc, db, cfg)
		},
		"outbox first": func(ctx context.Context, svc *waycli.Service) (*waybill.Bus, error) {
			cfg, failed := svc.Outbox()
			db, err := sqlite.DB(ctx, svc)
			if err := errors.Join(err, failed); err != nil {
				return nil, err
			}
			return form(svc, db, cfg)
		},
	} {
		file := "database: sqlite://" + filepath.Join(t.TempDir(), "service.db") + "\ntransports: { orders: { dsn: \"queue://orders\" } }\n"
		for _, args := range [][]string{{"schema", "up"}, {"run", "form"}} {
			if exit, said := runService(t, file, bus, args...); exit != 0 {
				t.Fatalf("%s: %v: %s", name, args, said)
			}
		}
		if _, said := runService(t, file, bus, "stats", "--history", "1h", "--json"); !strings.Contains(said, `"dispatched":1`) {
			t.Errorf("%s: the history has no dispatch: %s", name, said)
		}
	}
}

// A mistake in a registration is a line, and no stack.
func TestWrongRegistrationOfAServiceIsALine(t *testing.T) {
	handle := func(context.Context, orderPlaced) error { return nil }
	exit, said := runService(t, "database: sqlite://"+filepath.Join(t.TempDir(), "service.db")+"\n", func(context.Context, *waycli.Service) (*waybill.Bus, error) {
		bus := waybill.NewBus("shop")
		waybill.Handle(bus, "bill", handle)
		waybill.Handle(bus, "bill", handle)
		return bus, nil
	}, "run")
	want := "service: handlers of service: waybill: bus shop: handler \"bill\" of order.placed is registered twice\nhint: mend the registration in the program\n"
	if exit != 2 || said != want {
		t.Errorf("exit %d with %q, want 2 with %q", exit, said, want)
	}
}

var errRefusedHere = errors.New("refused here")

func TestPartsOfAService(t *testing.T) {
	path := filepath.Join(t.TempDir(), "service.db")
	file := "database: sqlite://" + path + "\nlimits: { time: 20s }\n"
	var ended bool
	bus := func(names ...string) func(context.Context, *waycli.Service) (*waybill.Bus, error) {
		return func(_ context.Context, svc *waycli.Service) (*waybill.Bus, error) {
			for _, name := range names {
				svc.Go(name, func(ctx context.Context) error {
					if name == "broken" {
						return errors.New("no route to the moon")
					}
					<-ctx.Done()
					ended = true
					return nil
				})
			}
			return waybill.NewBus("service"), nil
		}
	}
	db, err := waysqlite.Open(t.Context(), path, waysqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if exit, said := runService(t, file, bus("http", "broken"), "run"); exit != 1 || !strings.Contains(said, "no route to the moon") || !ended {
		t.Errorf("a part that fails: exit code %d, the other ended: %t, %s", exit, ended, said)
	}
	for _, names := range [][]string{{"relay"}, {"workers"}, {""}, {"http", "http"}} {
		if exit, said := runService(t, file, bus(names...), "run"); exit != 2 || !strings.Contains(said, "that is empty or taken") {
			t.Errorf("parts %q: exit code %d, %s", names, exit, said)
		}
	}
	none := func(context.Context, *waycli.Service) (*waybill.Bus, error) { return nil, nil }
	if exit, said := runService(t, file, none, "run"); exit != 1 || !strings.Contains(said, "App.Bus returned no bus") {
		t.Errorf("no bus: exit code %d, %s", exit, said)
	}
}

// A request that has begun when a service ends is answered, and its end waits for it.
func TestServiceAnswersWhatHasBegun(t *testing.T) {
	p, err := port.Free()
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", p)
	begun, ending, answered := make(chan bool), make(chan bool), make(chan error, 1)
	exit, out := runService(t, "database: sqlite://"+filepath.Join(t.TempDir(), "s.db"), func(_ context.Context, svc *waycli.Service) (*waybill.Bus, error) {
		svc.Serve("http", &http.Server{Addr: address, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			begun <- true
			<-ending
			select {
			case <-r.Context().Done(): // its connection is closed
			case <-time.After(100 * time.Millisecond):
			}
		})})
		svc.Go("client", func(ctx context.Context) error {
			go func() {
				for {
					res, err := http.Get("http://" + address)
					if errors.Is(err, syscall.ECONNREFUSED) {
						continue // it does not listen yet
					}
					if err == nil {
						_, err = io.ReadAll(res.Body)
						_ = res.Body.Close()
					}
					answered <- err
					return
				}
			}()
			<-begun
			return errExchanged
		})
		svc.Go("end", func(ctx context.Context) error {
			<-ctx.Done()
			close(ending)
			return nil
		})
		return waybill.NewBus("service"), nil
	}, "run", "client", "http", "end")
	if err := <-answered; err != nil || !strings.Contains(out, errExchanged.Error()) {
		t.Errorf("the request: %v; exit %d\n%s", err, exit, out)
	}
}
