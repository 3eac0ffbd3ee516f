package drivertest

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// blocksOf calls do for each block of queries in use with its span and its first row.
func (e *evaluation) blocksOf(do func(index, r0, rows int, span op.SparseSpan)) {
	for r0 := 0; r0 < e.rows; r0 += e.Block {
		rows := min(e.Block, e.rows-r0)
		do(r0/e.Block, r0, rows, e.SpanOf(e.scalars.Pos+r0, rows))
	}
}

// unsaid makes every element of an output one about which nothing is said.
func unsaid(out *array) {
	for i := range out.v {
		out.v[i], out.size[i], out.slack[i], out.doubt[i] = 0, 0, 0, math.Inf(1)
	}
}

// cached returns the magnitude of a sum's terms of cached numbers: those of 8 bits are rounded to float32 here, and not
// everywhere.
func (e *evaluation) cached(size float64) float64 {
	if e.KV == op.Q8 {
		return 2 * size
	}
	return size
}

// code returns a number as 8 bits hold it under a scale.
func code(value, scale float64) float64 {
	rounded := math.RoundToEven(float64(float32(value) / float32(scale)))
	return math.Max(-127, math.Min(127, rounded)) * scale
}

// estimate is the largest rounded score of a position among the queries of a block, each less the query's top.
func estimate(e *evaluation) {
	unsaid(e.out[0])
	group := e.group()
	heads := e.sparseHeads()
	e.blocksOf(func(index, r0, rows int, span op.SparseSpan) {
		count := span.Block - span.Inner
		for head, numbers := range heads {
			if span.Decided(numbers.Share, e.Least) {
				continue
			}
			kvHead := head / group
			shared := heads[kvHead*group]
			keys := e.cache.row(driver.Place{Sequence: e.scalars.Sequence}, kvHead)
			best, size := make([]float64, count), 0.0
			for row := r0; row < r0+rows; row++ {
				scores, top, largest := e.codedScores(row, head, keys+span.Inner, count, numbers.QueryScale,
					shared.KeyScale)
				size = math.Max(size, largest)
				for j, score := range scores {
					if below := score - top; row == r0 || below > best[j] {
						best[j] = below
					}
				}
			}
			for j, value := range best {
				at := head*e.Context + span.Inner + j
				e.out[0].set(index, at, value, 2*size)
				e.out[0].doubt[index*e.out[0].value.Cols+at] = 0
			}
		}
	})
}

// codedScores returns the scores of a query with count keys, which begin at a row of the cache, in 8-bit codes: the
// largest of them, and the largest magnitude. Keys of an 8-bit cache are codes already.
func (e *evaluation) codedScores(row, head, first, count int, queryScale, keyScale float32) (scores []float64, top,
	largest float64) {
	group := e.group()
	column := (head/group*(group+2) + head%group) * e.HeadDim
	scores, top = make([]float64, count), math.Inf(-1)
	for j := range scores {
		for i := range e.HeadDim {
			query := e.in[0].at(row, column+i)
			key := e.cache.k[(first+j)*e.HeadDim+i]
			if e.KV != op.Q8 {
				key = code(key, float64(keyScale))
			}
			scores[j] += code(query, float64(queryScale)) * key
		}
		top, largest = math.Max(top, scores[j]), math.Max(largest, math.Abs(scores[j]))
	}
	return scores, top, largest
}

// sparseHeads returns the numbers of the heads of an estimate, with the scales of the buckets that the call has.
func (e *evaluation) sparseHeads() []op.SparseHead {
	group := e.group()
	var heads []op.SparseHead
	for head := range e.Heads {
		numbers, err := op.SparseHeadOf(e.w[0].v, head)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		heads = append(heads, numbers)
	}
	from, to := 0, 0 // positions that some query sees before its block
	e.blocksOf(func(index, _, _ int, span op.SparseSpan) {
		if index == 0 {
			from = span.Inner
		}
		to = span.Block
	})
	for kvHead := range e.KVHeads {
		shared := heads[kvHead*group : (kvHead+1)*group]
		var largestQuery, largestKey, queryScale, keyScale float64
		for i := range group {
			queryScale = max(queryScale, float64(shared[i].QueryScale))
			for row := range e.rows {
				for column := range e.HeadDim {
					query := e.in[0].at(row, (kvHead*(group+2)+i)*e.HeadDim+column)
					largestQuery = max(largestQuery, math.Abs(query))
				}
			}
		}
		if e.KV != op.Q8 {
			keyScale = float64(shared[0].KeyScale)
			keys := e.cache.row(driver.Place{Sequence: e.scalars.Sequence}, kvHead)
			for _, key := range e.cache.k[(keys+from)*e.HeadDim : (keys+max(from, to))*e.HeadDim] {
				largestKey = max(largestKey, math.Abs(key))
			}
		}
		factors := op.NearestFactors(e.Buckets, float32(queryScale), float32(keyScale), float32(largestQuery),
			float32(largestKey))
		for i := range shared {
			shared[i].QueryScale *= factors[0]
			shared[i].KeyScale *= factors[1]
		}
	}
	return heads
}

