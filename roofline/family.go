package roofline

import (
	"cmp"
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
		Block: pattern.Block, Density: pattern.Density, Channels: pattern.Channels,
	}
	rows, along, across = operator.Extent()
	return family, rows, along, across
}

// operator returns the inverse of familyOf.
func (f *Family) operator(rows, along, across int) op.Op {
	pattern := op.Op{
		Kind: f.Kind, Scheme: f.Scheme, Bias: f.Bias, Form: f.Form, Table: f.Table, Act: f.Act,
		Experts: f.Experts, Fan: f.Fan, Spread: f.Spread, Router: f.Router,
		Heads: f.Group, HeadDim: f.HeadDim, Joint: f.Joint, RotaryDim: f.Rotary,
		KV: f.KV, Window: f.Window, Batch: f.Batch, Block: f.Block, Density: f.Density,
		Channels: f.Channels,
	}
	if f.Capped {
		pattern.Cap = 1
	}
	return pattern.Scaled(rows, along, across)
}

// matrix reports whether the family multiplies by weights in a scheme.
func (f *Family) matrix() bool { return op.Op{Kind: f.Kind}.HasScheme() }

// work returns the arithmetic and traffic of the operator at (rows, along, across), with its dimensions rounded up to
// step.
func (f *Family) work(rows, along, across int, step [3]int) (ops, bytes float64) {
	along, across = op.RoundUp(along, step[1]), op.RoundUp(across, step[2])
	if f.Kind != op.ExpertMatMul {
		rounded := f.operator(op.RoundUp(rows, step[0]), along, across)
		return float64(rounded.Flops()), float64(rounded.Bytes())
	}
	// Weights are read once per expert in use, however its rows are rounded up.
	rounded := f.operator(rows, along, across)
	more := float64(f.rows(rows, step[0])) / float64(rounded.Rows())
	weights := float64(f.busy(rows)) * float64(op.WeightBytes(f.Scheme.Weight(), along, across))
	return float64(rounded.Flops()) * more, weights + (float64(rounded.Bytes())-weights)*more
}

// busy returns the number of experts that compute something for that many tokens.
func (f *Family) busy(tokens int) int { return min(tokens*f.Fan, f.Experts) }

// rows returns how many rows are computed for that many tokens on a processor that computes step of them at once. Rows
// of several experts are spread over them evenly (as they are measured), and rounded up for each.
func (f *Family) rows(tokens, step int) int {
	if f.Kind != op.ExpertMatMul {
		return op.RoundUp(tokens, step)
	}
	experts := f.busy(tokens)
	each, more := tokens*f.Fan/experts, tokens*f.Fan%experts
	return (experts-more)*op.RoundUp(each, step) + more*op.RoundUp(each+1, step)
}

// powerMean is (x^p + y^p)^(1/p) with p the sharpness, without overflow.
func powerMean(x, y, sharpness float64) float64 {
	hi, lo := max(x, y), min(x, y)
	if hi == 0 || lo == 0 || sharpness >= maxSharpness {
		return hi
	}
	if sharpness == 1 {
		return hi + lo
	}
	ratio := lo / hi
	switch sharpness { // the forms that are tried
	case 2:
		return hi * math.Sqrt(1+ratio*ratio)
	case 4:
		return hi * math.Sqrt(math.Sqrt(1+ratio*ratio*ratio*ratio))
	}
	return hi * math.Pow(1+math.Pow(ratio, sharpness), 1/sharpness)
}

// roofline returns the family's roofline with the given rates, ns.
func (f *Family) roofline(rows, along, across int, ops, bytes float64) float64 {
	work, traffic := f.work(rows, along, across, f.Step)
	return f.SetupNS + powerMean(work/ops, traffic/bytes, f.Sharpness)
}

