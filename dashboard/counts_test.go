package dashboard_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/waysqlite"
)

// stuck is a database whose counts of whole tables never come, nor its list of dead letters.
type stuck struct{ *waysqlite.DB }

func (stuck) OutboxStats(ctx context.Context) ([]admin.OutboxStats, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (stuck) Blocked(ctx context.Context, _ string, _ int) ([]admin.BlockedKey, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (stuck) FailedGroups(ctx context.Context, _ admin.FailedQuery) ([]admin.FailedGroup, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (stuck) Failed(ctx context.Context, _ admin.FailedQuery) ([]admin.FailedMessage, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestPagesDoNotWaitForCounts(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	f.story()
	f.serve(dashboard.Config{Database: stuck{f.db.(*waysqlite.DB)}})
	for _, path := range []string{"/", "/outbox", "/failed", "/retries", "/inbox", "/outbox/release?all=true"} {
		text, took := "", time.Hour
		for tries := 0; took > 2*time.Second && tries < 3; tries++ { // a busy machine may be slow once
			start := time.Now()
			_, text = f.get(path)
			took = time.Since(start)
		}
		if took > 2*time.Second {
			t.Errorf("%s takes %v", path, took)
		}
		if path != "/retries" && path != "/outbox/release?all=true" && !strings.Contains(text, "Counts take a moment here.") {
			t.Errorf("%s does not say that its counts are not known:\n%s", path, text)
		}
	}
	if _, text := f.get("/"); strings.Contains(text, "All is well") || !strings.Contains(text, `http-equiv="refresh" content="2"`) {
		t.Errorf("without counts the overview is\n%s", text)
	}
	for _, path := range []string{"/failed/list", "/api/v1/overview"} {
		if res, text := f.do("GET", path, nil); res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "within 3s") {
			t.Errorf("%s without an answer of the database: %s\n%s", path, res.Status, text)
		}
	}
}

// releasing is a database whose releases of blocked keys end with their context, after some keys.
type releasing struct{ *waysqlite.DB }

func (releasing) Release(ctx context.Context, _ admin.BlockedQuery) (int, error) {
	<-ctx.Done()
	return 1, ctx.Err()
}

// Releases take minutes where no relay runs: they leave the pages their connections, and can be
// cancelled.
func TestPagesDoNotWaitForReleases(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	f.dispatch("a", "b", "c")
	f.refuse("a b c")
	f.serve(dashboard.Config{Database: releasing{f.db.(*waysqlite.DB)}})
	var begun []*http.Response
	for range 3 {
		res, _ := f.submit("/outbox/release?all=true", "/outbox/release", nil)
		begun = append(begun, res)
	}
	for _, path := range []string{"/", "/outbox", "/operations", begun[0].Header.Get("Location")} {
		if root, _ := f.get(path); root == nil {
			t.Errorf("%s is not answered", path)
		}
	}
	f.do("POST", begun[0].Header.Get("Location")+"/cancel", url.Values{})
	text := f.ended(begun[0])
	if !strings.Contains(text, "cancelled") || !strings.Contains(text, "1 done, 2 left as they were") || strings.Contains(text, "quicker") {
		t.Errorf("a release that was cancelled after one of three keys:\n%s", text)
	}
}

// A slow reader has asked for more than the network buffers.
func TestSlowReadersKeepNoConnection(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	f.letters(900, strings.Repeat("long ", 1500), "{}")
	for range 3 {
		f.slowly("GET /api/v1/failed?limit=1000", "", "HTTP/1.1 200")
	}
	if root, _ := f.get("/operations"); root == nil {
		t.Error("a page is not answered while others are not read")
	}
}

// A slow writer has sent the first byte of its form. The answer to Expect says that a handler
// reads the rest.
func TestSlowFormsKeepNoConnection(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	for range 3 {
		conn := f.slowly("POST /failed/retry", "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 10\r\nExpect: 100-continue\r\n", "HTTP/1.1 100")
		if _, err := io.WriteString(conn, "a"); err != nil {
			t.Fatal(err)
		}
	}
	if root, _ := f.get("/operations"); root == nil {
		t.Error("a page is not answered while forms are being sent")
	}
}

// slowly sends a request over a new connection, and reads the first bytes of the answer alone.
func (f *fixture) slowly(request, headers, begins string) net.Conn {
	f.t.Helper()
	address, err := url.Parse(f.url)
	if err != nil {
		f.t.Fatal(err)
	}
	conn, err := net.Dial("tcp", address.Host)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: %s\r\n%s\r\n", request, address.Host, headers); err != nil {
		f.t.Fatal(err)
	}
	status := make([]byte, len(begins))
	if _, err := io.ReadFull(conn, status); err != nil || string(status) != begins {
		f.t.Fatalf("the answer begins with %q: %v", status, err)
	}
	return conn
}
