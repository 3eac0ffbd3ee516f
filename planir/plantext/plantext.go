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
func Encode(p *planir.Plan) ([]byte, error) {
	var root yaml.Node
	if err := root.Encode(p); err != nil {
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
// line; graphs too, which nobody edits.
func lay(n *yaml.Node, key string) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			lay(n.Content[i+1], n.Content[i].Value)
		}
	case yaml.SequenceNode:
		if len(n.Content) == 0 || n.Content[0].Kind == yaml.ScalarNode {
			n.Style = yaml.FlowStyle
			return
		}
		for _, e := range n.Content {
			if key == "procs" {
				layProcessor(e)
			} else if key == "graphs" || !nested(e) {
				e.Style = yaml.FlowStyle
			} else {
				lay(e, "")
			}
		}
	}
}

// layProcessor gives each key of a processor a line of its own.
func layProcessor(n *yaml.Node) {
	isMapping := func(c *yaml.Node) bool { return c.Kind == yaml.MappingNode }
	for i := 1; i < len(n.Content); i += 2 {
		if value := n.Content[i]; isMapping(value) && slices.ContainsFunc(value.Content, isMapping) {
			layProcessor(value)
		} else if value.Kind != yaml.ScalarNode {
			value.Style = yaml.FlowStyle
		}
	}
}

// nested reports whether a list of mappings lies within n.
func nested(n *yaml.Node) bool {
	for _, c := range n.Content {
		if c.Kind == yaml.SequenceNode && len(c.Content) > 0 && c.Content[0].Kind == yaml.MappingNode || nested(c) {
			return true
		}
	}
	return false
}

// Decode reads a plan from YAML; name is shown in errors. Unknown keys and wrong types are errors of
// class ClassInput with their line; whether the plan obeys the rules is planir.Check's question.
func Decode(name string, data []byte) (*planir.Plan, error) {
	d, err := decode.Parse(name, data)
	if err != nil {
		return nil, err
	}
	return read(d)
}

// Read is Decode of a file.
func Read(path string) (*planir.Plan, error) {
	d, err := decode.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return read(d)
}

func read(d *decode.Document) (*planir.Plan, error) {
	var p planir.Plan
	if err := d.Into(planir.Schema, &p); err != nil {
		return nil, err
	}
	return &p, nil
}
