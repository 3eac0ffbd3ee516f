package exact

import (
	"math"
	"slices"

	"github.com/hetc/hetc/solver/problem"
)

// Scales chooses activation scales to optimality: weighted k-means in one dimension, whose clusters are intervals of
// the sorted samples, by dynamic programming: an interval's scale is its mean, with Cover its largest sample. The cost
// of an interval is Monge, so the best left ends advance with the right ends and divide and conquer takes O(K n log n)
// (Groenlund et al., arXiv 1701.07204).
func Scales(posed *problem.Scales) (problem.ScaleSolution, error) {
	if err := posed.Validate(); err != nil {
		return problem.ScaleSolution{}, err
	}
	state := newClusters(posed)
	count := len(state.samples)

	clusters := 1
	for i := 1; i < count && clusters < posed.K; i++ { // no more clusters than different samples
		if state.samples[i] != state.samples[i-1] {
			clusters++
		}
	}

	state.best = make([]float64, count+1)
	for end := 1; end <= count; end++ {
		state.best[end] = state.cost(0, end)
	}

	// One layer of the program for each cluster more, then back along the starts that were best.
	starts := make([][]int32, clusters) // of the last cluster of the first end samples, by number of clusters before it
	for before := 1; before < clusters; before++ {
		state.next, state.start = slices.Clone(state.best), make([]int32, count+1)
		state.fill(before+1, count, before, count-1)
		starts[before], state.best = state.start, state.next
	}

	var out problem.ScaleSolution
	for before, end := clusters-1, count; end > 0; before-- {
		start := 0
		if before > 0 {
			start = int(starts[before][end])
		}
		out.Scales = append(out.Scales, state.scale(start, end))
		end = start
	}
	slices.Reverse(out.Scales)
	out.MSE = posed.MSEOf(out.Scales)
	return out, nil
}

// clusters is the state of the dynamic program over how many samples are covered.
type clusters struct {
	cover        bool
	samples      []float64 // sorted
	middle       float64
	sum, squares []float64 // of the first i differences from the middle sample: less is lost where all are alike
	best         []float64 // least cost of the first i samples in as many clusters as were added, or fewer
	next         []float64 // the same with one cluster more
	start        []int32   // of the last one of these
}

// newClusters sorts the samples and adds up their differences from the middle one and the squares of these.
func newClusters(posed *problem.Scales) *clusters {
	out := &clusters{cover: posed.Cover, samples: slices.Clone(posed.Samples)}
	slices.Sort(out.samples)
	n := len(out.samples)
	out.middle = out.samples[n/2]
	out.sum, out.squares = make([]float64, n+1), make([]float64, n+1)
	for i, sample := range out.samples {
		diff := sample - out.middle
		out.sum[i+1], out.squares[i+1] = out.sum[i]+diff, out.squares[i]+float64(diff*diff)
	}
	return out
}

// cost returns the squared error of samples i..j-1 as one cluster.
func (c *clusters) cost(i, j int) float64 {
	sum := c.sum[j] - c.sum[i]
	squares := c.squares[j] - c.squares[i]
	if c.cover {
		top := c.samples[j-1] - c.middle
		return max(0, squares-float64(2*top*sum)+float64(float64(j-i)*float64(top*top)))
	}
	return max(0, squares-float64(sum*sum)/float64(j-i))
}

// fill finds next and start for the ends from low to high, whose best starts are from first to last: the middle end's
// start divides those of the ends on both sides of it.
func (c *clusters) fill(low, high, first, last int) {
	if low > high {
		return
	}
	end := (low + high) / 2
	least, at := math.Inf(1), first
	for start := first; start <= min(last, end-1); start++ {
		if cost := c.best[start] + c.cost(start, end); cost < least {
			least, at = cost, start
		}
	}
	c.next[end], c.start[end] = least, int32(at)
	c.fill(low, end-1, first, at)
	c.fill(end+1, high, at, last)
}

// scale is that of samples start..end-1 as one cluster.
func (c *clusters) scale(start, end int) float64 {
	if c.cover {
		return c.samples[end-1]
	}
	total := 0.0
	for _, sample := range c.samples[start:end] {
		total += sample - c.middle
	}
	return c.middle + total/float64(end-start)
}
