// Package opencl knows how a graph becomes an artifact of the driver "opencl": its canonical JSON, with the sources of
// the kernels that execute it.
package opencl

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/opencl/kernel"
)

// New returns the compiler of the driver "opencl".
func New() driver.Compiler { return compiler{} }

// compiler has no state, and needs no device: sources are built where they are loaded.
type compiler struct{}

// Name implements driver.Compiler.
func (compiler) Name() string { return "opencl" }

// Compile validates graph and writes it with the sources of its kernels. An option "variant.FAMILY" of the target names
// the variant that a family of kernels is to have; without it the artifact carries all of them, of which the driver
// takes the first that suits the device. Facts: "bytes" is the size of the code, "weight_bytes" that of the weights.
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
	for _, option := range slices.Sorted(maps.Keys(t.Options)) {
		family, ok := strings.CutPrefix(option, kernel.Option)
		if ok && kernel.Variants(family) == nil {
			return fail(diag.New(diag.ClassInput, "option %q: there is no family %q of kernels", option, family))
		}
	}
	code, err := kernel.Compile(graph, func(family string) string {
		return t.Options[kernel.Option+kernel.Base(family)]
	})
	if err != nil {
		return fail(err)
	}
	total, err := weights.PackedBytes(graph.Weights, pack.Bytes)
	if err != nil {
		return fail(err)
	}
	data, err := code.Encode()
	if err != nil { // a NaN
		return fail(err)
	}
	return driver.Artifact{Driver: "opencl", Code: data,
		Facts: map[string]int64{"bytes": int64(len(data)), "weight_bytes": total}}, nil
}
