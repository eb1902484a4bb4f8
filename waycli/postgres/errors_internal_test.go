package postgres

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/waycli"
)

// A server that has no connection left runs.
func TestServerWithoutConnectionsLeftIsTold(t *testing.T) {
	full := fmt.Errorf("%w: %w", waybill.ErrUnavailable, &pgconn.PgError{Code: "53300", Message: "sorry, too many clients already"})
	var got *waycli.Error
	if err := explain(config.MustParseDSN("postgres://db/shop"), full); !errors.As(err, &got) || got.Kind != waycli.Unavailable || !strings.Contains(got.Hint, "raise max_connections") {
		t.Errorf("explain(%v) = %v with %+v, want a hint at max_connections", full, err, got)
	}
}
