package induction

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// layerName returns the beginning of the names of a layer's tensors.
func layerName(layer int) string { return fmt.Sprintf("model.layers.%d.", layer) }

// dot returns the product of two vectors. Each product is rounded, so that the sum is the same with and without fused
// multiplication.
func dot(a, b []float64) float64 {
	sum := 0.0
	for i, value := range a {
		sum += float64(value * b[i])
	}
	return sum
}

// pairs are how often tokens follow each other in a text.
type pairs struct {
	total  float64
	single []float64         // by token
	next   []map[int]float64 // by token: what follows it, how often
	order  [][]int           // the keys of next, ascending
}

// smoothing is what is added to counts: of single tokens to each, of what follows a token to all tokens together, in
// proportion to their shares.
const (
	smoothSingle = 0.3
	smoothPair   = 280.0
)

// countPairs counts a text.
func countPairs(ids []int32, vocab int) *pairs {
	out := &pairs{single: make([]float64, vocab), next: make([]map[int]float64, vocab), order: make([][]int, vocab)}
	for token := range out.single {
		out.single[token] = smoothSingle
		out.next[token] = map[int]float64{}
	}
	for i, id := range ids {
		out.single[id]++
		if i+1 < len(ids) {
			out.next[id][int(ids[i+1])]++
		}
	}
	for token, count := range out.single {
		out.total += count
		for next := range out.next[token] {
			out.order[token] = append(out.order[token], next)
		}
		slices.Sort(out.order[token])
	}
	return out
}

// logShare returns the logarithm of a token's share of the text.
func (p *pairs) logShare(token int) float64 { return math.Log(p.single[token] / p.total) }

// weight returns how much the gains of a token count: pairs of frequent tokens are to be near, since they are asked for
// most.
func (p *pairs) weight(token int) float64 { return math.Sqrt(p.single[token] + 2) }

// gain is by how much a token is likelier behind another one than anywhere, as a logarithm; 0 for pairs that the text
// does not have. It is weighted by both tokens.
func (p *pairs) gain(token, next int) float64 {
	return math.Log1p(p.next[token][next]/(smoothPair*p.single[next]/p.total)) * p.weight(token) * p.weight(next)
}

// factors are two matrices [vocab,rank] whose product left*right' comes near the gains. They are the largest singular
// vectors of the weighted gains, each scaled with the root of its singular value, without the weights.
//
// Subspace iteration (orthogonal iteration): an orthonormal basis is multiplied by the sparse matrix and its transpose,
// and made orthonormal again by Gram and Schmidt's method. It converges to the space of the largest singular vectors; a
// product takes rank times the number of pairs.
func (p *pairs) factors(rank int, random *rand.Rand) (left, right *matrix) {
	const rounds = 12
	vocab := len(p.single)
	rank = min(rank, vocab)
	basis := newMatrix(rank, vocab) // rows are vectors over what follows
	for i := range basis.values {
		basis.values[i] = random.NormFloat64()
	}
	orthonormal(basis)
	image := newMatrix(rank, vocab) // of basis: vectors over tokens
	for range rounds {
		p.multiply(image, basis)
		orthonormal(image)
		p.transposed(basis, image)
		orthonormal(basis)
	}
	p.multiply(image, basis)
	left, right = newMatrix(vocab, pairDim), newMatrix(vocab, pairDim)
	for i := range rank {
		size := math.Sqrt(math.Sqrt(dot(image.row(i), image.row(i))))
		if size == 0 {
			continue // the text has fewer directions
		}
		for token := range vocab {
			left.set(token, i, image.row(i)[token]/size/p.weight(token))
			right.set(token, i, basis.row(i)[token]*size/p.weight(token))
		}
	}
	return left, right
}

// multiply computes out = gains * basis, vector by vector.
func (p *pairs) multiply(out, basis *matrix) {
	clear(out.values)
	for token, order := range p.order {
		for _, next := range order {
			gain := p.gain(token, next)
			for i := range basis.rows {
				out.values[i*out.cols+token] += float64(gain * basis.values[i*basis.cols+next])
			}
		}
	}
}

// transposed computes out = gains' * image, vector by vector.
func (p *pairs) transposed(out, image *matrix) {
	clear(out.values)
	for token, order := range p.order {
		for _, next := range order {
			gain := p.gain(token, next)
			for i := range image.rows {
				out.values[i*out.cols+next] += float64(gain * image.values[i*image.cols+token])
			}
		}
	}
}

// orthonormal makes the rows orthogonal and of length 1, in their order. A row that is a sum of those before it, but
// for rounding, becomes zero.
func orthonormal(m *matrix) {
	for i := range m.rows {
		row := m.row(i)
		before := dot(row, row)
		for range 2 { // again, for what rounding has left
			for j := range i {
				share := dot(row, m.row(j))
				for k, value := range m.row(j) {
					row[k] -= float64(share * value)
				}
			}
		}
		square := dot(row, row)
		size := 0.0
		if square > 1e-20*before && square > 0 {
			size = 1 / math.Sqrt(square)
		}
		for k := range row {
			row[k] *= size
		}
	}
}
