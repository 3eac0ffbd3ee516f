package sim_test

import (
	"context"
	"testing"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/sim"
)

func TestDriver(t *testing.T) {
	for _, proc := range []string{"cpu", "gpu", "npu"} {
		t.Run(proc, func(t *testing.T) {
			s := phone(t)
			drivertest.Run(t, drivertest.Factory{
				Driver: sim.New(s), Compiler: compilerFor{sim.NewCompiler(s), proc},
				Config: driver.Config{Select: proc},
				Others: []driver.Config{{Select: map[string]string{"cpu": "gpu", "gpu": "npu", "npu": "cpu"}[proc]}},
			})
		})
	}
}

// compilerFor compiles for one processor of the SoC, whatever the suite calls it.
type compilerFor struct {
	driver.Compiler
	proc string
}

func (c compilerFor) Compile(ctx context.Context, g op.Graph, w driver.Weights, t driver.Target) (driver.Artifact, error) {
	t.Proc = c.proc
	return c.Compiler.Compile(ctx, g, w, t)
}
