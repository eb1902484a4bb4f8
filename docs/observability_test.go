package docs_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/waybill-go/waybill/wayprom"
)

// described collects what is registered with it.
type described struct {
	prometheus.Registerer
	labels map[string]string // by metric
}

var description = regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`)

// Register implements prometheus.Registerer.
func (d described) Register(c prometheus.Collector) error {
	found := make(chan *prometheus.Desc, 100)
	c.Describe(found)
	close(found)
	for desc := range found {
		m := description.FindStringSubmatch(desc.String())
		d.labels[m[1]] = strings.ReplaceAll(m[2], ",", ", ")
	}
	return nil
}

func TestMetricsOfThePageAreThoseOfTheCode(t *testing.T) {
	code := described{labels: map[string]string{}}
	if _, err := wayprom.New(code); err != nil {
		t.Fatal(err)
	}
	_ = code.Register(wayprom.NewCollector(struct{ wayprom.Database }{}, nil))
	text, err := os.ReadFile("observability.md")
	if err != nil {
		t.Fatal(err)
	}
	page := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(waybill_\\w+)` \\| ([^|]*)\\|").FindAllStringSubmatch(string(text), -1) {
		page[m[1]] = strings.TrimSpace(m[2])
	}
	if diff := cmp.Diff(code.labels, page); diff != "" {
		t.Errorf("metrics (-code +page):\n%s", diff)
	}
}
