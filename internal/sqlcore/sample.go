package sqlcore

import (
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/headers"
)

// CompleteSample gives the record of m its stored headers, and what they keep of a worker's
// message, so that it decodes as it does for a relay or a worker.
func CompleteSample(m *admin.Sample, stored string) {
	m.Record.Name = m.Name
	m.Record.DispatchedAt = m.Record.DispatchedAt.UTC()
	m.Record.Problem = headers.Decode(m.Record, stored)
	if m.Source == admin.SourceRetries || m.Source == admin.SourceFailed {
		restore(m.Record)
	}
}
