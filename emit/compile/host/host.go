// Package host knows how a graph becomes an artifact of the host driver: its canonical JSON.
package host

import (
	"context"
	"encoding/json"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// New returns the compiler of the driver "host".
func New() driver.Compiler { return compiler{} }

// compiler has no state: the host's kernels are part of hetrun, and an artifact only says which to call.
type compiler struct{}

// Name implements driver.Compiler.
func (compiler) Name() string { return "host" }

// Compile validates graph and writes it as JSON. The code does not depend on the values of weights, which may be nil;
// those that are given must have the sizes of the graph's. Facts: "bytes" is the size of the code, "weight_bytes" that
// of the packed weights it runs with, of all their experts.
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
	total, err := weights.PackedBytes(graph.Weights, pack.Bytes)
	if err != nil {
		return fail(err)
	}
	code, err := json.Marshal(&graph)
	if err != nil { // a NaN
		return fail(err)
	}
	return driver.Artifact{Driver: "host", Code: code,
		Facts: map[string]int64{"bytes": int64(len(code)), "weight_bytes": total}}, nil
}
