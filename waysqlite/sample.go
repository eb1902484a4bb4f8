package waysqlite

import (
	"context"
	"database/sql"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
)

// Sample implements admin.Sampler.
func (db *DB) Sample(ctx context.Context, n int, fn func(admin.Sample) error) error {
	_, err := query(ctx, db, db.adminSQL.Query("sample"), func(rows *sql.Rows, _ *struct{}) error {
		m := admin.Sample{Record: &waybill.Record{}}
		var created int64
		var headers string
		err := rows.Scan(&m.Source, &m.Transport, &m.Name, &m.Messages, &m.Row, &m.Record.ID, &m.Record.Key, &created, &headers, &m.Record.Body)
		if err != nil {
			return err
		}
		m.Record.DispatchedAt = micros(created)
		sqlcore.CompleteSample(&m, headers)
		return fn(m)
	}, (n+1)/2, n/2)
	return err
}
