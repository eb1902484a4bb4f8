package waycli

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/config"
)

// A binary without handlers says that the configured workers do not run.
func TestRunWithoutHandlersNamesTheWorkers(t *testing.T) {
	var log bytes.Buffer
	s := &session{app: App{Name: "waybill"}, cfg: &config.Config{}, log: slog.New(slog.NewTextHandler(&log, nil))}
	s.warnOfIdle(t.Context(), nil, []string{"mail"})
	if !strings.Contains(log.String(), "WARN") || !strings.Contains(log.String(), "mail") {
		t.Errorf("the log has %q", log.String())
	}
	var own *Error
	if _, err := s.partNames(nil, nil, []string{"mail"}); !errors.As(err, &own) || !strings.Contains(own.Hint, "--exec") {
		t.Errorf("with nothing else to run: %v", err)
	}
	if parts, err := s.partNames(nil, []string{"events"}, []string{"mail"}); err != nil || len(parts) != 1 {
		t.Errorf("beside a relay: %v, %v", parts, err)
	}
}