// knot is a sample on a curve: its position and the ratio of its time to the roofline's.
type knot struct {
	position  float64 // log of the rows
	rows      int     // rows computed: M rounded up
	residual  float64 // log(measured/roofline)
	ns        float64
	deviation float64 // uncertainty of the residual, from the interval of the median
}

// knots returns the samples of a curve at distinct rounded M, without the points where skip is true.
func (f *Family) knots(curve *Curve, skip func(i int) bool) []knot {
	var out []knot
	for i, point := range curve.Points {
		if skip != nil && skip(i) {
			continue
		}
		computed := f.rows(int(point[0]), f.Step[0])
		ns := float64(point[1])
		k := knot{position: math.Log(float64(computed)), rows: computed, ns: ns,
			residual: math.Log(ns / f.roofline(int(point[0]), curve.A, curve.B, curve.OpsPerNS, curve.BytesPerNS))}
		if point[2] > 0 {
			k.deviation = math.Log(float64(point[3])/float64(point[2])) / (2 * 1.96)
		}
		if count := len(out); count > 0 && out[count-1].rows == computed { // one step: their mean
			out[count-1].residual = (out[count-1].residual + k.residual) / 2
			out[count-1].ns = math.Sqrt(out[count-1].ns * k.ns)
			out[count-1].deviation = math.Hypot(out[count-1].deviation, k.deviation) / 2
			continue
		}
		out = append(out, k)
	}
	return f.smoothed(curve, out)
}

// smoothed moves uncertain knots towards the line between their neighbours, as far as their uncertainty exceeds the
// usual deviation from the roofline. Precise knots stay where they are.
func (f *Family) smoothed(curve *Curve, knots []knot) []knot {
	const usual = 0.05
	out := slices.Clone(knots)
	for i, knot := range knots {
		var expected float64
		switch {
		case len(knots) == 1:
			continue
		case i == 0:
			expected = knots[1].residual
		case i == len(knots)-1:
			expected = knots[i-1].residual
		default:
			low, high := knots[i-1], knots[i+1]
			expected = low.residual + (high.residual-low.residual)*(knot.position-low.position)/(high.position-low.position)
		}
		weight := knot.deviation * knot.deviation / (knot.deviation*knot.deviation + usual*usual)
		out[i].residual = knot.residual + weight*(expected-knot.residual)
		out[i].ns = knot.ns * math.Exp(out[i].residual-knot.residual)
	}
	return out
}

// onCurve predicts the curve at some rows from knots: the roofline times the ratio at the neighbouring knots,
// interpolated in the log of the rows and kept between the neighbours' times. inside is false beyond the knots.
func (f *Family) onCurve(curve *Curve, knots []knot, rows int) (ns float64, inside bool) {
	roof := f.roofline(rows, curve.A, curve.B, curve.OpsPerNS, curve.BytesPerNS)
	if len(knots) == 0 {
		return roof, false
	}
	computed := f.rows(rows, f.Step[0])
	i := sort.Search(len(knots), func(i int) bool { return knots[i].rows >= computed })
	switch {
	case i < len(knots) && knots[i].rows == computed:
		return knots[i].ns, true
	case i == 0:
		return roof * math.Exp(knots[0].residual), false
	case i == len(knots):
		return roof * math.Exp(knots[i-1].residual), false
	}
	low, high := knots[i-1], knots[i]
	share := (math.Log(float64(computed)) - low.position) / (high.position - low.position)
	ns = roof * math.Exp(low.residual+(high.residual-low.residual)*share)
	return min(max(ns, min(low.ns, high.ns)), max(low.ns, high.ns)), true
}

// curve returns the curve of (along, across), nil when there is none.
func (f *Family) curve(along, across int) *Curve {
	want := Curve{A: along, B: across}
	i := sort.Search(len(f.Curves), func(i int) bool { return !less(f.Curves[i], want) })
	if i < len(f.Curves) && f.Curves[i].A == along && f.Curves[i].B == across {
		return &f.Curves[i]
	}
	return nil
}

