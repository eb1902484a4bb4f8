package bench

import (
	"context"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/test/testserver"
)

func TestBudgetIsOfTheProcessThatWorks(t *testing.T) {
	url := testserver.Postgres(t)
	m, err := NewMeter(url, "")
	if err != nil {
		t.Fatal(err)
	}
	p, err := newBackend(t.Context(), Options{Postgres: url})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	}()
	opt := Options{Rounds: 1, Meter: m}
	work := func(work func()) side {
		return func(context.Context) (int, time.Duration, error) {
			stop := opt.clock()
			work()
			return 1000, stop(), nil
		}
	}
	res, err := race(t.Context(), opt, Result{},
		work(func() { // half a second of the server's
			if _, err := p.(*postgres).pool.Exec(t.Context(), "SELECT count(*) FROM generate_series(1, 4000000)"); err != nil {
				t.Error(err)
			}
		}),
		work(func() { // 200 ms of this process's
			for before, _ := m.read(); ; {
				if now, _ := m.read(); now[0]-before[0] >= 200*time.Millisecond {
					return
				}
			}
		}))
	if err != nil {
		t.Fatal(err)
	}
	if b := res.Budget; b == nil || b.Database < 50 || b.Client > b.Database/2 {
		t.Errorf("a statement of the server's: %+v", b)
	}
	if b := res.YardstickBudget; b == nil || b.Client < 200 || b.Client > 1000 || b.Broker != 0 {
		t.Errorf("200 ms of this process, for 1000 messages: %+v", b)
	}
	if res.BareBudget != nil {
		t.Errorf("a side that was not there: %+v", res.BareBudget)
	}
}

func TestMeterNeedsItsServers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	if pid, err := listener(port); err != nil || pid != os.Getpid() {
		t.Errorf("listener = %d, %v, want this process, %d", pid, err, os.Getpid())
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := NewMeter("postgres://u:secret@127.0.0.1:"+port+"/x", ""); err == nil || !strings.Contains(err.Error(), port) || strings.Contains(err.Error(), "secret") {
		t.Errorf("without a server: %v", err)
	}
}

func TestStatHasTimesOfEndedChildren(t *testing.T) {
	line := "42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 " + strings.Join([]string{"100", "20", "3", "4"}, " ") + " 20 0 1 0 99"
	pid, parent, cpu, ended, err := parseStat([]byte(line))
	if err != nil || pid != 42 || parent != 7 || cpu != 1200*time.Millisecond || ended != 70*time.Millisecond {
		t.Errorf("parseStat = %d, %d, %v, %v, %v", pid, parent, cpu, ended, err)
	}
	for _, bad := range []string{"", strconv.Itoa(1), "42 (a) S 7"} {
		if _, _, _, _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q is no line of stat", bad)
		}
	}
}
