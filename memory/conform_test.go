package memory_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/waytest"
	"github.com/waybill-go/waybill/worker"
)

func TestOutbox(t *testing.T)     { waytest.Outbox(t, harness) }
func TestInbox(t *testing.T)      { waytest.Inbox(t, harness) }
func TestQueue(t *testing.T)      { waytest.Queue(t, harness) }
func TestRetryQueue(t *testing.T) { waytest.RetryQueue(t, harness) }

// store is a DB with the ReleaseRetries of an admin.Retries.
type store struct{ *memory.DB }

func (s store) ReleaseRetries(_ context.Context, transport, key string) (int, error) {
	return s.DB.ReleaseRetries(transport, key), nil
}

// harness is the conformance suites' database.
func harness(*testing.T) waytest.Harness[*memory.Tx] {
	db := memory.NewDB()
	var mu sync.Mutex
	var committed []string
	return waytest.Harness[*memory.Tx]{
		Store:    store{db},
		Begin:    db.Begin,
		Commit:   func(_ context.Context, tx *memory.Tx) error { return tx.Commit() },
		Rollback: func(_ context.Context, tx *memory.Tx) error { return tx.Rollback() },
		Insert: func(_ context.Context, tx *memory.Tx, text string) error {
			mu.Lock()
			defer mu.Unlock()
			if slices.Contains(committed, text) {
				return fmt.Errorf("%s is there already", text)
			}
			tx.OnCommit(func() {
				mu.Lock()
				defer mu.Unlock()
				committed = append(committed, text)
			})
			return nil
		},
		Texts: func(context.Context) ([]string, error) {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(committed), nil
		},
		OneWriter: true,
		Queue: func(name string, lease time.Duration) (waytest.Transport, error) {
			return db.QueueWithLease(name, lease), nil
		},
		Retries: func(transport string, lease time.Duration) (worker.RetryQueue, error) {
			return db.RetryQueueWithLease(transport, lease), nil
		},
	}
}
