package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
)

// A node is a value of a YAML document with the line it stands on. Aliases
// share their anchor's node, and are never copied: reading cannot expand a document.
// A nil node is a key that is absent.
type node struct {
	kind    nodeKind
	line    int
	text    string  // of a scalar, as it was written
	entries []entry // of a mapping, duplicates included
	items   []*node // of a sequence
}

type entry struct {
	key   string
	line  int
	value *node
}

type nodeKind string

const (
	null     nodeKind = "nothing"
	scalar   nodeKind = "a single value"
	mapping  nodeKind = "a mapping"
	sequence nodeKind = "a list"
)

// parseTree parses one YAML document. It returns nil for an empty one.
func parseTree(data []byte) (root *node, err *Error) {
	if len(data) > maxBytes {
		return nil, &Error{Problem: fmt.Sprintf("it holds more than %d bytes", maxBytes)}
	}
	const mark = "\uFEFF" // of editors that mark the encoding of a file
	tokens := lexer.Tokenize(strings.TrimPrefix(string(data), mark))
	if err := checkDepth(tokens); err != nil {
		return nil, err
	}
	// Duplicate keys are allowed here, to be reported together with other mistakes.
	parsed, parseErr := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if parseErr != nil {
		return nil, syntaxError(parseErr)
	}
	c := converter{anchors: map[string]*node{}}
	for _, doc := range parsed.Docs {
		switch {
		case doc.Body == nil || doc.Body.Type() == ast.DirectiveType:
		case root != nil:
			return nil, &Error{Line: lineOf(doc.Body), Problem: "a second document", Hint: "a configuration is one YAML document"}
		default:
			if root = c.convert(doc.Body); c.err != nil {
				return nil, c.err
			}
		}
	}
	return root, nil
}

// syntaxError takes only the message: the text of a YAML error quotes the
// source, and with it passwords.
func syntaxError(err error) *Error {
	e := &Error{Problem: "not valid YAML"}
	if syntax, ok := errors.AsType[yaml.Error](err); ok {
		e.Problem = "not valid YAML: " + strings.ReplaceAll(syntax.GetMessage(), "\t", `\t`)
		e.Hint = syntaxHint(syntax.GetMessage())
		if token := syntax.GetToken(); token != nil {
			e.Line = token.Position.Line
		}
	}
	return e
}

// syntaxHint returns the remedy for a message of the YAML parser.
func syntaxHint(message string) string {
	switch {
	case strings.Contains(message, "'\t'"):
		return "YAML takes no tabs: indent with spaces"
	case strings.Contains(message, "escape character"):
		return "in double quotes a backslash begins an escape: use single quotes"
	case strings.Contains(message, "value is not allowed in this context"): // also "mapping value ..."
		return "is this line, or the next, indented deeper or less than its neighbours? Keys of one mapping begin in the same column"
	}
	return "quote values that hold any of : { } [ ] , & * # or begin with a special character"
}

// A converter keeps the first error it meets.
type converter struct {
	anchors map[string]*node
	err     *Error
}

func (c *converter) convert(from ast.Node) *node {
	n := &node{line: lineOf(from)}
	switch from := from.(type) {
	case nil:
		n.kind = null
	case *ast.NullNode:
		n.kind = null
	case *ast.LiteralNode:
		n.kind, n.text = scalar, from.Value.Value
	case *ast.MappingNode:
		n.kind = mapping
		for _, v := range from.Values {
			n.entries = append(n.entries, c.entry(v))
		}
	case *ast.MappingValueNode:
		n.kind, n.entries = mapping, []entry{c.entry(from)}
	case *ast.SequenceNode:
		n.kind = sequence
		for _, v := range from.Values {
			n.items = append(n.items, c.convert(v))
		}
	case *ast.AnchorNode:
		n = c.convert(from.Value)
		c.anchors[from.Name.GetToken().Value] = n
	case *ast.AliasNode:
		target, ok := c.anchors[from.Value.GetToken().Value]
		if !ok {
			c.refuse(from, "an alias without an anchor before it", "")
			return n
		}
		return target
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		n.kind, n.text = scalar, from.GetToken().Value
	default:
		c.refuse(from, fmt.Sprintf("YAML of the type %s", from.Type()), "use mappings, lists and single values")
	}
	return n
}

func (c *converter) entry(from *ast.MappingValueNode) entry {
	switch from.Key.(type) {
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
	case *ast.MergeKeyNode:
		c.refuse(from.Key, "a merge key <<", "repeat the settings, or use an alias for a whole value")
	default:
		c.refuse(from.Key, "a key that is not a plain word", "quote it")
	}
	return entry{key: from.Key.GetToken().Value, line: lineOf(from.Key), value: c.convert(from.Value)}
}

func (c *converter) refuse(at ast.Node, what, hint string) {
	if c.err == nil {
		c.err = &Error{Line: lineOf(at), Problem: what, Hint: hint}
	}
}

func lineOf(n ast.Node) int {
	if n == nil || n.GetToken() == nil {
		return 0
	}
	return n.GetToken().Position.Line
}
