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
	// Optional are those of Schemes that only a limit of quality permits: nothing is lost where no processor executes
	// them.
	Optional []op.Scheme
	Context  int       // cached positions
	Caches   []op.Type // in which they may be cached
	Lengths  []int     // of prompts that a bucket may be made for
	// Densities are shares of positions that sparse attention may keep: on average, and all of them, since heads
	// differ.
	Densities []float64
}

// Needs applies the workload to a model of that many positions; nil stands for Default.
func (w *Workload) Needs(maxContext int) (Needs, error) {
	if w == nil {
		w = Default()
	}
	demand, err := w.Apply(maxContext)
	if err != nil {
		return Needs{}, err
	}
	schemes := slices.Concat(demand.Prefill, demand.Decode, demand.Head, demand.PrefillHead)
	slices.Sort(schemes)
	out := Needs{Buckets: demand.Buckets, Batches: demand.Batches, Schemes: slices.Compact(schemes),
		Context: demand.Context, Caches: w.Caches(),
		Lengths: demand.Prompts.marks()}
	switch {
	case w.Density > 0:
		out.Densities = []float64{w.Density}
	case w.Attention.Sparse():
		out.Densities = slices.Clone(Densities)
	}
	if count := len(out.Densities); count > 0 && out.Densities[count-1] < 1 {
		out.Densities = append(out.Densities, 1)
	}
	if w.Quality.MaxKL == (KLLimit{}) {
		return out, nil
	}
	listed := slices.Concat(w.Schemes.Prefill, w.Schemes.Decode, w.Schemes.Head, w.Schemes.PrefillHead)
	for _, scheme := range out.Schemes {
		if scheme != op.A32W32 && !slices.Contains(listed, scheme) {
			out.Optional = append(out.Optional, scheme)
		}
	}
	return out, nil
}

// On returns the schemes to measure on a SoC: an optional one only if one of its processors executes it.
func (n *Needs) On(soc *socs.SoC) []op.Scheme {
	return slices.DeleteFunc(slices.Clone(n.Schemes), func(scheme op.Scheme) bool {
		executes := func(p socs.Processor) bool { return slices.Contains(p.Schemes, scheme) }
		return slices.Contains(n.Optional, scheme) && !slices.ContainsFunc(soc.Processors, executes)
	})
}
