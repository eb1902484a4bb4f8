package docs_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/test/testserver/port"
	"github.com/waybill-go/waybill/waysqlite"
)

// The service of the page works as it stands there, but for its port.
func TestServiceOfThePageWorks(t *testing.T) {
	block := func(language string) string {
		blocks := pages(t, language)["service.md"]
		if len(blocks) != 1 {
			t.Fatalf("the page has %d blocks of %s, want 1", len(blocks), language)
		}
		return blocks[0]
	}
	program := block("go")
	if n := len(regexp.MustCompile(`(?m)^.*\S`).FindAllString(program+block("yaml"), -1)); n >= 60 {
		t.Errorf("the service has %d lines that are not blank", n)
	}
	p, err := port.Free()
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", p)
	dir := t.TempDir()
	program = strings.Replace(program, "127.0.0.1:8080", address, 1)
	writeModule(t, dir, map[string]string{"main.go": program, "waybill.yaml": block("yaml")})
	run := func(args ...string) (*exec.Cmd, *bytes.Buffer) {
		var out bytes.Buffer
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
		return cmd, &out
	}
	for _, args := range [][]string{{"go", "build", "-o", "shop", "."}, {"./shop", "schema", "up"}} {
		cmd, out := run(args...)
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	service, log := run("./shop", "run", "--json")
	if err := service.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = service.Process.Kill() }()
	for i, want := range []int{http.StatusOK, http.StatusOK, http.StatusConflict} { // the third order is there already
		if got := post(t, fmt.Sprintf("http://%s/orders/o-%d", address, i%2)); got != want {
			t.Errorf("order %d: status %d, want %d", i, got, want)
		}
	}
	awaitInvoices(t, filepath.Join(dir, "shop.db"), 2)
	if err := service.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err = service.Wait()
	for _, want := range []string{`"reason":"stopped"`, `"parts":["workers","http"]`, `"handled":2,"duplicates":0,"failed":0`} {
		if err != nil || !strings.Contains(log.String(), want) {
			t.Errorf("%v, want %s in\n%s", err, want, log)
		}
	}
}

// writeModule writes the files of a program that is built with this module.
func writeModule(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	const module = "github.com/waybill-go/waybill"
	text := strings.Replace(string(mod), "module "+module, "module example.org/shop", 1)
	files["go.mod"] = text + fmt.Sprintf("\nrequire %s v0.0.0\nreplace %s => %s\n", module, module, root)
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	files["go.sum"] = string(sum)
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// post waits until the server listens.
func post(t *testing.T, url string) (status int) {
	t.Helper()
	eventually(t, "the service listens", func() bool {
		res, err := http.Post(url, "", nil)
		if err != nil {
			return false
		}
		status = res.StatusCode
		return res.Body.Close() == nil
	})
	return status
}

func awaitInvoices(t *testing.T, file string, want int) {
	t.Helper()
	db, err := waysqlite.Open(t.Context(), file, waysqlite.Config{MustExist: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	eventually(t, fmt.Sprint(want, " invoices"), func() bool {
		got := -1
		if err := db.SQL().QueryRowContext(t.Context(), "SELECT count(*) FROM invoices").Scan(&got); err != nil {
			t.Fatal(err)
		}
		return got == want
	})
}

// eventually polls for what another process does.
func eventually(t *testing.T, want string, holds func() bool) {
	t.Helper()
	tick, late := time.NewTicker(50*time.Millisecond), time.After(30*time.Second)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("waited in vain: %s", want)
		}
	}
}
