package sim_test

import (
	"context"
	"reflect"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/sim"
)

// The simulated processors pass the suite of all drivers. The NPU shows what is static, padded and compiled, so that
// the short run needs no other.
func TestDriver(t *testing.T) {
	others := map[string]string{"cpu": "gpu", "gpu": "npu", "npu": "cpu"}
	for _, proc := range []string{"cpu", "gpu", "npu"} {
		if testing.Short() && proc != "npu" && !require.InPart(t.Name()+"/"+proc) {
			continue
		}
		t.Run(proc, func(t *testing.T) {
			soc := phone(t)
			drivertest.Run(t, drivertest.Factory{
				Driver:   sim.New(soc),
				Compiler: compilerFor{sim.NewCompiler(soc), proc},
				Config:   driver.Config{Select: proc},
				Others:   []driver.Config{{Select: others[proc]}},
				Sampled:  true, // it computes with the kernels of host
			})
		})
	}
}

// compilerFor compiles for one processor of the SoC. The suite has a name of its own for it.
type compilerFor struct {
	driver.Compiler
	proc string
}

func (c compilerFor) Compile(
	ctx context.Context, graph op.Graph, weights driver.Weights, target driver.Target,
) (driver.Artifact, error) {
	target.Proc = c.proc
	return c.Compiler.Compile(ctx, graph, weights, target)
}

// A simulated processor can do everything that its SoC says.
func TestCapabilitiesAreTheSoCs(t *testing.T) {
	soc := phone(t)
	npu := soc.Processor("npu")
	npu.Prepacks, npu.Fuses, npu.WeightRanges, npu.WeightsInArtifacts = true, true, true, true

	opened := open(t, soc, "npu", map[string]string{"compute": "false"})
	got := opened.Capabilities().Set.Clone()

	for scheme, layout := range npu.Layouts {
		if got.Layouts[scheme] != layout {
			t.Errorf("layout of %s is %q, want %q", scheme, got.Layouts[scheme], layout)
		}
	}
	want := npu.Set.Clone()
	want.WeightsInArtifacts = false // weights are memory of the simulation
	want.Memory = npu.KernelMemory()
	want.Layouts, got.Layouts = nil, nil // the driver adds layouts of tables
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
