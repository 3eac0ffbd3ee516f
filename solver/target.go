package solver

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/workload"
)

// ForTarget turns the input into one for the SoC's device. Only processors with target data take part, with the
// operators and schemes that they execute there (socs.SoC.Restricted). So it is decided what is legal before anything
// is priced.
func (in *Input) ForTarget() error {
	soc, err := in.SoC.Restricted()
	if err != nil {
		return err
	}
	in.Whole, in.SoC = in.WholeSoC(), soc
	return nil
}

// Targeted reports whether ForTarget was called.
func (in *Input) Targeted() bool { return in.Whole != nil }

// onDevice returns the plan with the drivers that the SoC's device has, where it is for the device: whether a row has the
// same bits in every program depends on them, and not on the simulation.
func (s *session) onDevice(plan *planir.Plan) *planir.Plan {
	if !s.in.Targeted() {
		return plan
	}
	out := *plan
	out.Procs = slices.Clone(plan.Procs)
	for i := range out.Procs {
		if proc := s.in.SoC.Processor(out.Procs[i].Name); proc != nil && proc.Target != nil {
			out.Procs[i].Driver = proc.Target.Driver
		}
	}
	return &out
}

// WholeSoC returns the SoC that Input.SoC is, or is a part of.
func (in *Input) WholeSoC() *socs.SoC {
	if in.Whole != nil {
		return in.Whole
	}
	return in.SoC
}

// checkTarget returns an error if an NPU of the device executes nothing that the workload permits. A plan would leave
// the NPU out although the user did not ask for that.
func (in *Input) checkTarget(want *workload.Demand) error {
	if !in.Targeted() {
		return nil
	}
	permitted := slices.Concat(want.Prefill, want.Decode, want.Head, want.PrefillHead)
	isPermitted := func(scheme op.Scheme) bool { return slices.Contains(permitted, scheme) }
	for i := range in.SoC.Processors {
		proc := &in.SoC.Processors[i]
		takesPart := len(in.Only) == 0 || slices.Contains(in.Only, proc.Name)
		if proc.Kind != socs.KindNPU || len(proc.Schemes) == 0 || !takesPart {
			continue
		}
		if !slices.ContainsFunc(proc.Schemes, isPermitted) {
			return in.unusedNPU(proc, permitted)
		}
	}
	return nil
}

// unusedNPU returns the error that the workload permits none of an NPU's schemes, with what to permit.
func (in *Input) unusedNPU(proc *socs.Processor, permitted []op.Scheme) error {
	list := make([]string, len(proc.Schemes))
	for i, scheme := range proc.Schemes {
		list[i] = string(scheme)
	}
	kept := op.A32W32
	if len(permitted) > 0 {
		kept = permitted[0]
	}

	hint := fmt.Sprintf("permit one in the workload: schemes: {prefill: [%s, %s], decode: [%s, %s]}",
		kept, list[0], kept, list[0])
	if proc.Schemes[0].Static() {
		hint += "; its static steps come from hetc calibrate --model DIR --text FILE -o cal.yaml, " +
			"given with --calibration cal.yaml"
	}
	if control := in.SoC.Control; control != proc.Name {
		hint += fmt.Sprintf("; or plan without it: --only %s", control)
	}

	return diag.New(diag.ClassInput,
		"solve: on the device of %q processor %q executes products in %s, and %s permits none of them",
		in.SoC.Name, proc.Name, strings.Join(list, ", "), in.Workload.Title()).WithHint("%s", hint)
}

// CheckSchemes returns the error with which Solve would refuse the workload's schemes, before there are costs: it needs
// only model, SoC and workload.
func (in *Input) CheckSchemes() error {
	if err := in.Workload.Validate(); err != nil {
		return err
	}
	want, err := in.Workload.Apply(in.Model.MaxContext)
	if err != nil {
		return err
	}
	if err := in.checkTarget(want); err != nil {
		return err
	}
	return in.checkExperts(want)
}

// checkExperts returns an error if a phase permits no scheme that products by experts can have.
func (in *Input) checkExperts(want *workload.Demand) error {
	graph := in.Model.Graph()
	isExpert := func(operator op.Op) bool { return operator.Kind == op.ExpertMatMul }
	hasExpert := func(node models.Node) bool { return slices.ContainsFunc(node.Ops, isExpert) }
	inSection := func(section models.Section) bool { return slices.ContainsFunc(section.Nodes, hasExpert) }
	if !slices.ContainsFunc(graph.Sections, inSection) {
		return nil
	}

	for _, phase := range []struct {
		name    string
		schemes []op.Scheme
	}{{"prefill", want.Prefill}, {"decode", want.Decode}} {
		if len(phase.schemes) == 0 || slices.ContainsFunc(phase.schemes, op.Scheme.Experts) {
			continue
		}
		return diag.New(diag.ClassInput,
			"solve: model %q has experts, whose products have none of the schemes that %s permits in %s: %v",
			in.Model.Name, in.Workload.Title(), phase.name, phase.schemes).
			WithHint("permit one for them beside these, which the control processor executes: "+
				"schemes: {prefill: [%s, %s], decode: [%s, %s]}",
				phase.schemes[0], op.A8TQ8C, phase.schemes[0], op.A8TQ8C)
	}
	return nil
}
