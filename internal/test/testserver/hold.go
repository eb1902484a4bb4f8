package testserver

import (
	_ "embed" // the C program
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

//go:embed preload/hold.c
var holdSource []byte

// A HoldingServer is a MariaDB that can be kept from writing its redo log. It
// needs a C compiler.
type HoldingServer struct {
	*Server
	file string
}

// StartHoldingMariaDB is StartMariaDB for a server that holds its log back when
// it is told to.
func StartHoldingMariaDB(tb testing.TB, settings map[string]string) *HoldingServer {
	tb.Helper()
	in, err := newMariaDB(settings, (*instance).holdLog)
	if err != nil {
		tb.Fatalf("testserver: MariaDB: %v", err)
	}
	return &HoldingServer{serve(tb, in), in.holdFile()}
}

// Hold keeps the server from writing its log until it is killed: commits are made
// in memory and not acknowledged.
func (s *HoldingServer) Hold() {
	s.tb.Helper()
	if err := os.WriteFile(s.file, nil, 0o600); err != nil {
		s.tb.Fatalf("testserver: hold: %v", err)
	}
}

// Kill is Server.Kill, and lets the next server write.
func (s *HoldingServer) Kill() {
	s.tb.Helper()
	s.Server.Kill()
	if err := os.Remove(s.file); err != nil && !os.IsNotExist(err) {
		s.tb.Fatalf("testserver: hold: %v", err)
	}
}

func (in *instance) holdFile() string { return filepath.Join(in.dir, "hold") }

// holdLog returns the environment in which a server's log can be held.
func (in *instance) holdLog() ([]string, error) {
	source, err := in.write("hold.c", string(holdSource))
	if err != nil {
		return nil, err
	}
	library := filepath.Join(in.dir, "hold.so")
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, source, "-ldl").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cc: %w (apt-get install gcc libc6-dev)\n%s", err, out)
	}
	return []string{"LD_PRELOAD=" + library, "WAYBILL_HOLD=" + in.holdFile()}, os.Chmod(library, 0o755)
}
