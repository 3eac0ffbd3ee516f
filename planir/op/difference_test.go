package op_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/op/optest"
)

// chainGraph has every part that a graph can have.
func chainGraph() op.Graph {
	graph := op.Single(op.Op{Kind: op.MatMul, M: 4, K: 64, N: 32, Scheme: op.A8TQ8C, Bias: true}, op.TilesLayout)
	graph.Temps = []op.Value{{Name: "t", Type: op.F32, Rows: 4, Cols: 32}}
	return graph
}

// Each field of a graph, its values, weights, nodes and operators counts, and the message names what differs.
func TestDifference(t *testing.T) {
	want := chainGraph()
	code, err := json.Marshal(&want)
	if err != nil {
		t.Fatal(err)
	}
	again := func() *op.Graph {
		var out op.Graph
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
	absent.Temps = []op.Value{}
	if text := absent.Difference(empty); text != "" {
		t.Errorf("an empty list differs from an absent one: %s", text)
	}
	says := map[string]string{"input": "input 0", "output": "output 0", "temporary value": "temporary value 0",
		"weight": "weight 1", "node": "node 0 (matmul)", "operator": "node 0 (matmul)", "graph": "got "}
	fields := optest.Fields(&want)
	if len(fields) < 60 {
		t.Errorf("a graph has %d fields", len(fields))
	}
	for _, field := range fields {
		other := again()
		field.Change(other)
		text := other.Difference(&want)
		if !strings.HasPrefix(text, says[field.Part]) || strings.Contains(text, "{") {
			t.Errorf("%s of the %s: %q, want it to begin with %q", field.Name, field.Part, text, says[field.Part])
		}
	}
}
