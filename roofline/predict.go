package roofline

import (
	"cmp"
	"math"
	"sort"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// boundError is how far off a prediction beyond the samples may be, as |log|, at least.
const boundError = 0.4

// Op predicts one execution of a graph of the operator alone on a processor, launch included. cold asks
// for weights that lie in no cache; where only one of cold and warm was measured near the shape, that
// one answers. An operator that was excluded is an error of class ClassInfeasible; one of a kind that
// was never measured on the processor is an error that says how to measure it.
func (c *Costs) Op(proc string, o op.Op, cold bool) (Prediction, error) {
	if err := o.Validate(); err != nil {
		return Prediction{}, diag.New(diag.ClassInput, "predict on %q: %w", proc, err)
	}
	x := c.look()
	asked := o
	o = c.priced(proc, o)
	for _, key := range []string{asked.Key(), o.Key()} {
		if reason, ok := x.infeasible[proc+" "+key]; ok {
			return Prediction{}, diag.New(diag.ClassInfeasible, "%s is infeasible on processor %q: %s", key, proc, reason).WithCode("costs.infeasible")
		}
	}
	var best Prediction
	rank := -1
	for _, temperature := range []bool{cold, !cold} {
		want, m, a, b := familyOf(proc, o, temperature)
		f := x.families[want.Key()]
		if f == nil {
			continue
		}
		p, covered := f.predict(m, a, b)
		// The wanted temperature counts when it covers M, before the other one that does.
		r := 0
		if covered {
			r = 2
		}
		if temperature == cold {
			r++
		}
		if r > rank {
			best, rank = p, r
		}
	}
	if rank < 0 {
		return Prediction{}, c.missing(proc, asked)
	}
	return best, nil
}

// priced is the operator that answers for o: of a product that was not measured in its own scheme the one in the twin of
// that (see op.Scheme.Twin), and for rows with static scales those with a scale each, which need the
// largest magnitude of a row as well and take at least as long.
func (c *Costs) priced(proc string, o op.Op) op.Op {
	o.Static, o.Scales = false, 0
	if o.Scheme.Twin() == "" || c.measured(proc, o) {
		return o
	}
	twin := o
	if twin.Scheme = o.Scheme.Twin(); c.measured(proc, twin) {
		return twin
	}
	return o
}

// measured reports whether there is a family for an operator.
func (c *Costs) measured(proc string, o op.Op) bool {
	x := c.look()
	for _, cold := range []bool{false, true} {
		if f, _, _, _ := familyOf(proc, o, cold); x.families[f.Key()] != nil {
			return true
		}
	}
	return false
}

// Forms lists the forms besides the default in which a product was measured on a processor, in whatever shapes: of
// convolutions those of its very number of rows. Their order is that of the families' keys.
func (c *Costs) Forms(proc string, o op.Op) (forms []op.Form) {
	if o.Kind != op.MatMul || o.Form != "" {
		return nil
	}
	x := c.look()
	for _, scheme := range []op.Scheme{o.Scheme, o.Scheme.Twin()} {
		for _, f := range x.forms[formed{proc, scheme, o.Bias}] {
			if w, h, ok := f.Image(); !ok || w*h == o.M {
				forms = append(forms, f)
			}
		}
		if forms != nil {
			return forms
		}
	}
	return nil
}

// predict answers within one family; covered is false when m lies beyond the samples of the shape.
func (f *Family) predict(m, a, b int) (p Prediction, covered bool) {
	if c := f.curve(a, b); c != nil {
		i := sort.Search(len(c.Points), func(i int) bool { return c.Points[i][0] >= int64(m) })
		if i < len(c.Points) && c.Points[i][0] == int64(m) {
			x := c.Points[i]
			return Prediction{NS: x[1], LowNS: x[2], HighNS: x[3], Source: Measured}, true
		}
		t, inside := f.along(c, c.ready, m)
		if inside {
			return spread(t, f.ErrM, Interpolated), true
		}
		return f.beyond(t, max(2*f.ErrM, boundError), m, a, b), false
	}
	t, inside, around := f.across(m, a, b, nil)
	covered = f.covers(m)
	if inside && around {
		return spread(t, max(f.ErrShape, f.ErrM), Interpolated), true
	}
	return f.beyond(t, max(2*f.ErrShape, boundError), m, a, b), covered
}

// beyond is a prediction where there are no samples around. t is the roofline's time, e its error as |log|. The interval is
// widened to what the samples do not exclude (see envelope).
func (f *Family) beyond(t, e float64, m, a, b int) Prediction {
	low, high := f.envelope(m, a, b)
	p := spread(t, e, Bound)
	p.LowNS, p.HighNS = min(p.LowNS, ns(low)), max(p.HighNS, ns(high))
	return p
}

// envelope bounds the time of a shape by every sample of the family, with no model: a larger operator takes no less time
// than a smaller one, and no more than the smaller ones that it can be cut into.
func (f *Family) envelope(m, a, b int) (low, high float64) {
	high = math.Inf(1)
	for i := range f.Curves {
		c := &f.Curves[i]
		up, down := pieces(a, c.A)*pieces(b, c.B), pieces(c.A, a)*pieces(c.B, b)
		for _, p := range c.Points {
			low = max(low, float64(p[1])/(down*pieces(int(p[0]), m)))
			high = min(high, float64(p[1])*up*pieces(m, int(p[0])))
		}
	}
	return low, high
}

// pieces is how many pieces of the size part cover whole. An axis that the family does not have counts once.
func pieces(whole, part int) float64 {
	if part < 1 || whole <= part {
		return 1
	}
	return float64((whole + part - 1) / part)
}

// covers reports whether some curve was sampled on both sides of m.
func (f *Family) covers(m int) bool {
	for i := range f.Curves {
		p := f.Curves[i].Points
		if p[0][0] <= int64(m) && int64(m) <= p[len(p)-1][0] {
			return true
		}
	}
	return false
}

func spread(t, e float64, s Source) Prediction {
	return Prediction{NS: max(ns(t), 1), LowNS: max(ns(t*math.Exp(-e)), 0), HighNS: max(ns(t*math.Exp(e)), 1), Source: s}
}

// MeasuredRows lists the numbers of rows at which the shape of an operator was measured on a processor, ascending.
func (c *Costs) MeasuredRows(proc string, o op.Op, cold bool) (rows []int) {
	want, _, a, b := familyOf(proc, c.priced(proc, o), cold)
	f := c.look().families[want.Key()]
	if f == nil {
		return nil
	}
	for i := range f.Curves {
		if f.Curves[i].A == a && f.Curves[i].B == b {
			for _, p := range f.Curves[i].Points {
				rows = append(rows, int(p[0]))
			}
		}
	}
	return rows
}

func (c *Costs) missing(proc string, o op.Op) error {
	p := c.look().processors[proc]
	if p == nil {
		var have []string
		for i := range c.Processors {
			have = append(have, c.Processors[i].Name)
		}
		return diag.New(diag.ClassInput, "predict %s: the costs of SoC %q know no processor %q", o.Key(), c.SoC, proc).
			WithCode("costs.processor").WithHint("they know %s", cmp.Or(strings.Join(have, ", "), "none"))
	}
	what := "operator " + string(o.Kind)
	if o.Batch {
		what += " of a batch"
	}
	if o.Scheme != "" {
		what += " in scheme " + string(o.Scheme)
	}
	return diag.New(diag.ClassInput, "predict %s on processor %q: %s was never measured there", o.Key(), proc, what).
		WithCode("costs.missing").
		WithHint("measure it: hetc profile --soc SOC --model MODEL --workload WORKLOAD -o rec.jsonl --resume, with a workload that permits the scheme; then hetc fit, or solve with --record rec.jsonl")
}

// Exclude declares that a processor cannot execute an operator, for the reason its compiler gave. Only this
// very shape is excluded: feasibility is not monotone.
func (c *Costs) Exclude(proc string, o op.Op, reason string) {
	x := c.look()
	key := o.Key()
	if _, ok := x.infeasible[proc+" "+key]; ok {
		return
	}
	x.infeasible[proc+" "+key] = reason
	c.Infeasible = append(c.Infeasible, Infeasible{Proc: proc, Key: key, Reason: reason})
	sort.Slice(c.Infeasible, func(i, j int) bool {
		a, b := c.Infeasible[i], c.Infeasible[j]
		return a.Proc < b.Proc || a.Proc == b.Proc && a.Key < b.Key
	})
}

// Launch is the time of launching one graph on a processor, in nanoseconds. It is part of every Op, so a
// graph of n operators takes the sum of their times less n-1 launches.
func (c *Costs) Launch(proc string) (Prediction, error) {
	p := c.look().processors[proc]
	if p == nil {
		return Prediction{}, diag.New(diag.ClassInput, "launch: the costs of SoC %q know no processor %q", c.SoC, proc).WithCode("costs.processor")
	}
	t := ns(p.LaunchNS)
	return Prediction{NS: t, LowNS: t, HighNS: t, Source: p.LaunchSource}, nil
}

// Load is the time of loading a graph with that many bytes of weights; Bound and 0 where nothing was measured.
func (c *Costs) Load(proc string, bytes int64) Prediction {
	p := c.look().processors[proc]
	if p == nil || p.LoadNS == 0 && p.LoadNSPerMB == 0 {
		return Prediction{Source: Bound}
	}
	t := p.LoadNS + float64(p.LoadNSPerMB*(float64(bytes)/1e6))
	return spread(t, boundError, Interpolated)
}

// Sync is the time from a processor setting a flag to another one seeing it; false when nothing is known.
func (c *Costs) Sync(from, to string) (Prediction, bool) {
	if from == to {
		return Prediction{Source: Bound}, true
	}
	for _, h := range c.Handovers {
		if h.From == from && h.To == to {
			return Prediction{NS: h.NS, LowNS: h.LowNS, HighNS: h.HighNS, Source: h.Source}, true
		}
	}
	return Prediction{}, false
}

// Copy is the time of copying bytes from one processor's memory to another's; false when nothing is
// known. Between and beyond measured sizes time grows linearly.
func (c *Costs) Copy(from, to string, bytes int64) (Prediction, bool) {
	for i := range c.Copies {
		k := &c.Copies[i]
		if k.From != from || k.To != to {
			continue
		}
		n := sort.Search(len(k.Points), func(i int) bool { return k.Points[i][0] >= bytes })
		if n < len(k.Points) && k.Points[n][0] == bytes {
			t := k.Points[n][1]
			return Prediction{NS: t, LowNS: t, HighNS: t, Source: k.Source}, true
		}
		source, e := Interpolated, 0.1
		if k.Source == Bound || n == 0 || n == len(k.Points) {
			source, e = Bound, boundError
		}
		return spread(k.line(n, bytes), e, source), true
	}
	return Prediction{}, false
}

// line is the time of a copy on the line through the two sizes around n.
func (k *Copy) line(n int, bytes int64) float64 {
	if len(k.Points) == 1 {
		return float64(k.Points[0][1]) * max(float64(bytes)/float64(k.Points[0][0]), 1)
	}
	n = min(max(n, 1), len(k.Points)-1)
	a, b := k.Points[n-1], k.Points[n]
	t := float64(bytes-a[0]) / float64(b[0]-a[0])
	return max(float64(a[1])+float64(t*float64(b[1]-a[1])), 0)
}
