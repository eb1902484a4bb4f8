package waycli

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/config"
)

// An expiringDatabase has one expired entry of its inbox.
type expiringDatabase struct{ Database }

func (expiringDatabase) SchemaStatus(context.Context) (admin.SchemaStatus, error) {
	return admin.SchemaStatus{Version: 1, Wanted: 1}, nil
}
func (expiringDatabase) PruneExpired(context.Context, int) (int, error) { return 1, nil }

func TestConsumePrunesTheInboxOfItsDatabase(t *testing.T) {
	down := fmt.Errorf("dial: %w", waybill.ErrUnavailable)
	for name, tt := range map[string]struct {
		file, exec    string
		open          error
		prunes, fails bool
		log           string
	}{
		"a command":                        {exec: "true", prunes: true},
		"a command, database down":         {exec: "true", open: down, fails: true},
		"handlers":                         {file: "database: sqlite:///shop.db", prunes: true},
		"handlers, database down":          {file: "database: sqlite:///shop.db", open: down, log: "not pruned"},
		"handlers without a database":      {},
		"handlers without one, none there": {open: down},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := config.Parse("waybill.yaml", []byte(tt.file), nil)
			if err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			s := &session{cfg: cfg, opened: map[string]Database{}, log: slog.New(slog.NewTextHandler(&log, nil)), app: App{Databases: map[string]Driver{
				"sqlite": {Open: func(context.Context, config.DSN, Open) (Database, error) { return expiringDatabase{}, tt.open }},
			}}}
			box, err := s.expired(t.Context(), consumeFlags{exec: tt.exec})
			if (err != nil) != tt.fails || !tt.fails && (box != nil) != tt.prunes || !strings.Contains(log.String(), tt.log) {
				t.Fatalf("%v, %v, log %q: want an inbox: %t, an error: %t, a log with %q", box, err, &log, tt.prunes, tt.fails, tt.log)
			}
			if tt.prunes {
				if n, err := box.PruneExpired(t.Context(), 10); n != 1 || err != nil {
					t.Errorf("PruneExpired = %d, %v, want that of the database", n, err)
				}
			}
		})
	}
}

func TestRetryOfKeepsWhatZeroMeans(t *testing.T) {
	b, failures := retryOf(config.Retry{MaxRetries: 5, Delay: 2 * time.Second, Multiplier: 2, MaxDelay: time.Minute, Jitter: 0})
	if want := (waybill.Backoff{Delay: 2 * time.Second, Multiplier: 2, MaxDelay: time.Minute, Jitter: -1}); b != want || failures != 5 {
		t.Errorf("got %+v and %d, want %+v and 5", b, failures, want)
	}
	for n, want := range map[int]time.Duration{1: 2 * time.Second, 2: 4 * time.Second, 9: time.Minute} {
		if got := b.After(n, nil); got != want {
			t.Errorf("After(%d) = %v, want %v: no jitter was asked for", n, got, want)
		}
	}
	if _, retries := retryOf(config.Retry{MaxRetries: 0}); retries != -1 {
		t.Errorf("no retries became %d, want -1", retries)
	}
}

func TestFlagsComeBeforeTheFileAndTheDSN(t *testing.T) {
	dsn := config.MustParseDSN("amqp://h/?queue=q&prefetch=7")
	for _, tt := range []struct {
		flags consumeFlags
		file  config.Worker
		want  config.Worker
	}{
		{consumeFlags{}, config.Worker{}, config.Worker{Concurrency: 10, Prefetch: 7}}, // of the DSN
		{consumeFlags{}, config.Worker{Concurrency: 4, Prefetch: 5}, config.Worker{Concurrency: 4, Prefetch: 5}},
		{consumeFlags{prefetch: 3, concurrency: 2}, config.Worker{Concurrency: 4, Prefetch: 5}, config.Worker{Concurrency: 2, Prefetch: 3}},
	} {
		cfg := &config.Config{Workers: map[string]config.Worker{"a": tt.file}}
		w := workerConfig("a", config.Transport{DSN: dsn}, settingsOf(cfg, "a", tt.flags), tt.flags)
		if got := (config.Worker{Concurrency: w.Concurrency, Prefetch: w.Prefetch}); got != tt.want {
			t.Errorf("%+v, %+v: got %+v, want %+v", tt.flags, tt.file, got, tt.want)
		}
	}
}

func TestFlagsComeBeforeTheLimitsOfTheFile(t *testing.T) {
	file := config.Limits{Time: time.Hour, Memory: 1 << 30, Failures: 100, Drain: time.Minute}
	var open consumeFlags
	open.complete(file)
	if open.time != duration(file.Time) || open.memory != byteSize(file.Memory) || open.failures != 100 || open.drain != duration(file.Drain) {
		t.Errorf("got %+v", open)
	}
	given := consumeFlags{time: 1, memory: 2, failures: 3, drain: 4}
	before := given
	if given.complete(file); given != before {
		t.Errorf("got %+v, want %+v", given, before)
	}
}
