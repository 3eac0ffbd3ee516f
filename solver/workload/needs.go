package workload

import (
	"slices"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
)

// Needs is what has to be measured before a plan for the workload can be made.
type Needs struct {
	Buckets []int       // rows of prefill, ascending
	Batches []int       // sequences that are decoded together, ascending
	Schemes []op.Scheme // of either phase and the head, ascending
	// Optional are those of Schemes that only a limit of quality permits: nothing is lost where no processor executes them.
	Optional []op.Scheme
	Context  int   // cached positions
	Lengths  []int // of prompts that a bucket may be made for
}

// Needs applies the workload to a model of that many positions; nil is DefaultWorkload.
func (w *Workload) Needs(maxContext int) (Needs, error) {
	if w == nil {
		w = Default()
	}
	d, err := w.Apply(maxContext)
	if err != nil {
		return Needs{}, err
	}
	schemes := slices.Concat(d.Prefill, d.Decode, d.Head)
	slices.Sort(schemes)
	out := Needs{Buckets: d.Buckets, Batches: d.Batches, Schemes: slices.Compact(schemes), Context: d.Context, Lengths: d.Prompts.marks()}
	for _, x := range out.Schemes {
		if asked := slices.Concat(w.Schemes.Prefill, w.Schemes.Decode, w.Schemes.Head); w.Quality.MaxKL != (KLLimit{}) && x != op.A32W32 && !slices.Contains(asked, x) {
			out.Optional = append(out.Optional, x)
		}
	}
	return out, nil
}

// On are the schemes to measure on a SoC.
func (n *Needs) On(soc *socs.SoC) []op.Scheme {
	return slices.DeleteFunc(slices.Clone(n.Schemes), func(x op.Scheme) bool {
		return slices.Contains(n.Optional, x) && !slices.ContainsFunc(soc.Processors, func(p socs.Processor) bool { return slices.Contains(p.Schemes, x) })
	})
}
