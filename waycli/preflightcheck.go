package waycli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

// A preflightGroup is the samples of a source, transport and name.
type preflightGroup struct {
	Database  string              `json:"database"` // without its password
	Source    string              `json:"source"`
	Transport string              `json:"transport"`
	Name      string              `json:"name"`
	Messages  int                 `json:"messages"`
	Samples   int                 `json:"samples"`
	Handlers  []string            `json:"handlers"`
	Failures  []*preflightFailure `json:"failures"`
}

// A preflightFailure is samples that fail with the same error, with the least row as an
// example.
type preflightFailure struct {
	Error   string            `json:"error"` // without any part of the body
	Samples int               `json:"samples"`
	Row     int64             `json:"row"`
	ID      waybill.MessageID `json:"id"`
}

// verdict is the result of g in a table.
func (g *preflightGroup) verdict() string {
	if len(g.Failures) == 0 {
		return "ok"
	}
	return plural(len(g.Failures), "finding")
}

// fail counts a failed sample.
func (g *preflightGroup) fail(problem string, m admin.Sample) {
	i := slices.IndexFunc(g.Failures, func(f *preflightFailure) bool { return f.Error == problem })
	if i < 0 {
		i = len(g.Failures)
		g.Failures = append(g.Failures, &preflightFailure{Error: problem, Row: m.Row, ID: m.Record.ID})
	}
	f := g.Failures[i]
	f.Samples++
	if m.Row < f.Row {
		f.Row, f.ID = m.Row, m.Record.ID
	}
}

type groupKey struct{ source, transport, name string }

// A preflightCheck decodes the samples of one database.
type preflightCheck struct {
	bus      *waybill.Bus
	database string
	selected map[string]bool // transports; nil means all
	seen     map[string]bool // collects names of stored messages
	groups   map[groupKey]*preflightGroup
}

// add decodes one sample.
func (c *preflightCheck) add(m admin.Sample) error {
	versions := c.bus.Types().Versions(m.Record.Name)
	for _, name := range versions {
		c.seen[name] = true
	}
	if c.selected != nil && !c.selected[m.Transport] {
		return nil
	}
	at := groupKey{m.Source, m.Transport, m.Name}
	g, ok := c.groups[at]
	if !ok {
		if c.groups == nil {
			c.groups = map[groupKey]*preflightGroup{}
		}
		g = &preflightGroup{
			Database: c.database, Source: m.Source, Transport: m.Transport, Name: m.Name, Messages: m.Messages,
			Handlers: c.bus.Handlers(versions[len(versions)-1]), Failures: []*preflightFailure{},
		}
		c.groups[at] = g
	}
	g.Samples++
	switch _, err := c.bus.Serializer().Decode(m.Record); {
	case err != nil:
		g.fail(problemOf(m.Record, err), m)
	case len(g.Handlers) == 0 && forWorker(m):
		g.fail("no handler", m)
	}
	return nil
}

// forWorker reports whether a worker takes m from where it is.
func forWorker(m admin.Sample) bool {
	return m.Source == admin.SourceRetries || strings.HasPrefix(m.Transport, queueScheme+"://")
}

// sources is the order of the output.
var sources = []string{admin.SourceOutbox, admin.SourceDelayed, admin.SourceQueue, admin.SourceRetries, admin.SourceFailed}

// sorted returns the groups, their most frequent failures first.
func (c *preflightCheck) sorted() []*preflightGroup {
	all := slices.SortedFunc(maps.Values(c.groups), func(a, b *preflightGroup) int {
		return cmp.Or(cmp.Compare(slices.Index(sources, a.Source), slices.Index(sources, b.Source)),
			strings.Compare(a.Transport, b.Transport), strings.Compare(a.Name, b.Name))
	})
	for _, g := range all {
		slices.SortFunc(g.Failures, func(a, b *preflightFailure) int {
			return cmp.Or(cmp.Compare(b.Samples, a.Samples), cmp.Compare(a.Row, b.Row))
		})
	}
	return all
}

// problemOf tells why rec does not decode, by what cannot hold a part of its body: texts
// of errors quote values, such as those of time.Time.
func problemOf(rec *waybill.Record, err error) string {
	var (
		unknown *waybill.UnknownNameError
		upcast  *waybill.UpcastError
		limit   *waybill.LimitError
		panicks *waybill.PanicError
		syntax  *json.SyntaxError
		misfit  *json.UnmarshalTypeError
	)
	switch {
	case rec.Problem != nil:
		return "the message was stored unreadable: " + rootOf(rec.Problem).Error()
	case errors.As(err, &upcast) && errors.As(err, &panicks):
		return fmt.Sprintf("the upcaster from %s to %s panics with a %T", upcast.From, upcast.To, panicks.Value)
	case errors.As(err, &upcast):
		return fmt.Sprintf("the upcaster from %s to %s fails with a %T", upcast.From, upcast.To, rootOf(err))
	case errors.As(err, &unknown):
		return "unknown name"
	case errors.As(err, &limit):
		return fmt.Sprintf("the %s is above the limit of %d", limit.What, limit.Max)
	case errors.As(err, &panicks):
		return fmt.Sprintf("decoding panics with a %T", panicks.Value)
	case len(bytes.TrimSpace(rec.Body)) == 0:
		return "the body is empty"
	case errors.As(err, &syntax):
		return "the body is not JSON"
	case errors.As(err, &misfit):
		kind, _, _ := strings.Cut(misfit.Value, " ") // a number is followed by its value
		return fmt.Sprintf("a JSON %s does not fit field %q of type %s", kind, misfit.Field, misfit.Type)
	}
	return fmt.Sprintf("decoding fails with a %T", rootOf(err))
}

// rootOf returns the innermost error of err.
func rootOf(err error) error {
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return err
}
