package config

import (
	"fmt"

	"github.com/goccy/go-yaml/token"
)

// maxBytes and maxDepth bound a document. The parser takes memory by the square of the
// depth, and a hundred thousand levels fit into a file that looks small.
const (
	maxBytes = 1 << 20
	maxDepth = 100
)

// checkDepth refuses a document with more than maxDepth collections inside each other, or
// tags and anchors in a row.
func checkDepth(tokens token.Tokens) *Error {
	var blocks []int // columns of the open block collections
	flow, marks := 0, 0
	for i, t := range tokens {
		column := t.Position.Column
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			flow++
		case token.MappingEndType, token.SequenceEndType:
			flow = max(flow-1, 0)
		case token.AnchorType, token.TagType:
			marks++
		case token.MappingValueType:
			if i > 0 {
				column = tokens[i-1].Position.Column // of the key
			}
			fallthrough
		case token.SequenceEntryType, token.MappingKeyType:
			marks = 0
			if flow > 0 {
				break
			}
			for len(blocks) > 0 && blocks[len(blocks)-1] >= column {
				blocks = blocks[:len(blocks)-1]
			}
			blocks = append(blocks, column)
		}
		if len(blocks)+flow+marks > maxDepth {
			return &Error{Line: t.Position.Line, Problem: fmt.Sprintf("more than %d levels inside each other", maxDepth)}
		}
	}
	return nil
}
