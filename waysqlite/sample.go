package waysqlite

import (
	"context"
	"database/sql"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/internal/sqlcore"
)

// Sample implements admin.Sampler.
func (db *DB) Sample(ctx context.Context, n int, fn func(admin.Sample) error) error {
	_, err := query(ctx, db, db.adminSQL.Query("sample"), func(rows *sql.Rows, _ *struct{}) error {
		m := admin.Sample{Record: &waybill.Record{}}
		var created int64
		var stored string
		err := rows.Scan(&m.Source, &m.Transport, &m.Name, &m.Messages, &m.Row, &m.Record.ID, &m.Record.Key, &created, &stored, &m.Record.Body)
		if err != nil {
			return err
		}
		m.Record.DispatchedAt = micros(created)
		sqlcore.CompleteSample(&m, stored)
		return fn(m)
	}, (n+1)/2, n/2)
	return err
}

// FindMessages implements admin.MessageFinder.
func (db *DB) FindMessages(ctx context.Context, id waybill.MessageID, limit int) ([]admin.StoredMessage, error) {
	return query(ctx, db, db.adminSQL.Query("find"), func(rows *sql.Rows, m *admin.StoredMessage) error {
		var created int64
		var stored string
		var rec waybill.Record
		err := rows.Scan(&m.Source, &m.Transport, &m.Row, &m.ID, &m.Name, &m.Key, &stored, &created)
		m.CreatedAt = micros(created)
		_ = headers.Decode(&rec, stored) // a defect of other headers leaves these as they are
		m.CausationID, m.CorrelationID = rec.Headers[waybill.HeaderCausationID], rec.Headers[waybill.HeaderCorrelationID]
		return err
	}, id[:], id.String(), limit)
}
