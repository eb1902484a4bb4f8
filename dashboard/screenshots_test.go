//go:build screenshots

package dashboard_test

import (
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/waybill-go/waybill/dashboard"
)

// TestScreenshots writes the pictures of docs/, by the chromium of the machine.
func TestScreenshots(t *testing.T) {
	docs, err := filepath.Abs("../docs/dashboard")
	if err != nil {
		t.Fatal(err)
	}
	ann := func(*http.Request) (dashboard.Principal, error) {
		return dashboard.Principal{Name: "ann", Role: dashboard.Admin, Bodies: true}, nil
	}
	f := newFixture(t, dashboard.Config{Authenticate: ann, Settings: []dashboard.Setting{{Key: "database", Value: "sqlite://./shop.db", From: "waybill.yaml:1"}}})
	f.story()
	for name, path := range map[string]string{"overview": "/", "outbox": "/outbox", "groups": "/failed", "message": "/failed/8", "retry": "/failed/retry?fingerprint=5d41402abc4b2a76", "workers": "/workers"} {
		for _, width := range []int{1440, 390} {
			for scheme, number := range map[string]int{"light": 1, "dark": 0} {
				file := filepath.Join(docs, fmt.Sprintf("%s-%s-%d.png", name, scheme, width))
				cmd := exec.CommandContext(t.Context(), "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
					"--disable-component-update", "--disable-sync", "--hide-scrollbars", "--user-data-dir="+t.TempDir(), fmt.Sprintf("--blink-settings=preferredColorScheme=%d", number),
					fmt.Sprintf("--window-size=%d,%d", width, 900), "--screenshot="+file, f.url+path)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%s: %v\n%s", file, err, out)
				}
			}
		}
	}
}
