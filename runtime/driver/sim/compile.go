package sim

import (
	"context"
	"encoding/json"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/socs"
)

// NewCompiler returns the compiler of the simulated processors of s. It refuses what they could not
// execute: operators, schemes and layouts they lack, graphs beyond their byte limit and shapes
// described as infeasible (diag.ClassInfeasible).
func NewCompiler(s *socs.SoC) driver.Compiler { return compiler{s} }

// compiler writes graphs for the simulation, once the described processor is known to execute them.
type compiler struct{ soc *socs.SoC }

func (compiler) Name() string { return socs.SimDriver }

// Compile writes the graph as canonical JSON. Weights are ignored and may be nil.
func (c compiler) Compile(ctx context.Context, graph op.Graph, _ driver.Weights,
	target driver.Target) (driver.Artifact, error) {
	fail := func(err error) (driver.Artifact, error) {
		return driver.Artifact{}, diag.New(diag.ClassOr(err, diag.ClassInput), "compile graph for processor %q: %w",
			target.Proc, err)
	}
	if err := ctx.Err(); err != nil {
		return driver.Artifact{}, err
	}
	if err := graph.Validate(); err != nil {
		return fail(err)
	}
	proc := c.soc.Processor(target.Proc)
	if proc == nil || proc.Sim == nil {
		return fail(diag.New(diag.ClassInput, "SoC %q has no such simulated processor", c.soc.Name))
	}
	if err := executes(proc, capabilities(proc), &graph); err != nil {
		return fail(err)
	}
	code, err := json.Marshal(&graph)
	if err != nil {
		return fail(err)
	}
	return driver.Artifact{Driver: socs.SimDriver, Code: code, Facts: map[string]int64{"bytes": int64(len(code))}}, nil
}
