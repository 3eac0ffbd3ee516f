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

// expertBlock computes experts on rows, one by one or packed: out of each token the sum over its experts of weight
// times the expert of its row.
type expertBlock struct {
	hidden, inner int
	up, down      [][]float32 // by expert
}

// expert computes one expert on a row: up, ReLU, down.
func (b *expertBlock) expert(index int, row []float32) []float32 {
	middle := make([]float32, b.inner)
	for j := range middle {
		sum := float32(0)
		for i, x := range row {
			sum += float32(x * b.up[index][i*b.inner+j])
		}
		middle[j] = max(sum, 0)
	}
	out := make([]float32, b.hidden)
	for i := range out {
		sum := float32(0)
		for j, x := range middle {
			sum += float32(x * b.down[index][j*b.hidden+i])
		}
		out[i] = sum
	}
	return out
}

// packed gathers the rows of each group's experts into slices of its capacity, zero-padded, runs them all, and scatters
// the valid rows back by weight (sec. 4.2). Rows beyond a capacity are pruned.
func (b *expertBlock) packed(
	groups []problem.TierGroup, capacities []int, inputs [][]float32, routed [][]int, weights [][]float32,
	saliency []float64,
) [][]float32 {
	out := make([][]float32, len(inputs))
	for t := range out {
		out[t] = make([]float32, b.hidden)
	}
	for expert := range b.up {
		// the expert's group and its slice of the group's buffer
		var group *problem.TierGroup
		slice := 0
		for i := range groups {
			if at := slices.Index(groups[i].Experts, expert); at >= 0 {
				group, slice = &groups[i], at
			}
		}
		var tokens []int
		var norms []float64
		var gains []float32
		for t, list := range routed {
			if k := slices.Index(list, expert); k >= 0 {
				tokens, norms, gains = append(tokens, t), append(norms, saliency[t]), append(gains, weights[t][k])
			}
		}
		capacity := capacities[group.Tier]
		kept, _ := problem.PruneOverflow(norms, capacity)
		// The buffer of the group; only this expert's slice is filled here.
		buffer := make([][]float32, len(group.Experts)*capacity)
		for i := range buffer {
			buffer[i] = make([]float32, b.hidden)
		}
		first := slice * capacity
		for i, k := range kept {
			copy(buffer[first+i], inputs[tokens[k]])
		}
		results := make([][]float32, capacity)
		for i := range results {
			results[i] = b.expert(expert, buffer[first+i])
		}
		for i, k := range kept {
			for c, v := range results[i] {
				out[tokens[k]][c] += float32(gains[k] * v)
			}
		}
	}
	return out
}

// plain is every expert on its own rows.
func (b *expertBlock) plain(x [][]float32, routed [][]int, weights [][]float32) [][]float32 {
	out := make([][]float32, len(x))
	for token := range out {
		out[token] = make([]float32, b.hidden)
		for e := range b.up { // in the order of experts, as packed adds them
			if k := slices.Index(routed[token], e); k >= 0 {
				for c, v := range b.expert(e, x[token]) {
					out[token][c] += float32(weights[token][k] * v)
				}
			}
		}
	}
	return out
}

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
