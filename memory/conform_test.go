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
)

func TestOutbox(t *testing.T) { waytest.Outbox(t, harness) }
func TestInbox(t *testing.T)  { waytest.Inbox(t, harness) }
func TestQueue(t *testing.T)  { waytest.Queue(t, harness) }

// harness is the conformance suites' database.
func harness(*testing.T) waytest.Harness[*memory.Tx] {
	db := memory.NewDB()
	var mu sync.Mutex
	var committed []string
	return waytest.Harness[*memory.Tx]{
		Store:    db,
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
		Queue:     func(name string, _ time.Duration) (waytest.Transport, error) { return db.Queue(name), nil },
	}
}
