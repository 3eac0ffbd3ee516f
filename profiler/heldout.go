package profiler

import (
	"math"
	"math/rand/v2"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/socs"
)

// heldOutMargin keeps held-out row counts away from sampled ones: 5 %.
const heldOutMargin = 0.05

// HeldOut draws n matrix products of the model to judge predictions by: weight shape, scheme, processor and
// rows in 1..512 (at most the largest bucket) by the seed, no row count within 5 % of one that requests samples for the
// same shape. They are measured in the same rounds as the rest and never fitted.
func HeldOut(s *socs.SoC, m *models.Model, w Want, requests []Request, n int, seed uint64) ([]Request, error) {
	b := &builder{soc: s, seen: map[string]bool{}}
	if err := b.want(m, w); err != nil {
		return nil, err
	}
	type shape struct {
		proc string
		op   op.Op // of no rows
	}
	of := func(r *Request) shape {
		x := shape{r.What.Proc, *r.What.Op}
		x.op.M = 0
		return x
	}
	sampled := map[shape][]int{}
	var shapes []Request
	for _, r := range requests {
		if r.What.Kind != record.Op || !r.What.Op.HasScheme() || len(r.What.Concurrent) > 0 {
			continue
		}
		k := of(&r)
		if sampled[k] == nil {
			shapes = append(shapes, r)
		}
		sampled[k] = append(sampled[k], r.What.Op.M)
	}
	// Only whole weights that are sampled over rows: parts and the head are measured at one or two.
	var whole []Request
	for _, r := range shapes {
		if len(sampled[of(&r)]) > 3 {
			whole = append(whole, r)
		}
	}
	if n > 0 && len(whole) == 0 {
		return nil, diag.New(diag.ClassInput, "hold out %d operators: no weight is sampled at more than three row counts", n)
	}
	rng := rand.New(rand.NewPCG(seed, 0x68656c64))
	for tries := 0; len(b.out) < n; tries++ {
		if tries > 1000*n {
			return nil, diag.New(diag.ClassInput, "hold out %d operators: only %d lie more than 5 %% away from every sampled row count", n, len(b.out))
		}
		r := whole[rng.IntN(len(whole))]
		o := *r.What.Op
		near := false
		rows := 1 + rng.IntN(min(512, b.largest()))
		for _, m := range sampled[of(&r)] {
			near = near || math.Abs(float64(rows-m)) <= heldOutMargin*float64(m)
		}
		if near {
			continue
		}
		o.M = rows
		what := r.What
		what.Op, what.HeldOut = &o, true
		b.add(PriorityBase, what)
	}
	return b.out, nil
}
