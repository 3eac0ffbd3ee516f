// Package plantext knows the YAML form of a plan, which people read, compare and edit.
package plantext

import (
	"bytes"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/planir"
)

// Encode returns the plan as YAML that Decode reads back exactly. Every element that people compare
// (a processor, a share, an alternative, a buffer, a step) is on a line of its own.
func Encode(plan *planir.Plan) ([]byte, error) {
	var root yaml.Node
	if err := root.Encode(plan); err != nil {
		return nil, fmt.Errorf("encode plan: %w", err)
	}
	lay(&root, "")
	var buf bytes.Buffer
	enc := yaml.NewEncoder(&buf)
	enc.SetIndent(2)
	if err := enc.Encode(&root); err != nil {
		return nil, fmt.Errorf("encode plan: %w", err)
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("encode plan: %w", err)
	}
	return buf.Bytes(), nil
}

// lay puts lists of plain values, and list elements that hold no further list of elements, on one
// line; graphs too, which are not edited by hand.
func lay(node *yaml.Node, key string) {
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			lay(node.Content[i+1], node.Content[i].Value)
		}
	case yaml.SequenceNode:
		if len(node.Content) == 0 || node.Content[0].Kind == yaml.ScalarNode {
			node.Style = yaml.FlowStyle
			return
		}
		for _, entry := range node.Content {
			if key == "procs" {
				layProcessor(entry)
			} else if key == "graphs" || !nested(entry) {
				entry.Style = yaml.FlowStyle
			} else {
				lay(entry, "")
			}
		}
	}
}

// layProcessor gives each key of a processor a line of its own.
func layProcessor(node *yaml.Node) {
	isMapping := func(c *yaml.Node) bool { return c.Kind == yaml.MappingNode }
	for i := 1; i < len(node.Content); i += 2 {
		if value := node.Content[i]; isMapping(value) && slices.ContainsFunc(value.Content, isMapping) {
			layProcessor(value)
		} else if value.Kind != yaml.ScalarNode {
			value.Style = yaml.FlowStyle
		}
	}
}

// nested reports whether a list of mappings lies within a node.
func nested(node *yaml.Node) bool {
	for _, child := range node.Content {
		if child.Kind == yaml.SequenceNode && len(child.Content) > 0 && child.Content[0].Kind == yaml.MappingNode ||
			nested(child) {
			return true
		}
	}
	return false
}

// Decode reads a plan from YAML; name is shown in errors. Unknown keys and wrong types are errors of
// class ClassInput with their line; whether the plan obeys the rules is planir.Check's question.
func Decode(name string, data []byte) (*planir.Plan, error) {
	doc, err := decode.Parse(name, data)
	if err != nil {
		return nil, err
	}
	return read(doc)
}

// Read is Decode of a file.
func Read(path string) (*planir.Plan, error) {
	doc, err := decode.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return read(doc)
}

// read decodes a parsed document; it checks types and keys, not the rules.
func read(doc *decode.Document) (*planir.Plan, error) {
	var plan planir.Plan
	if err := doc.Into(planir.Schema, &plan); err != nil {
		return nil, err
	}
	return &plan, nil
}
