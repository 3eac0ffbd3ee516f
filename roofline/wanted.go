package roofline

import (
	"cmp"
	"math"
	"slices"

	"github.com/hetc/hetc/planir/op"
)

// Wanted is an operator whose measurement would narrow predictions, with what is predicted without it.
type Wanted struct {
	Proc      string     `json:"proc"`
	Op        op.Op      `json:"op"`
	Cold      bool       `json:"cold,omitempty"`
	Predicted Prediction `json:"predicted"`
}

// span is the width of the interval: how far apart its ends are, as |log|.
func (w *Wanted) span() float64 {
	return math.Log(float64(w.Predicted.HighNS) / float64(max(1, w.Predicted.LowNS)))
}

// mostWeighed bounds the operators that Wanted chooses among: those with the widest intervals.
const mostWeighed = 40

// Wanted chooses at most that many operators to be measured: among the held-out operators of misses, which show what is
// needed, or among the corners of every matrix product's sizes where these are nil.
//
// It is a greedy choice: the operator is taken that narrows the intervals of all candidates most, supposing that it is
// measured as predicted; then the next one on top of that. It costs the square of the candidates in predictions.
func (c *Costs) Wanted(held []Miss, most int) []Wanted {
	var rest []candidate
	if held == nil {
		rest = c.corners()
	}
	for _, m := range held {
		if x, ok := c.candidate(m.Proc, m.Op, m.Cold); ok {
			rest = append(rest, x)
		}
	}
	rest = slices.DeleteFunc(rest, func(x candidate) bool { return x.Predicted.Source != Bound })
	slices.SortStableFunc(rest, func(x, y candidate) int { return cmp.Compare(y.span(), x.span()) })
	rest = rest[:min(len(rest), mostWeighed)]

	var out []Wanted
	for len(out) < most && len(rest) > 0 {
		best, gain := 0, math.Inf(-1)
		for i := range rest {
			if g := rest[i].gain(rest); g > gain+1e-9 {
				best, gain = i, g
			}
		}
		x := rest[best]
		out = append(out, x.Wanted)
		measured := x.family.with(&x)
		rest = slices.Delete(rest, best, best+1)
		for i := range rest {
			if y := &rest[i]; y.family == x.family {
				y.family = measured
				y.Predicted, _ = measured.predict(y.m, y.a, y.b)
			}
		}
		rest = slices.DeleteFunc(rest, func(x candidate) bool { return x.Predicted.Source != Bound })
	}
	return out
}

// candidate is an operator with its place in its family.
type candidate struct {
	Wanted
	family  *Family
	m, a, b int
}

// candidate finds the family that predicts an operator; false when there is none.
func (c *Costs) candidate(proc string, o op.Op, cold bool) (candidate, bool) {
	x := candidate{Wanted: Wanted{Proc: proc, Op: o, Cold: cold}}
	p, err := c.Op(proc, o, cold)
	if err != nil {
		return x, false
	}
	var want Family
	for _, temperature := range []bool{cold, !cold} {
		want, x.m, x.a, x.b = familyOf(proc, c.priced(proc, o), temperature)
		if x.family = c.look().families[want.Key()]; x.family != nil {
			break
		}
	}
	x.Predicted = p
	return x, x.family != nil
}

// gain is by how much the intervals of others get narrower when x is measured as predicted, its own included.
func (x *candidate) gain(others []candidate) float64 {
	measured := x.family.with(x)
	sum := 0.0
	for i := range others {
		y := &others[i]
		if y.family != x.family {
			continue
		}
		after := Wanted{}
		if after.Predicted, _ = measured.predict(y.m, y.a, y.b); after.span() < y.span() {
			sum += y.span() - after.span()
		}
	}
	return sum
}

// with is the family with a sample more: x, measured as predicted.
func (f *Family) with(x *candidate) *Family {
	g := *f
	g.Curves = slices.Clone(f.Curves)
	at, found := slices.BinarySearchFunc(g.Curves, Curve{A: x.a, B: x.b}, func(p, q Curve) int {
		return cmp.Or(cmp.Compare(p.A, q.A), cmp.Compare(p.B, q.B))
	})
	if !found {
		g.Curves = slices.Insert(g.Curves, at, Curve{A: x.a, B: x.b, OpsPerNS: f.OpsPerNS, BytesPerNS: f.BytesPerNS})
	}
	k := &g.Curves[at]
	ns := x.Predicted.NS
	k.Points = append(slices.Clone(k.Points), [4]int64{int64(x.m), ns, ns, ns})
	slices.SortFunc(k.Points, func(p, q [4]int64) int { return cmp.Compare(p[0], q[0]) })
	k.ready = g.knots(k, nil)
	return &g
}

// corners lists, of every family of matrix products, the least and the greatest rows of every shape that was sampled, and
// of those at the ends of the range of shapes.
func (c *Costs) corners() (out []candidate) {
	for i := range c.Families {
		f := &c.Families[i]
		if !f.matrix() {
			continue
		}
		rows, shapes := f.box()
		for _, shape := range shapes {
			for _, m := range rows {
				if x, ok := c.candidate(f.Proc, f.operator(m, shape[0], shape[1]), f.Cold); ok {
					out = append(out, x)
				}
			}
		}
	}
	return out
}

// box is the least and the greatest number of rows of a family, its shapes, and the corners of their range.
func (f *Family) box() (rows [2]int, shapes [][2]int) {
	least, most := [2]int{math.MaxInt, math.MaxInt}, [2]int{}
	rows[0] = math.MaxInt
	for i := range f.Curves {
		c := &f.Curves[i]
		shapes = append(shapes, [2]int{c.A, c.B})
		for axis, n := range [2]int{c.A, c.B} {
			least[axis], most[axis] = min(least[axis], n), max(most[axis], n)
		}
		rows[0], rows[1] = min(rows[0], int(c.Points[0][0])), max(rows[1], int(c.Points[len(c.Points)-1][0]))
	}
	for _, a := range []int{least[0], most[0]} {
		for _, b := range []int{least[1], most[1]} {
			if !slices.Contains(shapes, [2]int{a, b}) {
				shapes = append(shapes, [2]int{a, b})
			}
		}
	}
	return rows, shapes
}
