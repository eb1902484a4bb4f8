package outbox

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill"
)

// RelayConfig tunes a Relay. The zero value is fit for production.
type RelayConfig struct {
	// Transport names the transport to relay. Empty means DefaultTransport.
	Transport string
	// Batch is how many rows are claimed at once; zero means 500.
	Batch int
	// BatchBytes bounds the bodies and headers of a batch, and so the relay's
	// memory; zero means 2 MiB.
	BatchBytes int
	// Workers is how many batches of messages with a key, and how many of messages
	// without, are published at once. Zero means 2, or 1 where the database allows no
	// more. Refused messages are retried beside them, one at a time.
	Workers int
	// Window is how many records of a batch may be unconfirmed at once; zero means 256.
	Window int
	// Pipelined lets several records of a key be unconfirmed at once, which is as
	// fast as without order. The publisher must have the trait Stream, or Atomic, to
	// which it makes no difference. When the broker refuses a record (a full queue
	// that rejects, say), later records of its key may be stored already: its retry
	// then arrives after them.
	Pipelined bool
	// PublishDeadline bounds the publishing of one batch, confirmations
	// included; zero means 10 s. Rows not sent in its first half stay for the next
	// batch.
	PublishDeadline time.Duration
	// Retry is the delay before a refused key is retried. Zero means 1 s doubling to
	// 5 min. A rejected record (RejectedError: a full queue) is retried after 100 ms
	// doubling to 1 s.
	Retry waybill.Backoff
	// MaxAttempts is how many refusals exhaust a key; zero means 10. OnExhausted then
	// applies, and refusals are logged at level Error. Rejected records never exhaust
	// a key.
	MaxAttempts int
	// OnExhausted returns the policy for a key whose head was refused MaxAttempts
	// times, by the name of that message. Nil, and any value but Park and Skip, mean
	// Block. A blocked route is always retried, in the end at the longest delay.
	OnExhausted func(messageName string) Policy
	// PollMin and PollMax bound the pause between claims of an idle transport; zero
	// means 5 ms and 250 ms, or the other one where that is shorter or longer. A commit
	// that Store.Wake reports ends the pause.
	PollMin, PollMax time.Duration
	// Standby makes Run wait while another process relays the database, instead
	// of returning waybill.ErrRelayRunning.
	Standby bool
	// Drain makes Run return once no due row is left.
	Drain bool
	// Log receives failures, outages and take-overs. Nil discards.
	Log *slog.Logger
	// Observer receives an event for every record. Nil means none.
	Observer waybill.Observer
}

const defaultPublishDeadline = 10 * time.Second

func (cfg RelayConfig) withDefaults() (RelayConfig, error) {
	for _, n := range []struct {
		field string
		value int64
	}{
		{"Batch", int64(cfg.Batch)}, {"BatchBytes", int64(cfg.BatchBytes)}, {"Workers", int64(cfg.Workers)}, {"Window", int64(cfg.Window)}, {"MaxAttempts", int64(cfg.MaxAttempts)},
		{"PublishDeadline", int64(cfg.PublishDeadline)}, {"PollMin", int64(cfg.PollMin)}, {"PollMax", int64(cfg.PollMax)},
	} {
		if n.value < 0 {
			return cfg, fmt.Errorf("outbox: relay config: %s is negative (%d): leave it zero for the default", n.field, n.value)
		}
	}
	if err := cfg.Retry.Validate(); err != nil {
		return cfg, err
	}
	cfg.Transport = cmp.Or(cfg.Transport, DefaultTransport)
	cfg.Batch = cmp.Or(cfg.Batch, 500)
	cfg.BatchBytes = cmp.Or(cfg.BatchBytes, 2<<20)
	cfg.Window = cmp.Or(cfg.Window, 256)
	cfg.MaxAttempts = cmp.Or(cfg.MaxAttempts, 10)
	cfg.PublishDeadline = cmp.Or(cfg.PublishDeadline, defaultPublishDeadline)
	cfg.PollMin = cmp.Or(cfg.PollMin, min(cmp.Or(cfg.PollMax, time.Second), 5*time.Millisecond))
	if cfg.PollMax > 0 && cfg.PollMax < cfg.PollMin {
		return cfg, fmt.Errorf("outbox: relay config: PollMax %v is shorter than PollMin %v: raise it, or leave it zero", cfg.PollMax, cfg.PollMin)
	}
	cfg.PollMax = max(cmp.Or(cfg.PollMax, 250*time.Millisecond), cfg.PollMin)
	cfg.Retry.Multiplier = cmp.Or(cfg.Retry.Multiplier, 2)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return cfg, nil
}
