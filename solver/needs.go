package solver

import (
	"slices"

	"github.com/hetc/hetc/planir/op"
)

// Needs is what has to be measured before a plan for the workload can be made.
type Needs struct {
	Buckets []int       // rows of prefill, ascending
	Schemes []op.Scheme // of either phase and the head, ascending
	Context int         // cached positions
}

// Needs applies the workload to a model of that many positions; nil is DefaultWorkload.
func (w *Workload) Needs(maxContext int) (Needs, error) {
	if w == nil {
		w = DefaultWorkload()
	}
	d, err := w.apply(maxContext)
	if err != nil {
		return Needs{}, err
	}
	schemes := slices.Concat(d.prefill, d.decode, d.head)
	slices.Sort(schemes)
	return Needs{Buckets: d.buckets, Schemes: slices.Compact(schemes), Context: d.context}, nil
}
