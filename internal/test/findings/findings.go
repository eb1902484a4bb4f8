// Package findings compares what the databases examine about themselves.
package findings

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/admin"
)

// A DB is a database with limits of the test's.
type DB interface {
	Examine(ctx context.Context, with admin.Examination) ([]admin.Finding, error)
}

// Of returns the findings of db as "code: problem".
func Of(t testing.TB, db DB, with admin.Examination) (all []string) {
	t.Helper()
	found, err := db.Examine(t.Context(), with)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.Severity == "" || f.Problem == "" || f.Remedy == "" {
			t.Errorf("incomplete finding: %+v", f)
		}
		all = append(all, string(f.Code)+": "+f.Problem)
	}
	return all
}

// Has reports whether a finding of code has text in its problem.
func Has(all []string, code admin.Code, text string) bool {
	return slices.ContainsFunc(all, func(s string) bool {
		return strings.HasPrefix(s, string(code)+": ") && strings.Contains(s, text)
	})
}