// position returns where a curve lies among shapes, rounded up to the step.
func (f *Family) position(curve *Curve) [2]int {
	return [2]int{op.RoundUp(curve.A, f.Step[1]), op.RoundUp(curve.B, f.Step[2])}
}

// enclosing returns the nearest curves on both sides of a position along one axis that agree with it on the other one.
func (f *Family) enclosing(at [2]int, axis int, skip *Curve) (low, high *Curve) {
	for i := range f.Curves {
		curve := &f.Curves[i]
		position := f.position(curve)
		if curve == skip || position[1-axis] != at[1-axis] {
			continue
		}
		if position[axis] <= at[axis] && (low == nil || position[axis] > f.position(low)[axis]) {
			low = curve
		}
		if position[axis] >= at[axis] && (high == nil || position[axis] < f.position(high)[axis]) {
			high = curve
		}
	}
	return low, high
}

// distance returns how far apart two sizes are, as |log|.
func distance(x, y int) float64 { return math.Abs(math.Log(float64(max(x, 1)) / float64(max(y, 1)))) }

// nearestCurves is how many curves predict a shape that no two curves enclose.
const nearestCurves = 4

// ofShape predicts a shape that has no curve, from all curves but skip: the family's roofline times the ratio on
// neighbouring curves at the same M. Between two curves that share a size it interpolates in the logarithm of the other
// size. Otherwise it takes the nearest curves, weighted by their inverse distance. inside is true in the first case;
// around is true if, in addition, the two curves have samples on both sides of the rows.
func (f *Family) ofShape(rows, along, across int, skip *Curve) (ns float64, inside, around bool) {
	around = true
	residual := func(curve *Curve) float64 {
		ns, within := f.onCurve(curve, curve.ready, rows)
		around = around && within
		return math.Log(ns / f.roofline(rows, curve.A, curve.B, f.OpsPerNS, f.BytesPerNS))
	}
	roof := f.roofline(rows, along, across, f.OpsPerNS, f.BytesPerNS)
	at := f.position(&Curve{A: along, B: across})
	for _, axis := range []int{1, 0} {
		low, high := f.enclosing(at, axis, skip)
		if low == nil || high == nil {
			continue
		}
		from, to := f.position(low)[axis], f.position(high)[axis]
		if from == to {
			return roof * math.Exp(residual(low)), true, around
		}
		share := distance(at[axis], from) / distance(to, from)
		left := residual(low)*(1-share) + residual(high)*share
		return roof * math.Exp(left), true, around
	}
	type neighbour struct {
		curve    *Curve
		distance float64
	}
	var all []neighbour
	for i := range f.Curves {
		if curve := &f.Curves[i]; curve != skip {
			position := f.position(curve)
			all = append(all, neighbour{curve, distance(at[0], position[0]) + distance(at[1], position[1])})
		}
	}
	slices.SortStableFunc(all, func(a, b neighbour) int { return cmp.Compare(a.distance, b.distance) })
	sum, total := 0.0, 0.0
	for _, near := range all[:min(len(all), nearestCurves)] {
		weight := 1 / (near.distance*near.distance + 1e-6)
		sum, total = sum+weight*residual(near.curve), total+weight
	}
	if total == 0 {
		return roof, false, false
	}
	return roof * math.Exp(sum/total), false, false
}

// evident is the ratio of reading to computing time from which on an operator's samples show how fast it reads. Below
// it the rate of reading is not determined, and may only compensate what a fit leaves over.
const evident = 1.1

// prepare computes the knots of all curves.
func (f *Family) prepare() {
	f.reads = false
	for i := range f.Curves {
		curve := &f.Curves[i]
		curve.ready = f.knots(curve, nil)
		for _, point := range curve.Points {
			work, traffic := f.work(int(point[0]), curve.A, curve.B, f.Step)
			f.reads = f.reads || traffic/curve.BytesPerNS >= evident*work/curve.OpsPerNS
		}
	}
}
