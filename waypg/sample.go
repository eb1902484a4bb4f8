package waypg

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/internal/sqlcore"
)

// Sample implements admin.Sampler.
func (db *DB) Sample(ctx context.Context, n int, fn func(admin.Sample) error) error {
	_, err := query(ctx, db, adminSQL, "sample", func(rows pgx.Rows, _ *struct{}) error {
		m := admin.Sample{Record: &waybill.Record{}}
		var stored string
		err := rows.Scan(&m.Source, &m.Transport, &m.Name, &m.Messages, &m.Row, (*[16]byte)(&m.Record.ID), &m.Record.Key, &m.Record.DispatchedAt, &stored, &m.Record.Body)
		if err != nil {
			return err
		}
		sqlcore.CompleteSample(&m, stored)
		return fn(m)
	}, (n+1)/2, n/2)
	return err
}

// FindMessages implements admin.MessageFinder.
func (db *DB) FindMessages(ctx context.Context, id waybill.MessageID, limit int) ([]admin.StoredMessage, error) {
	return query(ctx, db, adminSQL, "find", func(rows pgx.Rows, m *admin.StoredMessage) error {
		var stored string
		var rec waybill.Record
		err := rows.Scan(&m.Source, &m.Transport, &m.Row, (*[16]byte)(&m.ID), &m.Name, &m.Key, &stored, &m.CreatedAt)
		toUTC(&m.CreatedAt)
		_ = headers.Decode(&rec, stored) // a defect of other headers leaves these as they are
		m.CausationID, m.CorrelationID = rec.Headers[waybill.HeaderCausationID], rec.Headers[waybill.HeaderCorrelationID]
		return err
	}, id.String(), id.String(), limit)
}
