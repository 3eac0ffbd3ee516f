package emit

import (
	"context"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/socs"
)

// referenceSources returns the blobs of the reference program. Its content holds nothing but memory, which the sources
// read until the bundle is written.
func (o *Options) referenceSources(ctx context.Context, plan *planir.Plan) ([]bundle.Source, error) {
	reference, err := referencePlan(plan, o.Model)
	if err != nil {
		return nil, err
	}
	// Without the target, whatever the bundle is for: the reference executes on a host's CPU.
	content, err := NewCalibrated(ctx, reference, o.Model, o.Calibration, o.Compilers)
	if err != nil {
		return nil, err
	}
	return content.sources(ctx, referencePrefix, bundle.RoleReference)
}

// referencePlan returns the trivial plan for the same schemes and lengths on the host's reference kernels:
// float32 with float64 accumulation on the values that are stored. It shares no packed weights, graphs
// or flags with the plan it checks.
func referencePlan(plan *planir.Plan, model *models.Model) (*planir.Plan, error) {
	ref := &planir.Plan{
		Schema: planir.Schema, Model: plan.Model, Folds: plan.Folds, Shadows: plan.Shadows,
		MaxContext: plan.MaxContext, KV: op.F32,
		SoC: planir.SoCRef{Name: plan.SoC.Name, Digest: plan.SoC.Digest, Fingerprint: plan.SoC.Fingerprint,
			Control: referenceName},
	}
	for _, in := range plan.Inputs {
		if in.Kind == planir.CalibrationInput {
			ref.Inputs = append(ref.Inputs, in) // its weights are folded and rounded as the plan's are
		}
	}
	ref.Procs = []planir.Proc{referenceProc(plan)}
	graph := model.Graph()
	if plan.Attention != nil { // it attends to as few positions, in no order of heads
		ref.Attention = new(*plan.Attention)
		ref.Attention.Pipelines = nil
	}
	for i := range plan.Experts { // it drops the same rows of experts, and moves none otherwise
		if plan.Experts[i].Overflow == planir.OverflowDrop {
			ref.Experts = append(ref.Experts, plan.Experts[i])
		}
	}
	var rows []int
	for _, ph := range plan.Program.Programs {
		if !ph.Batch() { // it executes one sequence
			rows = append(rows, ph.Rows)
		}
	}
	var err error
	ref.Decisions, err = lower.TrivialOf(ref, &graph, referenceName, rows, func(node string, rows int) op.Scheme {
		return schemeAt(plan, rows, "")(node)
	})
	if err != nil {
		return nil, err
	}
	if err := lower.Lower(ref, &graph); err != nil {
		return nil, err
	}
	return ref, planir.Check(ref).Err()
}

// referenceName is the name of the reference program's processor, and of the kernels that it runs.
const referenceName = "reference"

// referenceProc returns a processor without limits: all schemes, one layout, any rows and ranges, so that no decision
// has to be made. Where the plan's control processor is a host CPU too, it has its cores, which this machine lets us
// use.
func referenceProc(plan *planir.Plan) planir.Proc {
	proc := planir.Proc{
		Name: referenceName, Kind: "cpu", Driver: "host", Select: "0",
		Options: map[string]string{"kernels": referenceName}, Cores: []int{0},
		Set: capability.Set{
			Tile: capability.Tile{K: pack.BlockK, N: pack.TileN}, Schemes: op.Schemes, Layouts: map[string]string{},
			DynamicRows: true, StridedInput: true, StridedOutput: true, WeightRanges: true,
			Memory: socs.DefaultMemory(false),
		},
	}
	if control := plan.Proc(plan.SoC.Control); control.Driver == proc.Driver {
		proc.Select, proc.Cores = control.Select, control.Cores
	}
	for _, scheme := range op.Schemes {
		proc.Layouts[scheme.Weight()] = pack.N32
	}
	return proc
}
