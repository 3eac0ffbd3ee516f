package profiler

import (
	"math"
	"math/rand/v2"
	"slices"

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
	if err := list.apply(model, want); err != nil {
		return nil, err
	}
	sampled, whole := sampledRows(requests)
	if count > 0 && len(whole) == 0 {
		return nil, diag.New(diag.ClassInput, "hold out %d operators: no weight is sampled at more than "+
			"three row counts", count)
	}

	rng := rand.New(rand.NewPCG(seed, 0x68656c64))
	for tries := 0; len(list.requests) < count; tries++ {
		if tries > 1000*count {
			return nil, diag.New(diag.ClassInput,
				"hold out %d operators: only %d lie more than 5 %% away from every sampled row count", count,
				len(list.requests))
		}
		request := whole[rng.IntN(len(whole))]
		rows := 1 + rng.IntN(min(512, list.largest()))
		near := slices.ContainsFunc(sampled[productShapeOf(&request)], func(sample int) bool {
			return math.Abs(float64(rows-sample)) <= heldOutMargin*float64(sample)
		})
		if near {
			continue
		}
		operator, what := *request.What.Op, request.What
		operator.M = rows
		what.Op, what.HeldOut = &operator, true
		list.add(priorityBase, what)
	}
	return list.requests, nil
}

// productShape is a processor and an operator of no rows.
type productShape struct {
	processor string
	operator  op.Op
}

// productShapeOf returns the shape of a request.
func productShapeOf(request *Request) productShape {
	shape := productShape{request.What.Proc, *request.What.Op}
	shape.operator.M = 0
	return shape
}

// sampledRows returns the sampled numbers of rows of each shape, and a request of each shape that is sampled over rows.
// Those are whole weights: parts and the head are measured at one or two numbers.
func sampledRows(requests []Request) (sampled map[productShape][]int, whole []Request) {
	sampled = map[productShape][]int{}
	var first []Request
	for _, request := range requests {
		what := &request.What
		if what.Kind != record.Op || !what.Op.HasScheme() || what.GLU != nil || len(what.Concurrent) > 0 {
			continue
		}
		shape := productShapeOf(&request)
		if sampled[shape] == nil {
			first = append(first, request)
		}
		sampled[shape] = append(sampled[shape], request.What.Op.M)
	}
	for _, request := range first {
		if len(sampled[productShapeOf(&request)]) > 3 {
			whole = append(whole, request)
		}
	}
	return sampled, whole
}
