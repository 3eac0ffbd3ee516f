package roofline

import (
	"math"
	"slices"
	"sort"

	"github.com/hetc/hetc/planir/op"
)

// maxSharpness is the p that counts as taking the larger of compute and memory time.
const maxSharpness = 64

// familyOf returns the family (without numbers) an operator belongs to and its position in it, see op.Op.Extent.
func familyOf(proc string, operator op.Op, cold bool) (family Family, rows, along, across int) {
	pattern := operator.Pattern()
	family = Family{
		Proc: proc, Kind: pattern.Kind, Cold: cold,
		Scheme: pattern.Scheme, Bias: pattern.Bias, Form: pattern.Form, Table: pattern.Table, Act: pattern.Act,
		Experts: pattern.Experts, Fan: pattern.Fan, Spread: pattern.Spread, Router: pattern.Router,
		Group: pattern.Heads, HeadDim: pattern.HeadDim, Joint: pattern.Joint, Rotary: pattern.RotaryDim,
		KV: pattern.KV, Window: pattern.Window, Capped: pattern.Cap > 0, Batch: pattern.Batch,
	}
	rows, along, across = operator.Extent()
	return family, rows, along, across
}

// operator is the inverse of familyOf.
func (f *Family) operator(rows, along, across int) op.Op {
	pattern := op.Op{
		Kind: f.Kind, Scheme: f.Scheme, Bias: f.Bias, Form: f.Form, Table: f.Table, Act: f.Act,
		Experts: f.Experts, Fan: f.Fan, Spread: f.Spread, Router: f.Router,
		Heads: f.Group, HeadDim: f.HeadDim, Joint: f.Joint, RotaryDim: f.Rotary,
		KV: f.KV, Window: f.Window, Batch: f.Batch,
	}
	if f.Capped {
		pattern.Cap = 1
	}
	return pattern.Scaled(rows, along, across)
}

// matrix reports whether the family multiplies by weights in a scheme.
func (f *Family) matrix() bool { return op.Op{Kind: f.Kind}.HasScheme() }

// size is work and traffic of the operator at (m, a, b) with its dimensions rounded up to step.
func (f *Family) size(m, a, b int, step [3]int) (ops, bytes float64) {
	a, b = roundUp(a, step[1]), roundUp(b, step[2])
	if f.Kind != op.ExpertMatMul {
		o := f.operator(roundUp(m, step[0]), a, b)
		return float64(o.Flops()), float64(o.Bytes())
	}
	// Weights are read once per expert in use, however its rows are rounded up.
	o := f.operator(m, a, b)
	more := float64(f.rows(m, step[0])) / float64(o.Rows())
	weights := float64(f.busy(m)) * float64(op.WeightBytes(f.Scheme.Weight(), a, b))
	return float64(o.Flops()) * more, weights + (float64(o.Bytes())-weights)*more
}

// busy is the number of experts that compute something for m tokens.
func (f *Family) busy(m int) int { return min(m*f.Fan, f.Experts) }

// rows is how many rows are computed for m tokens on a processor that computes step of them at once. Rows
// of several experts are spread over them evenly (as they are measured), and rounded up for each.
func (f *Family) rows(m, step int) int {
	if f.Kind != op.ExpertMatMul {
		return roundUp(m, step)
	}
	n := f.busy(m)
	each, more := m*f.Fan/n, m*f.Fan%n
	return (n-more)*roundUp(each, step) + more*roundUp(each+1, step)
}

func roundUp(v, step int) int {
	if step < 2 || v == 0 {
		return v
	}
	return (v + step - 1) / step * step
}

// norm is (x^p + y^p)^(1/p), without overflow.
func norm(x, y, p float64) float64 {
	hi, lo := max(x, y), min(x, y)
	if hi == 0 || lo == 0 || p >= maxSharpness {
		return hi
	}
	if p == 1 {
		return hi + lo
	}
	r := lo / hi
	switch p { // the forms that are tried
	case 2:
		return hi * math.Sqrt(1+r*r)
	case 4:
		return hi * math.Sqrt(math.Sqrt(1+r*r*r*r))
	}
	return hi * math.Pow(1+math.Pow(r, p), 1/p)
}

// roof is the family's roofline with the given rates, ns.
func (f *Family) roof(m, a, b int, ops, bytes float64) float64 {
	w, q := f.size(m, a, b, f.Step)
	return f.SetupNS + norm(w/ops, q/bytes, f.Sharpness)
}

// knot is a sample on a curve: its position and what the roofline leaves over.
type knot struct {
	x  float64 // log of m
	m  int     // rows computed: M rounded up
	r  float64 // log(measured/roofline)
	ns float64
	sd float64 // uncertainty of r, from the interval of the median
}

// knots returns the samples of a curve at distinct rounded M, without the points where skip is true.
func (f *Family) knots(c *Curve, skip func(i int) bool) []knot {
	var out []knot
	for i, p := range c.Points {
		if skip != nil && skip(i) {
			continue
		}
		m := f.rows(int(p[0]), f.Step[0])
		ns := float64(p[1])
		k := knot{x: math.Log(float64(m)), m: m, ns: ns, r: math.Log(ns / f.roof(int(p[0]), c.A, c.B, c.OpsPerNS, c.BytesPerNS))}
		if p[2] > 0 {
			k.sd = math.Log(float64(p[3])/float64(p[2])) / (2 * 1.96)
		}
		if n := len(out); n > 0 && out[n-1].m == m { // one step: their mean
			out[n-1].r = (out[n-1].r + k.r) / 2
			out[n-1].ns = math.Sqrt(out[n-1].ns * k.ns)
			out[n-1].sd = math.Hypot(out[n-1].sd, k.sd) / 2
			continue
		}
		out = append(out, k)
	}
	return f.calm(c, out)
}

