package papers

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// alignedUp is the least multiple of 16 (sec. 3.2) that is at least x.
func alignedUp(x float64) int { return 16 * max(1, int(math.Ceil(x/16-1e-9))) }

// groupExperts makes groups of at most most experts of one tier, hot ones and cold ones apart (NPUMoE sec. 4.2, 4.3).
func groupExperts(loads []float64, tiers []int, hot []bool, most int) []problem.TierGroup {
	var groups []problem.TierGroup
	for _, want := range []bool{true, false} {
		list := slices.Clone(tiers)
		for e := range list {
			if hot[e] != want {
				list[e] = -1
			}
		}
		groups = append(groups, problem.GroupExperts(loads, list, most)...)
	}
	return groups
}

// routing draws which experts tokens go to. An expert's popularity falls with its rank to the power of -skew, and
// changes by a factor between 1/burst and burst from chunk to chunk.
type routing struct {
	// seeded, so that rows stay the same
	random        *rand.Rand
	experts, topK int
	// weights of the drawing, by expert
	popularity []uint64
	burst      uint64
}

// newRouting draws the popularity of experts: in proportion to rank^-skew, in a random order.
func newRouting(random *rand.Rand, experts, topK int, skew float64, burst uint64) *routing {
	made := &routing{random: random, experts: experts, topK: topK, burst: burst}
	for e := range experts {
		made.popularity = append(made.popularity, uint64(math.Round(1e6*math.Pow(float64(e+1), -skew))))
	}
	random.Shuffle(experts, func(i, j int) {
		made.popularity[i], made.popularity[j] = made.popularity[j], made.popularity[i]
	})
	return made
}

// chunk is the experts of each of so many tokens.
func (r *routing) chunk(tokens int) [][]int {
	weights := make([]uint64, r.experts)
	for expert, popularity := range r.popularity {
		factor := 1 + r.random.Uint64N(r.burst)
		if r.random.Uint64N(2) == 0 {
			weights[expert] = max(popularity*factor, 1)
		} else {
			weights[expert] = max(popularity/factor, 1)
		}
	}
	out := make([][]int, tokens)
	for token := range out {
		left := slices.Clone(weights)
		for range r.topK {
			sum := uint64(0)
			for _, w := range left {
				sum += w
			}
			at := r.random.Uint64N(sum)
			expert := 0
			for ; at >= left[expert]; expert++ {
				at -= left[expert]
			}
			out[token] = append(out[token], expert)
			left[expert] = 0
		}
	}
	return out
}

// loadsOf counts the rows of every expert.
func loadsOf(experts int, routed [][]int) []float64 {
	counts := make([]float64, experts)
	for _, list := range routed {
		for _, e := range list {
			counts[e]++
		}
	}
	return counts
}

// tracedLoads are the loads that the router of a small trained model produced on text it was not trained on, by
// layer, chunk of so many tokens, and expert. The model has 16 experts, 2 a token, as PhiMoE has.
func tracedLoads(tokens int) [][][]float64 {
	loads := workload.TracedExample()
	joined := tokens / loads.ChunkTokens
	var out [][][]float64
	for _, layer := range loads.Layers {
		chunks := make([][]float64, loads.Chunks/joined)
		for chunk := range chunks {
			chunks[chunk] = make([]float64, loads.Experts)
			for e, rows := range layer.Rows {
				for _, v := range rows[chunk*joined : (chunk+1)*joined] {
					chunks[chunk][e] += float64(v)
				}
			}
		}
		out = append(out, chunks)
	}
	return out
}

// drawnLoads are those of synthetic routing.
func drawnLoads(seed uint64, layers, chunks, tokens, experts, topK int, skew float64) [][][]float64 {
	out := make([][][]float64, layers)
	for layer := range out {
		routing := newRouting(rand.New(rand.NewPCG(seed, uint64(layer))), experts, topK, skew, 2)
		for range chunks {
			out[layer] = append(out[layer], loadsOf(experts, routing.chunk(tokens)))
		}
	}
	return out
}

// meanLoads is every expert's mean load over chunks.
func meanLoads(chunks [][]float64) []float64 {
	out := make([]float64, len(chunks[0]))
	for _, loads := range chunks {
		for e, n := range loads {
			out[e] += n / float64(len(chunks))
		}
	}
	return out
}

// reserve is what capacities make of loads: the share of computed rows that are padding, and the share of routed rows
// that do not fit.
type reserve struct{ computed, useful, routed float64 }

// add counts a chunk's loads against the experts' capacities.
func (r *reserve) add(capacity []int, loads []float64) {
	for e, n := range loads {
		r.computed += float64(capacity[e])
		r.useful += min(n, float64(capacity[e]))
		r.routed += n
	}
}

// padding is the share of computed rows that hold nothing.
func (r *reserve) padding() float64  { return 1 - r.useful/r.computed }
func (r *reserve) overflow() float64 { return 1 - r.useful/r.routed }

// leastSquares solves min |A w - y| for few unknowns by the normal equations; ok is false where they have no single
// solution.
func leastSquares(a [][]float64, y []float64) (solution []float64, ok bool) {
	unknowns := len(a[0])
	normal := make([][]float64, unknowns)
	for i := range normal {
		normal[i] = make([]float64, unknowns+1)
		for row := range a {
			for j := range unknowns {
				normal[i][j] += float64(a[row][i] * a[row][j])
			}
			normal[i][unknowns] += float64(a[row][i] * y[row])
		}
	}
	// the normal equations, beside the right hand side
	for i := range unknowns {
		// elimination of Gauss and Jordan with partial pivoting
		pivot := i
		for r := i + 1; r < unknowns; r++ {
			if math.Abs(normal[r][i]) > math.Abs(normal[pivot][i]) {
				pivot = r
			}
		}
		normal[i], normal[pivot] = normal[pivot], normal[i]
		if math.Abs(normal[i][i]) < 1e-12 {
			return nil, false
		}
		for row := range unknowns {
			if row == i {
				continue
			}
			f := normal[row][i] / normal[i][i]
			for j := i; j <= unknowns; j++ {
				normal[row][j] -= float64(f * normal[i][j])
			}
		}
	}
	for i := range unknowns {
		solution = append(solution, normal[i][unknowns]/normal[i][i])
	}
	return solution, true
}