// selectPositions sorts positions by their scores.
func selectPositions(e *evaluation) {
	unsaid(e.out[0])
	e.blocksOf(func(index, _, _ int, span op.SparseSpan) {
		for head := range e.Heads {
			numbers, err := op.SparseHeadOf(e.w[0].v, head)
			if err != nil {
				panic("BUG: " + err.Error())
			}
			var positions []int
			for pos := span.Inner; pos < span.Block; pos++ {
				positions = append(positions, pos)
			}
			slices.SortStableFunc(positions, func(a, b int) int {
				if a < op.SparseFirst || b < op.SparseFirst {
					return cmp.Compare(a, b)
				}
				return -cmp.Compare(e.in[0].at(index, head*e.Context+a), e.in[0].at(index, head*e.Context+b))
			})
			positions = positions[:span.Keep(numbers.Share, e.Least)]
			slices.Sort(positions)
			for i, value := range append([]int{len(positions)}, positions...) {
				at := head*(1+e.Context) + i
				e.out[0].set(index, at, float64(value), 0)
				e.out[0].doubt[index*e.out[0].value.Cols+at] = 0
			}
		}
	})
}

// sparseAttention is attention over the positions that are selected for a query's block.
func sparseAttention(e *evaluation) {
	group := e.group()
	e.blocksOf(func(index, r0, rows int, span op.SparseSpan) {
		for head := range e.Heads {
			kvHead := head / group
			begin := e.cache.row(driver.Place{Sequence: e.scalars.Sequence}, kvHead)
			seen := map[int]bool{}
			list := head * (1 + e.Context)
			for i := range int(e.in[1].at(index, list)) {
				seen[int(e.in[1].at(index, list+1+i))] = true
			}
			for row := r0; row < r0+rows; row++ {
				count := e.scalars.Pos + row + 1
				query := (kvHead*(group+2) + head%group) * e.HeadDim
				shares, steep := e.sharesOf(row, query, begin, count, func(pos int) bool {
					return pos < span.Inner || pos >= span.Block || seen[pos]
				})
				own, rest := 1.0, (*array)(nil)
				if unseen := span.Block - span.Inner - len(seen); e.Rest && unseen > 0 {
					own, rest = e.withRest(row, query, begin, unseen, &span, shares)
				}
				relative, absolute := e.roundedShares(begin, shares)
				for i := range e.HeadDim {
					sum, size := 0.0, 0.0
					for pos, share := range shares {
						term := own * share * e.cache.v[(begin+pos)*e.HeadDim+i]
						sum, size = sum+term, size+math.Abs(term)
					}
					out, doubt := head*e.HeadDim+i, relative*size+absolute
					if rest != nil { // means are rounded before they are multiplied
						sum, size = sum+(1-own)*rest.v[i], size+(1-own)*rest.size[i]
						doubt += 1e-6 * steep * (1 - own) * size
					}
					e.out[0].doubt[row*e.out[0].value.Cols+out] = doubt
					e.out[0].set(row, out, sum, e.cached(size)*steep)
				}
			}
		}
	})
}

