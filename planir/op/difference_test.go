package op

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// chainGraph has every part that a graph can have.
func chainGraph() Graph {
	graph := Single(Op{Kind: MatMul, M: 4, K: 64, N: 32, Scheme: A8TQ8C, Bias: true}, TilesLayout)
	graph.Temps = []Value{{Name: "t", Type: F32, Rows: 4, Cols: 32}}
	return graph
}

// Each field of a graph, its values, weights, nodes and operators counts, and the message names what differs.
func TestDifference(t *testing.T) {
	want := chainGraph()
	code, err := json.Marshal(&want)
	if err != nil {
		t.Fatal(err)
	}
	again := func() *Graph {
		var out Graph
		if err := json.Unmarshal(code, &out); err != nil {
			t.Fatal(err)
		}
		return &out
	}
	if text := again().Difference(&want); text != "" {
		t.Errorf("a decoded graph differs: %s", text)
	}
	empty := again()
	empty.Nodes[0].In, empty.Temps = nil, nil
	absent := *empty
	absent.Temps = []Value{}
	if text := absent.Difference(empty); text != "" {
		t.Errorf("an empty list differs from an absent one: %s", text)
	}
	tried := 0
	for _, part := range []struct {
		of   func(*Graph) any
		says string
	}{
		{func(g *Graph) any { return &g.Inputs[0] }, "input 0"},
		{func(g *Graph) any { return &g.Outputs[0] }, "output 0"},
		{func(g *Graph) any { return &g.Temps[0] }, "temporary value 0"},
		{func(g *Graph) any { return &g.Weights[1] }, "weight 1"},
		{func(g *Graph) any { return &g.Nodes[0].Op }, "node 0 (matmul)"},
		{func(g *Graph) any { return &g.Nodes[0] }, "node 0 (matmul)"},
		{func(g *Graph) any { return g }, "got "},
	} {
		for i := range reflect.TypeOf(part.of(again())).Elem().NumField() {
			other := again()
			value := reflect.ValueOf(part.of(other)).Elem()
			switch field := value.Field(i); field.Kind() {
			case reflect.Struct: // the operator has a line of its own
				continue
			case reflect.String:
				field.SetString(field.String() + "x")
			case reflect.Int:
				field.SetInt(field.Int() + 1)
			case reflect.Float64:
				field.SetFloat(field.Float() + 0.5)
			case reflect.Bool:
				field.SetBool(!field.Bool())
			case reflect.Slice:
				field.Set(field.Slice(0, field.Len()-1))
			}
			tried++
			text := other.Difference(&want)
			if !strings.HasPrefix(text, part.says) || strings.Contains(text, "{") {
				t.Errorf("%s of %T: %q, want it to begin with %q", value.Type().Field(i).Name, part.of(other), text,
					part.says)
			}
		}
	}
	if tried < 60 {
		t.Errorf("changed %d fields", tried)
	}
}
