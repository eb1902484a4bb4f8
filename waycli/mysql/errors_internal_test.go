package mysql

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/waycli"
)

// A server that has no connection left runs.
func TestServerWithoutConnectionsLeftIsTold(t *testing.T) {
	full := &mysql.MySQLError{Number: 1040, Message: "Too many connections"}
	var got *waycli.Error
	if err := explain(config.MustParseDSN("mysql://app@db/shop"), full); !errors.As(err, &got) || got.Kind != waycli.Unavailable || !strings.Contains(got.Hint, "raise max_connections") {
		t.Errorf("explain(%v) = %v with %+v, want a hint at max_connections", full, err, got)
	}
}
