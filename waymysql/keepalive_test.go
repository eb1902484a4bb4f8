package waymysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill/waymysql"
)

// The driver would send a ping into the middle of a result.
func TestOpenResultIsLeftAloneByTheKeepAlive(t *testing.T) {
	t.Parallel()
	const idle = 2 * time.Second
	db, _ := newDB(t, waymysql.Config{IdleTimeout: idle})
	const many, query = 200_000, "SELECT CONCAT(REPEAT('x', 100), seq) FROM "
	for name, read := range map[string]func(ctx context.Context, tx *sql.Tx) (*sql.Rows, error){
		"query": func(ctx context.Context, tx *sql.Tx) (*sql.Rows, error) {
			return tx.QueryContext(ctx, query+numbers(many)+" AS s")
		},
		"prepared": func(ctx context.Context, tx *sql.Tx) (*sql.Rows, error) {
			s, err := tx.PrepareContext(ctx, query+numbers(many)+" AS s")
			if err != nil {
				return nil, err
			}
			return s.QueryContext(ctx)
		},
	} {
		err := db.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			rows, err := read(ctx, tx)
			if err != nil {
				return err
			}
			defer rows.Close()
			n := 0
			for ; rows.Next(); n++ {
				if n == 10 {
					time.Sleep(idle * 2 / 3) // two pings
				}
			}
			if rows.Err() != nil || n != many {
				return fmt.Errorf("%d rows, %w", n, rows.Err())
			}
			time.Sleep(2 * idle)
			_, err = tx.ExecContext(ctx, "DO 1")
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
