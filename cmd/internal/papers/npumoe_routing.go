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

// routing draws which experts tokens go to. An expert's popularity falls with its rank to the power of -skew, and changes by a
// factor between 1/burst and burst from chunk to chunk.
type routing struct {
	random        *rand.Rand
	experts, topK int
	popularity    []uint64
	burst         uint64
}

func newRouting(random *rand.Rand, experts, topK int, skew float64, burst uint64) *routing {
	r := &routing{random: random, experts: experts, topK: topK, burst: burst}
	for e := range experts {
		r.popularity = append(r.popularity, uint64(math.Round(1e6*math.Pow(float64(e+1), -skew))))
	}
	random.Shuffle(experts, func(i, j int) {
		r.popularity[i], r.popularity[j] = r.popularity[j], r.popularity[i]
	})
	return r
}

// chunk is the experts of each of so many tokens.
func (r *routing) chunk(tokens int) [][]int {
	weights := make([]uint64, r.experts)
	for e, p := range r.popularity {
		f := 1 + r.random.Uint64N(r.burst)
		if r.random.Uint64N(2) == 0 {
			weights[e] = max(p*f, 1)
		} else {
			weights[e] = max(p/f, 1)
		}
	}
	out := make([][]int, tokens)
	for t := range out {
		left := slices.Clone(weights)
		for range r.topK {
			sum := uint64(0)
			for _, w := range left {
				sum += w
			}
			at := r.random.Uint64N(sum)
			e := 0
			for ; at >= left[e]; e++ {
				at -= left[e]
			}
			out[t] = append(out[t], e)
			left[e] = 0
		}
	}
	return out
}

// loadsOf counts the rows of every expert.
func loadsOf(experts int, routed [][]int) []float64 {
	n := make([]float64, experts)
	for _, list := range routed {
		for _, e := range list {
			n[e]++
		}
	}
	return n
}

// tracedLoads are the loads that the router of a small trained model produced on text it was not trained on, by layer, chunk
// of so many tokens, and expert. The model has 16 experts, 2 a token, as PhiMoE has.
func tracedLoads(tokens int) [][][]float64 {
	loads := workload.TracedExample()
	n := tokens / loads.ChunkTokens
	var out [][][]float64
	for _, layer := range loads.Layers {
		chunks := make([][]float64, loads.Chunks/n)
		for c := range chunks {
			chunks[c] = make([]float64, loads.Experts)
			for e, rows := range layer.Rows {
				for _, v := range rows[c*n : (c+1)*n] {
					chunks[c][e] += float64(v)
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
	for l := range out {
		routing := newRouting(rand.New(rand.NewPCG(seed, uint64(l))), experts, topK, skew, 2)
		for range chunks {
			out[l] = append(out[l], loadsOf(experts, routing.chunk(tokens)))
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

func (r *reserve) add(capacity []int, loads []float64) {
	for e, n := range loads {
		r.computed += float64(capacity[e])
		r.useful += min(n, float64(capacity[e]))
		r.routed += n
	}
}

func (r *reserve) padding() float64  { return 1 - r.useful/r.computed }
func (r *reserve) overflow() float64 { return 1 - r.useful/r.routed }

// expertBlock computes experts on rows, one by one or packed: out of each token the sum over its experts of weight times
// the expert of its row.
type expertBlock struct {
	hidden, inner int
	up, down      [][]float32 // by expert
}

func (b *expertBlock) expert(e int, row []float32) []float32 {
	middle := make([]float32, b.inner)
	for j := range middle {
		sum := float32(0)
		for i, x := range row {
			sum += float32(x * b.up[e][i*b.inner+j])
		}
		middle[j] = max(sum, 0)
	}
	out := make([]float32, b.hidden)
	for i := range out {
		sum := float32(0)
		for j, x := range middle {
			sum += float32(x * b.down[e][j*b.hidden+i])
		}
		out[i] = sum
	}
	return out
}

// packed gathers the rows of each group's experts into slices of its capacity, zero-padded, runs them all, and scatters
// the valid rows back by weight (sec. 4.2). Rows beyond a capacity are pruned.
func (b *expertBlock) packed(groups []problem.TierGroup, capacities []int, x [][]float32, routed [][]int, weights [][]float32, saliency []float64) [][]float32 {
	out := make([][]float32, len(x))
	for t := range out {
		out[t] = make([]float32, b.hidden)
	}
	for e := range b.up {
		var group *problem.TierGroup
		slice := 0
		for i := range groups {
			if at := slices.Index(groups[i].Experts, e); at >= 0 {
				group, slice = &groups[i], at
			}
		}
		var tokens []int
		var norms []float64
		var gains []float32
		for t, list := range routed {
			if k := slices.Index(list, e); k >= 0 {
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
			copy(buffer[first+i], x[tokens[k]])
		}
		results := make([][]float32, capacity)
		for i := range results {
			results[i] = b.expert(e, buffer[first+i])
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
	for t := range out {
		out[t] = make([]float32, b.hidden)
		for e := range b.up { // in the order of experts, as packed adds them
			if k := slices.Index(routed[t], e); k >= 0 {
				for c, v := range b.expert(e, x[t]) {
					out[t][c] += float32(weights[t][k] * v)
				}
			}
		}
	}
	return out
}

// leastSquares solves min |A w - y| for few unknowns by the normal equations; ok is false where they have no single solution.
func leastSquares(a [][]float64, y []float64) (w []float64, ok bool) {
	n := len(a[0])
	m := make([][]float64, n)
	for i := range m {
		m[i] = make([]float64, n+1)
		for r := range a {
			for j := range n {
				m[i][j] += float64(a[r][i] * a[r][j])
			}
			m[i][n] += float64(a[r][i] * y[r])
		}
	}
	for i := range n {
		p := i
		for r := i + 1; r < n; r++ {
			if math.Abs(m[r][i]) > math.Abs(m[p][i]) {
				p = r
			}
		}
		m[i], m[p] = m[p], m[i]
		if math.Abs(m[i][i]) < 1e-12 {
			return nil, false
		}
		for r := range n {
			if r == i {
				continue
			}
			f := m[r][i] / m[i][i]
			for j := i; j <= n; j++ {
				m[r][j] -= float64(f * m[i][j])
			}
		}
	}
	for i := range n {
		w = append(w, m[i][n]/m[i][i])
	}
	return w, true
}
