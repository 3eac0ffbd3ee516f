package drivertest_test

import (
	"context"
	"fmt"
	"testing"

	compile "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/host"
)

// few is a driver in its beginnings: the host's, of which processors claim and execute a few operators.
type few struct {
	driver.Driver
	can capability.Set
}

// Open implements driver.Driver.
func (f few) Open(ctx context.Context, c driver.Config) (driver.Processor, error) {
	proc, err := f.Driver.Open(ctx, c)
	if err != nil {
		return nil, err
	}
	caps := *proc.Capabilities()
	caps.Set, caps.Imitates = f.can, nil
	return &fewProcessor{proc, &caps}, nil
}

type fewProcessor struct {
	driver.Processor
	caps *driver.Capabilities
}

// Capabilities implements driver.Processor.
func (p *fewProcessor) Capabilities() *driver.Capabilities { return p.caps }

// Load refuses what is not claimed.
func (p *fewProcessor) Load(ctx context.Context, a driver.Artifact, w driver.Weights) (driver.Executable, error) {
	if graph, err := driver.ParseGraph(a.Code); err == nil {
		for _, node := range graph.Nodes {
			if err := p.caps.Supports(node.Op); err != nil {
				return nil, err
			}
		}
	}
	return p.Processor.Load(ctx, a, w)
}

// The suite tries drivers that have a few operators only, as every driver does in its beginnings.
func TestFewOperators(t *testing.T) {
	devices, err := host.New().Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, can := range []capability.Set{
		{Kinds: []op.Kind{op.Add}},
		{Kinds: []op.Kind{op.Copy, op.Clip}},
		{Kinds: []op.Kind{op.MatMul}, Schemes: []op.Scheme{op.A32W32},
			Layouts: map[string]string{"w32": pack.N32, "f32": op.RowsLayout}},
	} {
		t.Run(fmt.Sprint(can.Kinds), func(t *testing.T) {
			can.Tile = capability.Tile{K: pack.BlockK, N: pack.TileN}
			can.DynamicRows, can.StridedInput, can.StridedOutput = true, true, true
			drivertest.Run(t, drivertest.Factory{Driver: few{host.New(), can}, Compiler: compile.New(),
				Config: driver.Config{Select: devices[0].Select}, Sampled: true})
		})
	}
}
