package sqlcore

import (
	"context"
	"fmt"

	"github.com/gofrs/uuid/v5"

	"github.com/waybill-go/waybill/admin"
)

// StopWorkers asks processes with workers to stop.
func StopWorkers(ctx context.Context, in Transact, ids []string) (int, error) {
	for _, id := range ids {
		if _, err := uuid.FromString(id); err != nil {
			return 0, fmt.Errorf("workers stop: %q is no id of a process: %w", id, err)
		}
	}
	return Audited(ctx, in, "workers stop", map[string][]string{"ids": ids}, func(ctx context.Context, tx OperatorTx) (n int, err error) {
		for _, id := range ids {
			found, err := tx.Exec(ctx, "stop_workers", id)
			if err != nil {
				return n, err
			}
			n += found
		}
		return n, nil
	})
}

// PauseTransport has the workers of a transport receive no messages. It reports false if they
// are paused already.
func PauseTransport(ctx context.Context, in Transact, transport, reason string) (bool, error) {
	p, err := admin.NewPause(ctx, transport, reason)
	if err != nil {
		return false, err
	}
	filter := map[string]string{"transport": transport, "reason": reason}
	n, err := Audited(ctx, in, "workers pause", filter, func(ctx context.Context, tx OperatorTx) (int, error) {
		return tx.Exec(ctx, "pause", p.Transport, p.Actor, p.Reason)
	})
	return n > 0, err
}

// ResumeTransport ends a pause. It reports false if there is none.
func ResumeTransport(ctx context.Context, in Transact, transport string) (bool, error) {
	n, err := Audited(ctx, in, "workers resume", map[string]string{"transport": transport}, func(ctx context.Context, tx OperatorTx) (int, error) {
		return tx.Exec(ctx, "resume", transport)
	})
	return n > 0, err
}
