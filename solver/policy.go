package solver

import (
	"maps"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
)

// strategies are all that candidates have.
var strategies = []planir.Strategy{
	planir.Single, planir.Padding, planir.WeightCentric, planir.Hybrid, planir.ActivationDivide, planir.Pipe, planir.Paired,
}

// checkPolicy checks what the input restricts plans to.
func (in *Input) checkPolicy() error {
	for _, x := range in.Strategies {
		if !slices.Contains(strategies, x) {
			return diag.New(diag.ClassInput, "solve: unknown strategy %q", x).WithHint("want some of %v", strategies)
		}
	}
	total := 0.0
	for _, name := range slices.Sorted(maps.Keys(in.Ratio)) {
		r := in.Ratio[name]
		if in.SoC.Processor(name) == nil {
			return diag.New(diag.ClassInput, "solve: SoC %q has no processor %q to give a part of every matrix to", in.SoC.Name, name)
		}
		if !(r > 0 && r <= 1) {
			return diag.New(diag.ClassInput, "solve: processor %q is to have %v of every matrix, want more than 0, at most 1", name, r)
		}
		total += r
	}
	if len(in.Ratio) > 0 && math.Abs(total-1) > 1e-6 {
		return diag.New(diag.ClassInput, "solve: the processors' parts of every matrix add up to %v, want 1", total)
	}
	return nil
}

// wholeOperators reports whether plans are restricted to those that divide nothing.
func (in *Input) wholeOperators() bool {
	return len(in.Strategies) > 0 && len(in.Ratio) == 0 &&
		!slices.ContainsFunc(in.Strategies, func(x planir.Strategy) bool { return x != planir.Single && x != planir.Padding })
}

// restrict leaves of a node's candidates those that the input permits.
func (s *session) restrict(st *stage, node int, list []candidate) []candidate {
	if len(s.in.Strategies) == 0 && len(s.in.Ratio) == 0 {
		return list
	}
	alone := func(c *candidate) bool { return c.Axis == planir.AxisNone }
	var out []candidate
	if len(s.in.Ratio) > 1 && st.sec.Nodes[node].Op().HasScheme() {
		if c, ok := s.fixed(st, node); ok {
			out = append(out, c)
		}
	}
	for i := range list {
		c := &list[i]
		permitted := len(s.in.Strategies) == 0 || slices.Contains(s.in.Strategies, c.Strategy)
		if len(s.in.Ratio) > 0 {
			permitted = permitted && alone(c) && s.in.Ratio[c.Shares[0].Proc] > 0 && out == nil
		}
		if permitted {
			out = append(out, *c)
		}
	}
	if out != nil {
		return out
	}
	return slices.DeleteFunc(slices.Clone(list), func(c candidate) bool { return !alone(&c) })
}

// fixed is the division of a matrix's columns in the input's ratio; false where it cannot be.
func (s *session) fixed(st *stage, node int) (candidate, bool) {
	names := slices.Sorted(maps.Keys(s.in.Ratio))
	run := []link{{node, planir.AxisCols}}
	length, err := lower.AxisLength(&st.sec.Nodes[node], planir.AxisCols)
	at := st.boundaries(run, names)
	if err != nil || len(at) < len(names)-1 {
		return candidate{}, false
	}
	shares := make([]planir.Share, len(names))
	sum, from, k := 0.0, 0, 0
	for i, name := range names {
		sum += s.in.Ratio[name]
		to := length
		if left := len(names) - 1 - i; left > 0 {
			// The nearest boundary that leaves one for each of the others.
			for k < len(at)-left && math.Abs(float64(at[k+1][0])-sum*float64(length)) < math.Abs(float64(at[k][0])-sum*float64(length)) {
				k++
			}
			to = at[k][0]
			k++
		}
		shares[i] = planir.Share{Proc: name, From: from, To: to}
		from = to
	}
	c, err := st.candidate(node, planir.WeightCentric, planir.AxisCols, shares)
	return c, err == nil
}
