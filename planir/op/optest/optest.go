// Package optest knows every field of a graph, so that a test of graphs that must agree tries each of them.
package optest

import (
	"reflect"

	"github.com/hetc/hetc/planir/op"
)

// Field is one field of a graph, or of one of its parts.
type Field struct {
	Part, Name string // "operator", "Scheme"
	index      int
	of         func(*op.Graph) any
}

// Fields lists the fields of a graph, and of the first input, output, temporary value and node, of its operator, and of
// the last weight, as far as the graph has them.
func Fields(graph *op.Graph) (fields []Field) {
	for _, part := range []struct {
		name  string
		count int // of those that the graph has
		of    func(*op.Graph) any
	}{
		{"graph", 1, func(g *op.Graph) any { return g }},
		{"input", len(graph.Inputs), func(g *op.Graph) any { return &g.Inputs[0] }},
		{"output", len(graph.Outputs), func(g *op.Graph) any { return &g.Outputs[0] }},
		{"temporary value", len(graph.Temps), func(g *op.Graph) any { return &g.Temps[0] }},
		{"weight", len(graph.Weights), func(g *op.Graph) any { return &g.Weights[len(g.Weights)-1] }},
		{"node", len(graph.Nodes), func(g *op.Graph) any { return &g.Nodes[0] }},
		{"operator", len(graph.Nodes), func(g *op.Graph) any { return &g.Nodes[0].Op }},
	} {
		if part.count == 0 {
			continue
		}
		kind := reflect.TypeOf(part.of(graph)).Elem()
		for i := range kind.NumField() {
			if kind.Field(i).Type.Kind() != reflect.Struct { // the operator of a node is a part of its own
				fields = append(fields, Field{part.name, kind.Field(i).Name, i, part.of})
			}
		}
	}
	return fields
}

// Change gives a field of a graph another value.
func (f Field) Change(graph *op.Graph) {
	field := reflect.ValueOf(f.of(graph)).Elem().Field(f.index)
	switch field.Kind() {
	case reflect.String:
		field.SetString(field.String() + "x")
	case reflect.Int:
		field.SetInt(field.Int() + 1)
	case reflect.Float64:
		field.SetFloat(field.Float() + 0.5)
	case reflect.Bool:
		field.SetBool(!field.Bool())
	case reflect.Slice:
		if field.Len() > 0 {
			field.Set(field.Slice(0, field.Len()-1))
		} else {
			field.Set(reflect.Append(field, reflect.Zero(field.Type().Elem())))
		}
	default:
		panic("BUG: " + f.Part + "." + f.Name + " is of kind " + field.Kind().String())
	}
}
