package waypg

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
)

// Sample implements admin.Sampler.
func (db *DB) Sample(ctx context.Context, n int, fn func(admin.Sample) error) error {
	_, err := query(ctx, db, adminSQL, "sample", func(rows pgx.Rows, _ *struct{}) error {
		m := admin.Sample{Record: &waybill.Record{}}
		var id [16]byte
		var headers string
		err := rows.Scan(&m.Source, &m.Transport, &m.Name, &m.Messages, &m.Row, &id, &m.Record.Key, &m.Record.DispatchedAt, &headers, &m.Record.Body)
		if err != nil {
			return err
		}
		m.Record.ID = id
		sqlcore.CompleteSample(&m, headers)
		return fn(m)
	}, (n+1)/2, n/2)
	return err
}
