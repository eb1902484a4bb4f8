package waycli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/outbox"
)

func (c *cli) configCommand() *cobra.Command {
	return group(&cobra.Command{Use: "config", Short: "Check and show the configuration"},
		&cobra.Command{
			Use:   "check",
			Short: "Check the configuration; exit code 2 if anything is wrong",
			Long: `Check the configuration and report everything that is wrong with it, each with
its line. Nothing is opened. What this version can check but not open is noted, and
what "doctor" finds in the file alone.

With --json: {"file", "transports", "messages", "notes": [...]}. File is empty if
there is none and the defaults hold.`,
			Example: "  waybill config check\n  waybill config check --config production.yaml --json",
			Args:    cobra.NoArgs,
			RunE:    c.run(func(_ context.Context, s *session, _ []string) error { return s.configCheck() }),
		},
		&cobra.Command{
			Use:   "show",
			Short: "Print the configuration in effect, and where each value comes from",
			Long: `Print the configuration in effect, and where each value comes from. Settings that
are not shown, such as the concurrency of a worker, have their defaults. Passwords
are shown as ***.

With --json: {"config": {...}, "origins": {"database": "waybill.yaml:1", ...}}, the
first in the form of waybill.yaml.`,
			Example: "  waybill config show\n  waybill config show --json",
			Args:    cobra.NoArgs,
			RunE:    c.run(func(_ context.Context, s *session, _ []string) error { return s.configShow() }),
		},
	)
}

func (s *session) configCheck() error {
	cfg, err := s.config()
	if err != nil {
		return err
	}
	if err := s.checkFences(cfg); err != nil {
		return err
	}
	notes := []string{}
	for _, f := range s.fileFindings(cfg) {
		if f.Code != admin.UnusableSetting { // whose remedy is another binary
			f.Problem += "; " + f.Remedy
		}
		notes = append(notes, f.Problem)
	}
	file := s.configFile()
	if s.flags.json {
		s.stdout.json(struct {
			File       string   `json:"file"`
			Transports int      `json:"transports"`
			Messages   int      `json:"messages"`
			Notes      []string `json:"notes"`
		}{file, len(cfg.Transports), len(cfg.Messages), notes})
		return nil
	}
	s.stdout.line("%s is valid: %s, %s", cmp.Or(file, "the default configuration"), plural(len(cfg.Transports), "transport"), plural(len(cfg.Messages), "message name"))
	for _, note := range notes {
		s.say("note: %s", note)
	}
	return nil
}

// checkFences refuses the timeouts that a relay would refuse. SQLite has none.
func (s *session) checkFences(cfg *config.Config) error {
	if cfg.Database.Scheme == "sqlite" {
		return nil
	}
	for _, name := range transportNames(cfg) {
		if _, ok := s.app.Brokers[cfg.Transports[name].DSN.Scheme]; !ok {
			continue
		}
		broker, transport, err := s.broker(name)
		if err != nil {
			return err
		}
		to, err := broker.Publisher(transport)
		if err != nil {
			continue // the outbox cannot publish to it
		}
		err = outbox.CheckFence(cfg.Outbox.IdleTimeout, cfg.Outbox.PublishDeadline, to)
		hint := fencedBy(name, to)
		if err := errors.Join(err, to.Close()); err != nil {
			return &Error{Usage, fmt.Errorf("transport %q: %w", name, err), hint}
		}
	}
	return nil
}

