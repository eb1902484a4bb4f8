package waypg_test

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/faultproxy"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/waypg"
)

// vanishing opens a database whose server can vanish: it answers nothing then until TCP gives up,
// a quarter of an hour later.
func vanishing(t *testing.T) (*waypg.DB, *faultproxy.Proxy) {
	t.Helper()
	dsn := testserver.Postgres(t)
	openAt(t, dsn, waypg.Config{})
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	network, err := faultproxy.Start(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(network.Close)
	u.Host = network.Addr()
	return connect(t, u.String(), waypg.Config{IdleTimeout: 3 * time.Second}), network
}

// ends runs call, which meets the vanished server, and returns its error.
func ends(t *testing.T, network *faultproxy.Proxy, call func() error) (err error) {
	t.Helper()
	returned := make(chan error, 1)
	go func() { returned <- call() }()
	select {
	case err = <-returned:
	case <-time.After(20 * time.Second):
		t.Error("no end within 20 s")
		network.Reset()
		err = <-returned
	}
	if network.Counts().Swallowed == 0 {
		t.Error("nothing was swallowed")
	}
	return err
}

// A unit of database/sql, whose COMMIT has no context, waits for the idle timeout.
func TestCommitWithoutAnswerEnds(t *testing.T) {
	t.Parallel()
	db, network := vanishing(t)
	err := ends(t, network, func() error {
		return db.SQL().InTx(t.Context(), func(context.Context, *sql.Tx) error {
			network.SwallowRepliesTo("commit\x00")
			return nil
		})
	})
	if !errors.Is(err, waybill.ErrCommitUnknown) {
		t.Errorf("InTx = %v, want ErrCommitUnknown", err)
	}
}

func TestBeginWithoutAnswerEndsWithItsContext(t *testing.T) {
	t.Parallel()
	db, network := vanishing(t)
	unit := func(ctx context.Context) error {
		return db.SQL().InTx(ctx, func(context.Context, *sql.Tx) error { return nil })
	}
	if err := unit(t.Context()); err != nil {
		t.Fatal(err)
	}
	network.SwallowRepliesTo("begin\x00")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := ends(t, network, func() error { return unit(ctx) }); !errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("InTx = %v, want ErrUnavailable", err)
	}
}

func TestRebucketOfAVanishedServerEndsWithItsContext(t *testing.T) {
	t.Parallel()
	db, network := vanishing(t)
	network.SwallowRepliesTo("ACCESS EXCLUSIVE MODE")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	err := ends(t, network, func() error { _, err := db.Rebucket(ctx, 128, false); return err })
	if !errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("Rebucket = %v, want ErrUnavailable", err)
	}
}
