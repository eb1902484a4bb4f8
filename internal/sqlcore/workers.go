package sqlcore

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/gofrs/uuid/v5"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/worker"
)

// WorkerReport returns the stored text of a report.
func WorkerReport(r worker.Report) (string, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("report of workers: %w", err)
	}
	return string(text), nil
}

// ReadWorkerReport fills in w what WorkerReport returned.
func ReadWorkerReport(w *admin.Worker, text string) error {
	if err := json.Unmarshal([]byte(text), &w.Report); err != nil {
		return fmt.Errorf("report of workers: %w", err)
	}
	return nil
}

// StopWorkers asks processes with workers to stop.
func StopWorkers(ctx context.Context, in Transact, ids []string) (int, error) {
	for _, id := range ids {
		if _, err := uuid.FromString(id); err != nil {
			return 0, fmt.Errorf("workers stop: %q is no id of a process: %w", id, err)
		}
	}
	filter := map[string][]string{"ids": ids}
	return Audited(ctx, in, "workers stop", filter, func(ctx context.Context, tx OperatorTx) (n int, err error) {
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
