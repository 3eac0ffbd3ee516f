package sim_test

import (
	"context"
	"testing"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/sim"
)

var packing = drivertest.Packing{
	Bytes: pack.Bytes,
	Pack: func(dst []byte, spec op.WeightSpec, values []float32) error {
		src, err := pack.Floats(values, spec.K, spec.N)
		if err != nil {
			return err
		}
		return pack.Pack(dst, spec, src)
	},
	Unpack:  pack.Unpack,
	Columns: pack.Columns,
}

func TestDriver(t *testing.T) {
	for _, proc := range []string{"cpu", "gpu", "npu"} {
		t.Run(proc, func(t *testing.T) {
			s := phone(t)
			drivertest.Run(t, drivertest.Factory{
				Driver: sim.New(s), Compiler: compilerFor{sim.NewCompiler(s), proc}, Packing: packing,
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
