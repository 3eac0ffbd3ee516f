// Package ort knows how a graph becomes an artifact of the driver "ort": an ONNX model without its weights.
//
// Inputs "i0", "i1", ... and outputs "o0", "o1", ... are the graph's by position; a value that is input and output
// is both. Weight j of the graph is the initializer "w<j>", with its scales in "w<j>.scale", both declared as
// external data. The ONNX node that does the work of node i of the graph is named "n<i>", what belongs to it
// "n<i>.something". The metadata "hetc.graph" is the graph itself; "hetc.checks" lists outputs "c0", "c1", ...
// behind the graph's own: the row scales of the quant_rows nodes that keep them within the graph, because a value
// without an answer shows there.
package ort

import (
	"context"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// New returns the compiler of the driver "ort".
func New() driver.Compiler { return compiler{} }

// compiler has no state, and needs no library: the model is compiled when a driver loads it.
type compiler struct{}

// Name implements driver.Compiler.
func (compiler) Name() string { return "ort" }

// Compile writes graph as an ONNX model. The code does not depend on the values of weights, which may be nil; those
// that are given must have the sizes of the graph's. What the model cannot say is refused by name. Facts: "bytes" is
// the size of the code, "weight_bytes" that of the packed weights it runs with.
func (compiler) Compile(ctx context.Context, graph op.Graph, weights driver.Weights,
	t driver.Target) (driver.Artifact, error) {
	fail := func(err error) (driver.Artifact, error) {
		return driver.Artifact{}, diag.New(diag.ClassInput, "compile graph for processor %q: %w", t.Proc, err)
	}
	if err := ctx.Err(); err != nil {
		return driver.Artifact{}, err
	}
	if err := graph.Validate(); err != nil {
		return fail(err)
	}
	for i, node := range graph.Nodes {
		if err := refuse(node.Op); err != nil {
			return fail(diag.New(diag.ClassInput, "node %d (%s): %w", i, node.Op.Kind, err))
		}
	}
	total, err := weights.PackedBytes(graph.Weights, pack.Bytes)
	if err != nil {
		return fail(err)
	}
	model, err := translate(&graph)
	if err != nil {
		return fail(err)
	}
	code := model.Marshal()
	if len(code) > onnx.MaxBytes {
		return fail(diag.New(diag.ClassInput, "the model has %d bytes, want at most %d", len(code), onnx.MaxBytes))
	}
	return driver.Artifact{Driver: "ort", Code: code,
		Facts: map[string]int64{"bytes": int64(len(code)), "weight_bytes": total}}, nil
}
