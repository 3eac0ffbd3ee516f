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

// HeldOut draws count matrix products of the model by which predictions are judged. The seed draws
// weight shape, scheme, processor and a number of rows in 1..512 (at most the largest bucket) that
// lies more than 5 % away from every number of rows that requests samples for the same shape.
// Held-out products are measured in the same rounds as the rest and never fitted.
func HeldOut(
	soc *socs.SoC, model *models.Model, want Want, requests []Request, count int, seed uint64,
) ([]Request, error) {
	list := &builder{soc: soc, seen: map[string]bool{}}
	if err := list.want(model, want); err != nil {
		return nil, err
	}
	// group the sampled numbers of rows by processor and operator
	type shape struct {
		proc string
		op   op.Op // of no rows
	}
	of := func(first *Request) shape {
		other := shape{first.What.Proc, *first.What.Op}
		other.op.M = 0
		return other
	}
	sampled := map[shape][]int{}
	var shapes []Request
	for _, request := range requests {
		if request.What.Kind != record.Op || !request.What.Op.HasScheme() || len(request.What.Concurrent) > 0 {
			continue
		}
		own := of(&request)
		if sampled[own] == nil {
			shapes = append(shapes, request)
		}
		sampled[own] = append(sampled[own], request.What.Op.M)
	}
	// Only whole weights that are sampled over rows: parts and the head are measured at one or two.
	var whole []Request
	for _, request := range shapes {
		if len(sampled[of(&request)]) > 3 {
			whole = append(whole, request)
		}
	}
	if count > 0 && len(whole) == 0 {
		return nil, diag.New(diag.ClassInput, "hold out %d operators: no weight is sampled at more than "+
			"three row counts", count)
	}
	// draw, and reject what lies near a sample
	rng := rand.New(rand.NewPCG(seed, 0x68656c64))
	for tries := 0; len(list.requests) < count; tries++ {
		if tries > 1000*count {
			return nil, diag.New(diag.ClassInput,
				"hold out %d operators: only %d lie more than 5 %% away from every sampled row count", count,
				len(list.requests))
		}
		request := whole[rng.IntN(len(whole))]
		operator := *request.What.Op
		near := false
		rows := 1 + rng.IntN(min(512, list.largest()))
		for _, count := range sampled[of(&request)] {
			near = near || math.Abs(float64(rows-count)) <= heldOutMargin*float64(count)
		}
		if near {
			continue
		}
		operator.M = rows
		what := request.What
		what.Op, what.HeldOut = &operator, true
		list.add(priorityBase, what)
	}
	return list.requests, nil
}
