package trial

import (
	"context"
	"errors"
	"fmt"

	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/quality"
)

// CalibrateOptions say what Calibrate measures.
type CalibrateOptions struct {
	Text    *Text
	Schemes []op.Scheme // whose losses are measured; a32/w32 has none
	// Progress is called after every window that was executed: done of all, and what the next ones are for.
	Progress func(done, all int, what string)
}

// candidate is one loss to be measured.
type candidate struct {
	class  string // or calibration.All
	scheme op.Scheme
}

func (c *candidate) schemeOf(node string) op.Scheme {
	if c.class == calibration.All || c.class == node {
		return c.scheme
	}
	return op.A32W32
}

// calibrating is one run of Calibrate.
type calibrating struct {
	*Model
	o         *CalibrateOptions
	size      int // of windows
	ref       *quality.Reference
	done, all int
	out       calibration.Calibration
}

// Calibrate measures what enters the matrix products of the model in float32, and what each scheme costs in each
// class of weights. The same model, text and machine give the same result.
func Calibrate(ctx context.Context, m *Model, o CalibrateOptions) (_ *calibration.Calibration, err error) {
	windows := o.Text.Windows
	c := &calibrating{Model: m, o: &o, size: len(windows[0].Tokens), out: calibration.Calibration{
		Schema: calibration.Schema,
		Model:  calibration.Model{Name: m.Name, Digest: m.Digest},
		Text:   calibration.Text{SHA256: o.Text.SHA256, Tokens: len(windows) * len(windows[0].Tokens), Windows: len(windows), WindowTokens: len(windows[0].Tokens)},
	}}
	if c.ref, err = quality.NewReference(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.ref.Close()) }()

	var candidates []candidate
	for _, scheme := range o.Schemes {
		for _, class := range append(m.Classes(), calibration.All) {
			candidates = append(candidates, candidate{class, scheme})
		}
	}
	c.all = len(windows) * (2 + len(candidates))
	first, err := c.observe(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, first.Close()) }()
	for _, x := range candidates {
		l, err := c.loss(ctx, x)
		if err != nil {
			return nil, err
		}
		c.out.Losses = append(c.out.Losses, l)
	}
	return &c.out, c.out.Validate()
}

// step tells that a window was executed.
func (c *calibrating) step(what string) {
	c.done++
	if c.o.Progress != nil {
		c.o.Progress(c.done, c.all, what)
	}
}

// observe executes the reference and fills in the activations. The machine holds the float32 weights that all
// others share.
func (c *calibrating) observe(ctx context.Context) (*Machine, error) {
	p, err := c.Plan(c.size, Float32)
	if err != nil {
		return nil, err
	}
	var ranges quality.Ranges
	m, err := c.Open(ctx, p, ranges.Observe)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*Machine, error) { return nil, errors.Join(err, m.Close()) }
	for i, w := range c.o.Text.Windows {
		if err := c.ref.Add(ctx, m.Machine, w); err != nil {
			return fail(fmt.Errorf("window %d: %w", i, err))
		}
		c.step("activations")
	}
	ranges.Again()
	for i, w := range c.o.Text.Windows {
		if err := quality.Execute(ctx, m.Machine, w); err != nil {
			return fail(fmt.Errorf("window %d: %w", i, err))
		}
		c.step("correlations")
	}
	if c.out.Activations, err = ranges.Activations(c.rank()); err != nil {
		return fail(err)
	}
	return m, nil
}

// loss measures one candidate.
func (c *calibrating) loss(ctx context.Context, x candidate) (_ calibration.Loss, err error) {
	fail := func(err error) (calibration.Loss, error) {
		return calibration.Loss{}, fmt.Errorf("%s with %s: %w", x.class, x.scheme, err)
	}
	p, err := c.Plan(c.size, x.schemeOf)
	if err != nil {
		return fail(err)
	}
	m, err := c.Open(ctx, p, nil)
	if err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	var tally quality.Tally
	for i := range c.ref.Windows() {
		if err := c.ref.Compare(ctx, m.Machine, i, c.size, &tally); err != nil {
			return fail(fmt.Errorf("window %d: %w", i, err))
		}
		c.step(fmt.Sprintf("%s with %s", x.class, x.scheme))
	}
	r, err := tally.Result()
	if err != nil {
		return fail(err)
	}
	return calibration.Loss{Class: x.class, Scheme: x.scheme, KL: r.KL.Mean, Low: r.KL.Low, High: r.KL.High, TopAgreement: r.TopAgreement.Mean}, nil
}

// CalibrationBytes is about how large the file of a calibration is, without directions.
func (m *Model) CalibrationBytes() int64 {
	const perEntry, perChannel = 400, 16 // absmax, mean square and fold factor in base64
	entries, channels := m.channels()
	return perEntry*entries + perChannel*channels
}

// channels are those of all activations together, and how many activations there are.
func (m *Model) channels() (entries, channels int64) {
	g := m.Graph()
	for _, s := range g.Sections {
		for _, n := range s.Nodes {
			for _, o := range n.Ops {
				if o.HasScheme() {
					entries += int64(max(1, s.Layers))
					channels += int64(max(1, s.Layers)) * int64(o.K)
				}
			}
		}
	}
	return entries, channels
}

// rank is how many directions the file has room for.
func (m *Model) rank() int {
	const perValue = 8. / 3 // a bfloat16 in base64
	_, channels := m.channels()
	return max(0, int(float64(calibration.MaxBytes-m.CalibrationBytes())/2/perValue/float64(channels)))
}
