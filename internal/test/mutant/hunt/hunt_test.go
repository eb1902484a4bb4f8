package main

import (
	"slices"
	"testing"

	"github.com/waybill-go/waybill/internal/test/mutant"
)

func TestEveryMutantHasACheck(t *testing.T) {
	for _, name := range mutant.All() {
		if !slices.ContainsFunc(checks, func(c check) bool { return c.mutant == name }) {
			t.Errorf("no check is to catch %s", name)
		}
	}
}
