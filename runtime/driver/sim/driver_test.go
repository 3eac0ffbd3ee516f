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

func TestDriver(t *testing.T) {
	for _, proc := range []string{"cpu", "gpu", "npu"} {
		if testing.Short() && proc != "npu" && !require.InPart(t.Name()+"/"+proc) {
			continue // what is static, padded and compiled shows there
		}
		t.Run(proc, func(t *testing.T) {
			s := phone(t)
			drivertest.Run(t, drivertest.Factory{
				Driver: sim.New(s), Compiler: compilerFor{sim.NewCompiler(s), proc},
				Config: driver.Config{Select: proc}, Sampled: true, // it computes with the kernels of host
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

// A simulated processor can do what its SoC says, whatever that is: nothing is copied one by one, and forgotten.
func TestCapabilitiesAreTheSoCs(t *testing.T) {
	s := phone(t)
	p := s.Processor("npu")
	p.Prepacks, p.Fuses, p.WeightRanges, p.WeightsInArtifacts = true, true, true, true
	opened, err := sim.New(s).Open(t.Context(), driver.Config{Select: "npu", Options: map[string]string{"compute": "false"}})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	got := opened.Capabilities().Set.Clone()
	for scheme, layout := range p.Layouts {
		if got.Layouts[scheme] != layout {
			t.Errorf("layout of %s is %q, want %q", scheme, got.Layouts[scheme], layout)
		}
	}
	want := p.Set.Clone()
	want.WeightsInArtifacts, want.Memory = false, p.KernelMemory() // it holds weights, and a default
	want.Layouts, got.Layouts = nil, nil                           // tables of rows besides
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
