package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
)

// confirm writes a row where a real shop would send a mail.
func (s *shop) confirm(ctx context.Context, tx pgx.Tx, order int, language string) error {
	var email string
	err := tx.QueryRow(ctx, "SELECT email FROM orders WHERE id = $1", order).Scan(&email)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return waybill.Unrecoverable(errNoOrder)
	case err != nil:
		return err
	case email == "":
		return waybill.Unrecoverable(errNoEmail)
	}
	_, err = tx.Exec(ctx, "INSERT INTO confirmations (order_id, language) VALUES ($1, $2)", order, language)
	return err
}
