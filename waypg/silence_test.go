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

// A server that has vanished answers nothing until TCP gives up, a quarter of an hour later:
// a unit of database/sql, whose COMMIT has no context, waits for the idle timeout.
func TestCommitWithoutAnswerEnds(t *testing.T) {
	t.Parallel()
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
	db := connect(t, u.String(), waypg.Config{IdleTimeout: 3 * time.Second}).SQL()
	returned := make(chan error, 1)
	go func() {
		returned <- db.InTx(t.Context(), func(context.Context, *sql.Tx) error {
			network.SwallowRepliesTo("commit\x00")
			return nil
		})
	}()
	select {
	case err := <-returned:
		if !errors.Is(err, waybill.ErrCommitUnknown) {
			t.Errorf("InTx = %v, want ErrCommitUnknown", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("InTx waits 20 s, with an idle timeout of 3 s")
		network.Reset()
		<-returned
	}
	if network.Counts().Swallowed == 0 {
		t.Error("nothing was swallowed")
	}
}
