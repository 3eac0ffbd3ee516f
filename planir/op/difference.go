package op

import (
	"fmt"
	"slices"
)

// Difference describes the first difference between a graph and the wanted one; "" if they are equal. An absent list
// equals an empty one, as in the encoding.
func (g *Graph) Difference(want *Graph) string {
	for _, values := range []struct {
		what      string
		got, want []Value
	}{
		{"input", g.Inputs, want.Inputs}, {"output", g.Outputs, want.Outputs}, {"temporary value", g.Temps, want.Temps},
	} {
		if text := listDifference(values.what, values.got, values.want, Value.describe); text != "" {
			return text
		}
	}
	if text := listDifference("weight", g.Weights, want.Weights, WeightSpec.describe); text != "" {
		return text
	}
	if len(g.Nodes) != len(want.Nodes) {
		return fmt.Sprintf("got %d nodes, want %d", len(g.Nodes), len(want.Nodes))
	}
	for i := range g.Nodes {
		if text := g.Nodes[i].difference(&want.Nodes[i]); text != "" {
			return fmt.Sprintf("node %d (%s): %s", i, want.Nodes[i].Op.Kind, text)
		}
	}
	return ""
}

// listDifference compares two lists of things that are called what.
func listDifference[T comparable](what string, got, want []T, text func(T) string) string {
	if len(got) != len(want) {
		return fmt.Sprintf("got %d %ss, want %d", len(got), what, len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Sprintf("%s %d: got %s, want %s", what, i, text(got[i]), text(want[i]))
		}
	}
	return ""
}

// describe returns a value with its name, for messages.
func (v Value) describe() string { return fmt.Sprintf("%q %s [%d,%d]", v.Name, v.Type, v.Rows, v.Cols) }

// describe returns a weight with its name, for messages.
func (s WeightSpec) describe() string { return fmt.Sprintf("%q %v", s.Name, s) }

// difference compares two nodes.
func (n *Node) difference(want *Node) string {
	if text := n.Op.difference(&want.Op); text != "" {
		return text
	}
	for _, names := range []struct {
		what      string
		got, want []string
	}{{"inputs", n.In, want.In}, {"weights", n.W, want.W}, {"outputs", n.Out, want.Out}} {
		if !slices.Equal(names.got, names.want) {
			return fmt.Sprintf("%s: got %q, want %q", names.what, names.got, names.want)
		}
	}
	return ""
}

// difference compares two operators. The fields are asked by name only where the operators differ.
func (o *Op) difference(want *Op) string {
	switch {
	case *o == *want:
		return ""
	case o.Kind != want.Kind:
		return fmt.Sprintf("got operator %q, want %q", o.Kind, want.Kind)
	case o.M != want.M:
		return fmt.Sprintf("field %q: got %d, want %d", "m", o.M, want.M)
	}
	for _, name := range fieldNames {
		if got, wanted := fields[name].value(o), fields[name].value(want); got != wanted {
			return fmt.Sprintf("field %q: got %v, want %v", name, got, wanted)
		}
	}
	return fmt.Sprintf("got %+v, want %+v", *o, *want)
}
