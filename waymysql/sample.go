package waymysql

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
	_, err := query(ctx, db, db.admin.Query("sample"), func(rows *sql.Rows, _ *struct{}) error {
		m := admin.Sample{Record: &waybill.Record{}}
		var stored string
		err := rows.Scan(&m.Source, &m.Transport, &m.Name, &m.Messages, &m.Row, id{&m.Record.ID}, &m.Record.Key, moment{&m.Record.DispatchedAt}, &stored, &m.Record.Body)
		if err != nil {
			return err
		}
		sqlcore.CompleteSample(&m, stored)
		return fn(m)
	}, (n+1)/2, n/2)
	return err
}

// FindMessages implements admin.MessageFinder.
func (db *DB) FindMessages(ctx context.Context, of waybill.MessageID, limit int) ([]admin.StoredMessage, error) {
	return query(ctx, db, db.admin.Query("find"), func(rows *sql.Rows, m *admin.StoredMessage) error {
		var stored string
		var rec waybill.Record
		err := rows.Scan(&m.Source, &m.Transport, &m.Row, id{&m.ID}, &m.Name, &m.Key, &stored, moment{&m.CreatedAt})
		_ = headers.Decode(&rec, stored) // a defect of other headers leaves these as they are
		m.CausationID, m.CorrelationID = rec.Headers[waybill.HeaderCausationID], rec.Headers[waybill.HeaderCorrelationID]
		return err
	}, limit, limit, limit, limit, limit, limit, of[:], of.String())
}
