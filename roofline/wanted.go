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

// span returns the width of the interval: how far apart its ends are, as |log|.
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
	for _, miss := range held {
		if listed, ok := c.candidate(miss.Proc, miss.Op, miss.Cold); ok {
			rest = append(rest, listed)
		}
	}
	rest = slices.DeleteFunc(rest, func(x candidate) bool { return !x.Predicted.Source.Weak() })
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
		chosen := rest[best]
		out = append(out, chosen.Wanted)
		measured := chosen.family.with(&chosen)
		rest = slices.Delete(rest, best, best+1)
		for i := range rest {
			if left := &rest[i]; left.family == chosen.family {
				left.family = measured
				left.Predicted, _ = measured.predict(left.rows, left.along, left.across)
			}
		}
		rest = slices.DeleteFunc(rest, func(x candidate) bool { return !x.Predicted.Source.Weak() })
	}
	return out
}

// candidate is an operator with its place in its family.
type candidate struct {
	Wanted
	family              *Family
	rows, along, across int
}

// candidate finds the family that predicts an operator; false when there is none.
func (c *Costs) candidate(proc string, operator op.Op, cold bool) (candidate, bool) {
	found := candidate{Wanted: Wanted{Proc: proc, Op: operator, Cold: cold}}
	predicted, err := c.Op(proc, operator, cold)
	if err != nil {
		return found, false
	}
	var want Family
	for _, temperature := range []bool{cold, !cold} {
		want, found.rows, found.along, found.across = familyOf(proc, c.priced(proc, operator), temperature)
		if found.family = c.look().families[want.key()]; found.family != nil {
			break
		}
	}
	found.Predicted = predicted
	return found, found.family != nil
}

// gain is by how much the intervals of others get narrower when x is measured as predicted, its own included.
func (x *candidate) gain(others []candidate) float64 {
	measured := x.family.with(x)
	sum := 0.0
	for i := range others {
		other := &others[i]
		if other.family != x.family {
			continue
		}
		after := Wanted{}
		if after.Predicted, _ = measured.predict(other.rows, other.along, other.across); after.span() < other.span() {
			sum += other.span() - after.span()
		}
	}
	return sum
}

// with returns the family with a sample more: x, measured as predicted.
func (f *Family) with(added *candidate) *Family {
	extended := *f
	extended.Curves = slices.Clone(f.Curves)
	at, found := slices.BinarySearchFunc(extended.Curves, Curve{A: added.along, B: added.across}, func(p, q Curve) int {
		return cmp.Or(cmp.Compare(p.A, q.A), cmp.Compare(p.B, q.B))
	})
	if !found {
		extended.Curves = slices.Insert(extended.Curves, at,
			Curve{A: added.along, B: added.across, OpsPerNS: f.OpsPerNS, BytesPerNS: f.BytesPerNS})
	}
	curve := &extended.Curves[at]
	ns := added.Predicted.NS
	curve.Points = append(slices.Clone(curve.Points), [4]int64{int64(added.rows), ns, ns, ns})
	slices.SortFunc(curve.Points, func(p, q [4]int64) int { return cmp.Compare(p[0], q[0]) })
	curve.ready = extended.knots(curve, nil)
	return &extended
}

// corners lists, of every family of matrix products, the least and the greatest rows of every shape that was sampled,
// and of those at the ends of the range of shapes.
func (c *Costs) corners() (out []candidate) {
	for i := range c.Families {
		family := &c.Families[i]
		if !family.matrix() {
			continue
		}
		rows, shapes := family.box()
		for _, shape := range shapes {
			for _, rows2 := range rows {
				if corner, ok := c.candidate(family.Proc, family.operator(rows2, shape[0], shape[1]), family.Cold); ok {
					out = append(out, corner)
				}
			}
		}
	}
	return out
}

// box returns the least and the greatest number of rows of a family, its shapes, and the corners of their range.
func (f *Family) box() (rows [2]int, shapes [][2]int) {
	least, most := [2]int{math.MaxInt, math.MaxInt}, [2]int{}
	rows[0] = math.MaxInt
	for i := range f.Curves {
		curve := &f.Curves[i]
		shapes = append(shapes, [2]int{curve.A, curve.B})
		for axis, size := range [2]int{curve.A, curve.B} {
			least[axis], most[axis] = min(least[axis], size), max(most[axis], size)
		}
		rows[0], rows[1] = min(rows[0], int(curve.Points[0][0])),
			max(rows[1], int(curve.Points[len(curve.Points)-1][0]))
	}
	for _, along := range []int{least[0], most[0]} {
		for _, across := range []int{least[1], most[1]} {
			if !slices.Contains(shapes, [2]int{along, across}) {
				shapes = append(shapes, [2]int{along, across})
			}
		}
	}
	return rows, shapes
}