// withRest returns how much of a query's attention is left to the positions that have these shares of it when the
// others before its block count as one, and the mean value [1,HeadDim] of all before the block.
func (e *evaluation) withRest(row, query, begin, unseen int, span *op.SparseSpan, shares []float64) (own float64,
	mean *array) {
	count := float64(span.Block - span.Inner)
	key := make([]float64, e.HeadDim)
	mean = newArray(op.Value{Rows: 1, Cols: e.HeadDim})
	for pos := span.Inner; pos < span.Block; pos++ {
		for i := range e.HeadDim {
			value := e.cache.v[(begin+pos)*e.HeadDim+i] / count
			key[i] += e.cache.k[(begin+pos)*e.HeadDim+i] / count
			mean.v[i], mean.size[i] = mean.v[i]+value, mean.size[i]+math.Abs(value)
		}
	}
	numbers := e.query(row, query)
	score := func(key []float64) float64 {
		scale, sum := e.Scale, 0.0
		if scale == 0 {
			scale = 1 / math.Sqrt(float64(e.HeadDim))
		}
		for i, value := range key {
			sum += numbers[i] * value
		}
		if sum *= scale; e.Cap > 0 {
			sum = e.Cap * math.Tanh(sum/e.Cap)
		}
		return sum
	}
	// The row's own position has a share, so that the sum of all weights follows from its score.
	last := len(shares) - 1
	total := score(e.cache.k[(begin+last)*e.HeadDim:][:e.HeadDim]) - math.Log(shares[last])
	return 1 / (1 + float64(unseen)*math.Exp(score(key)-total)), mean
}

// headNumbers are two scales with which a few numbers saturate, and the share of positions that a head keeps.
func headNumbers(j int, drawn float32) float32 {
	if j%3 == 2 {
		return float32(math.Abs(float64(drawn)))
	}
	return 0.01 + float32(math.Abs(float64(drawn)))/100
}

// choose fills positions that a graph reads with a selection that a call with these scalars may have.
func (tr *trial) choose(s driver.Scalars) {
	for _, node := range tr.graph.Nodes {
		if node.Op.Kind != op.SparseAttend {
			continue
		}
		operator, list := node.Op, tr.vals[node.In[1]]
		if !slices.ContainsFunc(tr.graph.Inputs, func(v op.Value) bool { return v.Name == node.In[1] }) {
			continue // an earlier node selects
		}
		rng := rand.New(rand.NewPCG(uint64(s.Pos), uint64(operator.Heads)))
		for r0 := 0; r0 < min(operator.M, s.Rows); r0 += operator.Block {
			span := operator.SpanOf(s.Pos+r0, min(operator.Block, min(operator.M, s.Rows)-r0))
			for head := range operator.Heads {
				at := list.v[r0/operator.Block*list.value.Cols+head*(1+operator.Context):]
				kept := 0
				chance := float64(head%3) / 2 // nothing, half, everything
				for pos := span.Inner; pos < span.Block; pos++ {
					if rng.Float64() < chance {
						kept++
						at[kept] = float64(pos)
					}
				}
				at[0] = float64(kept)
			}
		}
	}
}

// sparseOperators are the parts of a sparse attention, with blocks of one query, of several, and longer than the call.
func sparseOperators(add func(ops ...op.Op)) {
	type shape struct{ rows, heads, kvHeads, dim, context, block, window int }
	for i, s := range []shape{
		{1, 1, 1, 2, 64, 1, 0}, {5, 4, 2, 16, 64, 2, 0}, {19, 6, 2, 10, 64, 8, 0}, {19, 3, 3, 64, 64, 32, 0},
		{18, 4, 2, 20, 420, 7, 130}, {40, 8, 1, 80, 300, 16, 0}, {18, 4, 2, 64, 420, 16, 11},
		{70, 2, 1, 64, 700, 64, 500},
	} {
		operator := op.Op{Kind: op.Select, M: s.rows, Heads: s.heads, KVHeads: s.kvHeads, Context: s.context,
			Block: s.block, Window: s.window}
		add(operator)
		operator.Least = s.context / 4 // below and above what rows see
		add(operator)
		operator.Least = i % 2 * operator.Least
		operator.HeadDim = s.dim
		for _, kv := range op.CacheTypes {
			operator.KV = kv
			operator.Kind = op.Estimate
			add(operator)
			operator.Buckets = 3 + i%2*6
			add(operator)
			operator.Buckets = 0
			part := operator
			part.Kind, part.Density = op.SparseAttend, 0.3
			if i%2 == 1 {
				part.Cap, part.Scale = 5, 0.11
			}
			add(part)
			part.Rest = true
			add(part)
		}
	}
}