// notes lists valid settings that do not work with this binary.
func (s *session) notes(cfg *config.Config) []string {
	notes := []string{}
	if _, ok := s.app.Databases[cfg.Database.Scheme]; !ok {
		notes = append(notes, fmt.Sprintf("database: this version cannot open %s: it opens %s", cfg.Database, s.databases()))
	}
	for _, name := range transportNames(cfg) {
		dsn := cfg.Transports[name].DSN
		database, elsewhere := cfg.Database, false
		if dsn.Scheme == queueScheme {
			if database, elsewhere = dsn.DSN("database"); !elsewhere {
				continue
			}
		}
		_, opens := s.app.Databases[database.Scheme]
		_, reaches := s.app.Brokers[dsn.Scheme]
		if !inProcess(dsn) && !reaches && !(elsewhere && opens) {
			notes = append(notes, fmt.Sprintf("transports.%s: this version cannot open %s: it opens %s", name, dsn, s.transportSchemes()))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Schedules)) {
		if message := cfg.Schedules[name].Message; s.app.Bus == nil && !slices.Contains(messageNames(cfg), message) {
			notes = append(notes, fmt.Sprintf("schedules.%s.message: %q does not stand under messages: this program would not run it", pathKey(name), message))
		}
	}
	hasBroker := func(name string) bool { return !ownTransport(cfg.Transports[name].DSN) }
	if len(cfg.Outbox.Routes) > 0 && !slices.ContainsFunc(transportNames(cfg), hasBroker) {
		notes = append(notes, "outbox.routes: no transport has a broker, so they change nothing")
	}
	if _, err := cfg.OutboxTransport(); err != nil && len(cfg.Routing) == 0 && len(cfg.Transports) > 0 && !handlesOnly(cfg) {
		notes = append(notes, err.Error())
	}
	return notes
}

// handlesOnly reports whether the configuration is that of a service with workers alone, where
// nothing dispatches to an outbox.
func handlesOnly(cfg *config.Config) bool {
	for path, origin := range cfg.Origins() {
		if strings.HasPrefix(path, "outbox.") && origin != "default" {
			return false
		}
	}
	return len(cfg.Workers) > 0 && len(cfg.Schedules) == 0
}

// configFile returns the name of the file that config.Load reads, or nothing.
func (s *session) configFile() string {
	if name := cmp.Or(s.flags.config, os.Getenv("WAYBILL_CONFIG")); name != "" {
		return name
	}
	if _, err := os.Stat(config.DefaultFile); err != nil {
		return ""
	}
	return config.DefaultFile
}

func (s *session) configShow() error {
	cfg, err := s.config()
	if err != nil {
		return err
	}
	if s.flags.json {
		s.stdout.json(struct {
			Config  *config.Config    `json:"config"`
			Origins map[string]string `json:"origins"`
		}{cfg.Redacted(), s.origins()})
		return nil
	}
	rows, err := s.settings()
	if err != nil {
		return err
	}
	s.stdout.table([]string{"KEY", "VALUE", "FROM"}, rows)
	return nil
}

// origins returns where each value of the configuration comes from.
func (s *session) origins() map[string]string {
	origins := s.cfg.Origins()
	if s.flags.database != "" {
		origins["database"] = "--database"
	}
	return origins
}

// settings are the rows of config show: key, value and origin, without secrets.
func (s *session) settings() ([][]any, error) {
	cfg, err := s.config()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(cfg.Redacted())
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := json.Unmarshal(text, &tree); err != nil {
		return nil, err
	}
	rows, origins := flatten(nil, "", tree), s.origins()
	for i, row := range rows {
		rows[i] = append(row, cmp.Or(origins[row[0].(string)], "-"))
	}
	return rows, nil
}

// flatten lists the scalar values of v, by their dotted paths.
func flatten(rows [][]any, at string, v any) [][]any {
	switch v := v.(type) {
	case map[string]any:
		if len(v) == 0 && at != "" {
			return append(rows, []any{at, "{}"})
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			rows = flatten(rows, strings.TrimPrefix(at+"."+pathKey(key), "."), v[key])
		}
		return rows
	case []any:
		words := make([]string, len(v))
		for i, item := range v {
			words[i] = fmt.Sprint(item)
		}
		return append(rows, []any{at, strings.Join(words, ", ")})
	}
	return append(rows, []any{at, fmt.Sprint(v)})
}

// pathKey quotes a key like the paths of package config.
func pathKey(key string) string {
	plain := func(r rune) bool {
		return r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r)) || r == '_' || r == '-'
	}
	if key == "" || strings.ContainsFunc(key, func(r rune) bool { return !plain(r) }) {
		return strconv.Quote(key)
	}
	return key
}
