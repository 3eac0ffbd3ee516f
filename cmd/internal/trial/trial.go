// Package trial knows how a model is executed to see what it computes rather than how fast: as the
// trivial plan on this machine's cores, each class of weights in a chosen scheme.
package trial

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/cmd/internal/machine"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/emit"
	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
)

// Model is a model with weights and the processor that executes it: all cores of this machine.
type Model struct {
	*models.Model
	digest string
	proc   planir.Proc
	first  *emit.Content // other contents take the packed weights from it that they share with it
}

// Open finds the processor for a model with weights, which stays the caller's to close after this one.
func Open(ctx context.Context, m *models.Model) (*Model, error) {
	digest, err := m.Digest()
	if err != nil {
		return nil, err
	}
	d := host.New()
	devices, err := d.Devices(ctx)
	if err != nil {
		return nil, err
	}
	all := devices[len(devices)-1] // the widest range
	p, err := d.Open(ctx, driver.Config{Select: all.Select})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	c := p.Capabilities()
	proc := planir.Proc{
		Name: "host", Kind: "cpu", Driver: d.Name(), Select: all.Select, Cores: c.Cores, Schemes: c.Schemes, TileN: c.TileN, TileK: c.TileK,
		DynamicRows: c.DynamicRows, StridedOutput: c.StridedOutput, StridedInput: c.StridedInput, WeightRanges: c.WeightRanges,
	}
	for scheme, layout := range c.Layouts {
		if slices.ContainsFunc(c.Schemes, func(s op.Scheme) bool { return s.Weight() == scheme }) {
			proc.Layouts = append(proc.Layouts, planir.Layout{Scheme: scheme, Layout: layout})
		}
	}
	slices.SortFunc(proc.Layouts, func(a, b planir.Layout) int { return strings.Compare(a.Scheme, b.Scheme) })
	return &Model{Model: m, digest: digest, proc: proc}, nil
}

// Plan is the trivial plan for windows of tokens at once and one by one.
func (m *Model) Plan(window int, schemeOf func(node string) op.Scheme) (*planir.Plan, error) {
	g := m.Graph()
	p := &planir.Plan{
		Schema: planir.Schema, Model: planir.ModelRef{Name: m.Name, Digest: m.digest, EOS: m.EOS, BOS: m.BOS},
		SoC: planir.SoCRef{Name: "trial", Control: m.proc.Name}, MaxContext: window, KV: op.F32, Procs: []planir.Proc{m.proc},
	}
	var err error
	p.Decisions, err = lower.Trivial(&g, m.proc.Name, []int{1, window}, window, p.KV, func(node string, _ int) op.Scheme { return schemeOf(node) })
	if err != nil {
		return nil, err
	}
	if err := lower.Lower(p, &g); err != nil {
		return nil, err
	}
	return p, planir.Check(p).Err()
}

// Float32 is the scheme of every node in a reference.
func Float32(string) op.Scheme { return op.A32W32 }

// Machine is a plan with its weights in memory.
type Machine struct {
	*executor.Machine
	content *emit.Content
}

// Open loads a plan of the model. Weights that the first plan opened packs equally are taken from it: it is
// closed last.
func (m *Model) Open(ctx context.Context, p *planir.Plan, drivers []driver.Driver, compilers []driver.Compiler, observe func(executor.Observed)) (*Machine, error) {
	c, err := emit.NewContent(ctx, p, m.Model, append(compilers, hostcompiler.New()))
	if err != nil {
		return nil, err
	}
	if m.first == nil {
		m.first = c
	} else {
		c.ShareWith(m.first)
	}
	if err := runcmd.EnoughMemory([]*planir.Plan{p}, runcmd.WeightBytes(p), machine.FreeMemory()); err != nil {
		return nil, fmt.Errorf("execute plan: %w", err)
	}
	x, err := executor.Open(ctx, p, runcmd.UntilDone(ctx, c), executor.Options{Drivers: append(drivers, host.New()), Observe: observe})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &Machine{x, c}, nil
}

// Close releases lanes and weights.
func (m *Machine) Close() error { return errors.Join(m.Machine.Close(), m.content.Close()) }

// Classes are the nodes whose precision is a choice, in the order of execution.
func (m *Model) Classes() []string {
	var out []string
	g := m.Graph()
	for _, s := range g.Sections {
		for _, n := range s.Nodes {
			name := s.Name + "." + n.Name
			if !n.Exact && slices.ContainsFunc(n.Ops, op.Op.HasScheme) && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	return out
}

var errNoTokenizer = diag.New(diag.ClassInput, "model has no tokenizer")