// calm moves uncertain knots towards what their neighbours say, as far as their uncertainty exceeds what the
// roofline usually leaves over. Precise knots stay where they are.
func (f *Family) calm(c *Curve, knots []knot) []knot {
	const usual = 0.05
	out := slices.Clone(knots)
	for i, k := range knots {
		var r float64
		switch {
		case len(knots) == 1:
			continue
		case i == 0:
			r = knots[1].r
		case i == len(knots)-1:
			r = knots[i-1].r
		default:
			l, h := knots[i-1], knots[i+1]
			r = l.r + (h.r-l.r)*(k.x-l.x)/(h.x-l.x)
		}
		w := k.sd * k.sd / (k.sd*k.sd + usual*usual)
		out[i].r = k.r + w*(r-k.r)
		out[i].ns = k.ns * math.Exp(out[i].r-k.r)
	}
	return out
}

// along predicts the curve at m from knots: the roofline times what it leaves over at the neighbours,
// interpolated in the log of the rows and kept between the neighbours' times. inside is false beyond the knots.
func (f *Family) along(c *Curve, knots []knot, m int) (ns float64, inside bool) {
	roof := f.roof(m, c.A, c.B, c.OpsPerNS, c.BytesPerNS)
	if len(knots) == 0 {
		return roof, false
	}
	mm := f.rows(m, f.Step[0])
	i := sort.Search(len(knots), func(i int) bool { return knots[i].m >= mm })
	switch {
	case i < len(knots) && knots[i].m == mm:
		return knots[i].ns, true
	case i == 0:
		return roof * math.Exp(knots[0].r), false
	case i == len(knots):
		return roof * math.Exp(knots[i-1].r), false
	}
	l, h := knots[i-1], knots[i]
	t := (math.Log(float64(mm)) - l.x) / (h.x - l.x)
	ns = roof * math.Exp(l.r+(h.r-l.r)*t)
	return min(max(ns, min(l.ns, h.ns)), max(l.ns, h.ns)), true
}

// curve returns the curve of (a, b), nil when there is none.
func (f *Family) curve(a, b int) *Curve {
	want := Curve{A: a, B: b}
	i := sort.Search(len(f.Curves), func(i int) bool { return !less(f.Curves[i], want) })
	if i < len(f.Curves) && f.Curves[i].A == a && f.Curves[i].B == b {
		return &f.Curves[i]
	}
	return nil
}

// across predicts a shape that has no curve from the curves that skip does not hide: the family's roofline
// times what it leaves over on neighbouring curves at the same M. Between two curves of one a (or
// one b) that is interpolated in the logarithm of the other axis; else the nearest curves count by
// their distance. inside is true in the first case; around, when the two curves also have samples on both sides of m.
func (f *Family) across(m, a, b int, skip *Curve) (ns float64, inside, around bool) {
	type near struct {
		c    *Curve
		dist float64
	}
	around = true
	over := func(c *Curve) float64 {
		t, within := f.along(c, c.ready, m)
		around = around && within
		return math.Log(t / f.roof(m, c.A, c.B, f.OpsPerNS, f.BytesPerNS))
	}
	dist := func(x, y int) float64 { return math.Abs(math.Log(float64(max(x, 1)) / float64(max(y, 1)))) }
	roof := f.roof(m, a, b, f.OpsPerNS, f.BytesPerNS)
	a, b = roundUp(a, f.Step[1]), roundUp(b, f.Step[2])
	atA := func(c *Curve) int { return roundUp(c.A, f.Step[1]) }
	atB := func(c *Curve) int { return roundUp(c.B, f.Step[2]) }
	between := func(on func(*Curve) bool, at func(*Curve) int, v int) (float64, bool) {
		var lo, hi *Curve
		for i := range f.Curves {
			c := &f.Curves[i]
			if c == skip || !on(c) {
				continue
			}
			if at(c) <= v && (lo == nil || at(c) > at(lo)) {
				lo = c
			}
			if at(c) >= v && (hi == nil || at(c) < at(hi)) {
				hi = c
			}
		}
		if lo == nil || hi == nil {
			return 0, false
		}
		if at(lo) == at(hi) {
			return over(lo), true
		}
		t := dist(v, at(lo)) / dist(at(hi), at(lo))
		return over(lo)*(1-t) + over(hi)*t, true
	}
	if r, ok := between(func(c *Curve) bool { return atA(c) == a }, atB, b); ok {
		return roof * math.Exp(r), true, around
	}
	if r, ok := between(func(c *Curve) bool { return atB(c) == b }, atA, a); ok {
		return roof * math.Exp(r), true, around
	}
	var all []near
	for i := range f.Curves {
		if c := &f.Curves[i]; c != skip {
			all = append(all, near{c: c, dist: dist(a, atA(c)) + dist(b, atB(c))})
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].dist < all[j].dist })
	sum, weight := 0.0, 0.0
	for _, n := range all[:min(len(all), 4)] {
		w := 1 / (n.dist*n.dist + 1e-6)
		sum, weight = sum+w*over(n.c), weight+w
	}
	if weight == 0 {
		return roof, false, false
	}
	return roof * math.Exp(sum/weight), false, false
}

// evident is how many times as long as it computes an operator must read for its samples to tell how long it reads. With less, a rate of
// reading that nothing determines may only make up for what a fit leaves over.
const evident = 1.1

// prepare computes the knots of all curves.
func (f *Family) prepare() {
	f.reads = false
	for i := range f.Curves {
		k := &f.Curves[i]
		k.ready = f.knots(k, nil)
		for _, p := range k.Points {
			w, q := f.size(int(p[0]), k.A, k.B, f.Step)
			f.reads = f.reads || q/k.BytesPerNS >= evident*w/k.OpsPerNS
		}
	}
}
