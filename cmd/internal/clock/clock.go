// Package clock knows how a plan is executed for its time alone: on the virtual clock of a simulated SoC, whose
// processors compute nothing, with zeros for weights.
package clock

import (
	"context"
	"errors"

	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/socs"
)

// TimesOnly has the simulated processors of a SoC compute nothing. Without noise every execution of an operator takes
// the same time.
func TimesOnly(soc *socs.SoC, noise bool) {
	for i := range soc.Processors {
		proc := &soc.Processors[i]
		if proc.Sim == nil {
			continue
		}
		// The driver advances the clock without computing values.
		proc.Options = map[string]string{"compute": "false"}
		if !noise {
			proc.Sim.NoiseCV = 0
		}
	}
}

// Machine executes a plan for its time alone.
type Machine struct {
	*executor.Machine
	source *empty
}

// Open makes the machine of a plan that was solved for a SoC of TimesOnly.
func Open(ctx context.Context, plan *planir.Plan, model *models.Model, soc *socs.SoC) (*Machine, error) {
	source, err := newEmpty(ctx, plan, model, soc)
	if err != nil {
		return nil, err
	}
	machine, err := executor.Open(ctx, plan, source, executor.Options{Drivers: []driver.Driver{sim.New(soc)}})
	if err != nil {
		return nil, errors.Join(err, source.Close())
	}
	return &Machine{machine, source}, nil
}

// Close ends the machine and releases its zeros.
func (m *Machine) Close() error { return errors.Join(m.Machine.Close(), m.source.Close()) }

// Tokens executes so many tokens behind those before them and returns their time in ns. Their values do not matter:
// nothing is computed, and the clock counts operators.
func (m *Machine) Tokens(ctx context.Context, count int) (ns int64, err error) {
	err = m.Do(ctx, func(control *executor.Control) error {
		took, err := control.Forward(make([]int32, count), executor.WantLast, nil)
		ns = took.NS
		return err
	})
	return ns, err
}

// empty is a plan's artifacts with zeros for weights, which a processor that computes nothing never reads.
type empty struct {
	*emit.Content
	region *mem.Region
}

// newEmpty allocates zeros as long as the largest pack of a plan.
func newEmpty(ctx context.Context, plan *planir.Plan, model *models.Model, soc *socs.SoC) (*empty, error) {
	content, err := emit.NewContent(ctx, plan, model, []driver.Compiler{sim.NewCompiler(soc)})
	if err != nil {
		return nil, err
	}
	largest := int64(1)
	for _, blob := range plan.Program.WeightBlobs() {
		for _, at := range blob.Packs {
			largest = max(largest, at.Pack.Bytes)
		}
	}
	region, err := mem.Alloc(int(largest), 64)
	if err != nil {
		content.Close()
		return nil, diag.New(diag.ClassRun, "execute for times alone: %w", err)
	}
	return &empty{content, region}, nil
}

// Range returns that many zeros.
func (e *empty) Range(_ string, _, bytes int64) ([]byte, error) { return e.region.Bytes()[:bytes], nil }

// Close releases both.
func (e *empty) Close() error { return errors.Join(e.Content.Close(), e.region.Close()) }
