package quality

import (
	"math"
	"math/rand/v2"
)

// sketchWidth is the number of random vectors that correlations are seen through; the principal directions among
// so many are known well.
const sketchWidth = 96

// sketch collects the products of a matrix C = E[x x'] [K,K] with random vectors of signs, C*W [K,S], from which
// the Nystrom approximation C = (C W) (W' C W)^-1 (C W)' follows without ever holding C.
type sketch struct {
	channels int
	signs    []float32 // W [K,S]
	products []float32 // [K,S]: sum of x (x'W)
	dots     [sketchWidth]float32
	scaled   []float32 // the row
	scale    []float32 // [K]: inverse root mean squares, 0 for silent channels
	rows     int
}

// matrix is one of W' C W, or of what follows from it.
type matrix [sketchWidth][sketchWidth]float64

// newSketch begins one for channels of the given mean squares: their scales must not matter to what is found.
func newSketch(meanSquare []float32) *sketch {
	count := len(meanSquare)
	out := &sketch{
		channels: count, signs: make([]float32, count*sketchWidth), products: make([]float32, count*sketchWidth),
		scaled: make([]float32, count), scale: make([]float32, count),
	}
	random := rand.New(rand.NewPCG(uint64(count), 0)) // the same for as many channels
	for i := range out.signs {
		out.signs[i] = 1 - 2*float32(random.Uint64()&1)
	}
	for i, square := range meanSquare {
		if square > 0 {
			out.scale[i] = float32(1 / math.Sqrt(float64(square)))
		}
	}
	return out
}

// add adds a row [K].
func (s *sketch) add(row []float32) {
	s.rows++
	clear(s.dots[:])
	for i, value := range row {
		scaled := value * s.scale[i]
		s.scaled[i] = scaled
		signs := s.signs[i*sketchWidth:][:sketchWidth]
		for j := range s.dots {
			s.dots[j] += float32(scaled * signs[j])
		}
	}
	for i, scaled := range s.scaled {
		products := s.products[i*sketchWidth:][:sketchWidth]
		for j := range s.dots {
			products[j] += float32(scaled * s.dots[j])
		}
	}
}

// directions returns V [K,rank] in units of the activations with V V' about E[x x'], but for what only one
// channel does.
//
// With L L' = W' C W (Cholesky) and F = (C W) L'^-1 the approximation is C = F F'. The eigenvectors U of F'F, those of
// the largest eigenvalues first, turn F into the principal directions F U. The cost is K S^2 for F and S^3 for U.
func (s *sketch) directions(rank int) []float32 {
	factor, gram := s.factor(s.cholesky())
	vectors, order := eigen(gram)
	out := make([]float32, s.channels*rank)
	direction := make([]float64, rank)
	for i := range s.channels {
		if s.scale[i] == 0 {
			continue
		}
		// one row of F U, in scaled units
		clear(direction)
		square := 0.0
		for j := range rank {
			for k := range sketchWidth {
				direction[j] += factor[i*sketchWidth+k] * vectors[k][order[j]]
			}
			square += direction[j] * direction[j]
		}
		// No channel has more than its own variance, which is 1 while scaled.
		shrink := 1 / math.Sqrt(max(1, square)) / float64(s.scale[i])
		for j := range rank {
			out[i*rank+j] = float32(direction[j] * shrink)
		}
	}
	return out
}

// cholesky returns L with L L' = W' C W. A vector of W that those before it span has a column of zeros.
func (s *sketch) cholesky() *matrix {
	const n = sketchWidth
	// W' C W first, of which only the lower triangle is needed, then the factor in its place
	lower := &matrix{}
	for i := range s.channels {
		for row := range n {
			for col := range row + 1 {
				lower[row][col] += float64(s.signs[i*n+row]) * float64(s.products[i*n+col]) / float64(s.rows)
			}
		}
	}
	trace := 0.0
	for row := range n {
		trace += lower[row][row] / n
	}
	for row := range n {
		for col := range row + 1 {
			// A pivot within rounding of zero is a dependent vector: its column stays zero.
			sum := lower[row][col]
			for k := range col {
				sum -= lower[row][k] * lower[col][k]
			}
			switch {
			case col < row && lower[col][col] > 0:
				lower[row][col] = sum / lower[col][col]
			case col == row && sum > 1e-6*trace:
				lower[row][row] = math.Sqrt(sum)
			default:
				lower[row][col] = 0
			}
		}
	}
	return lower
}

// factor returns F = (C W) L'^-1 [K,S], by forward substitution row by row, and F'F.
func (s *sketch) factor(lower *matrix) (factor []float64, gram *matrix) {
	const n = sketchWidth
	factor, gram = make([]float64, s.channels*n), &matrix{}
	for i := range s.channels {
		row := factor[i*n : (i+1)*n]
		for col := range n {
			if lower[col][col] == 0 {
				continue
			}
			sum := float64(s.products[i*n+col]) / float64(s.rows)
			for k := range col {
				sum -= lower[col][k] * row[k]
			}
			row[col] = sum / lower[col][col]
		}
		for j := range n {
			for k := range n {
				gram[j][k] += row[j] * row[k]
			}
		}
	}
	return factor, gram
}

// eigen returns the eigenvectors of a symmetric matrix as columns, by Jacobi's rotations, and their order by
// falling eigenvalue. The matrix is destroyed.
//
// Each rotation makes one element beside the diagonal zero. A sweep goes over all of them; sweeps go on until the
// elements beside the diagonal are rounding errors of those on it, 30 times at most.
func eigen(gram *matrix) (vectors *matrix, order [sketchWidth]int) {
	const n = sketchWidth
	vectors = &matrix{}
	for i := range n {
		vectors[i][i] = 1
		order[i] = i
	}
	for range 30 {
		off, diagonal := 0.0, 0.0
		for p := range n {
			diagonal += gram[p][p] * gram[p][p]
			for q := range p {
				off += gram[p][q] * gram[p][q]
			}
		}
		if off <= 1e-24*diagonal {
			break
		}
		for p := range n {
			for q := p + 1; q < n; q++ {
				if gram[p][q] != 0 {
					gram.eliminate(vectors, p, q)
				}
			}
		}
	}
	for i := 1; i < n; i++ { // insertion sort
		for j := i; j > 0 && gram[order[j]][order[j]] > gram[order[j-1]][order[j-1]]; j-- {
			order[j], order[j-1] = order[j-1], order[j]
		}
	}
	return vectors, order
}

// eliminate makes g[p][q] zero by a rotation of rows and columns p and q, which it also applies to the eigenvectors.
func (g *matrix) eliminate(vectors *matrix, row, col int) {
	theta := (g[col][col] - g[row][row]) / (2 * g[row][col])
	tangent := 1 / (math.Abs(theta) + math.Sqrt(theta*theta+1))
	if theta < 0 {
		tangent = -tangent
	}
	cos := 1 / math.Sqrt(tangent*tangent+1)
	sin := tangent * cos
	rotate := func(x, y *float64) {
		a, b := *x, *y
		*x, *y = cos*a-sin*b, sin*a+cos*b
	}
	for k := range g {
		rotate(&g[k][row], &g[k][col])
	}
	for k := range g {
		rotate(&g[row][k], &g[col][k])
	}
	for k := range vectors {
		rotate(&vectors[k][row], &vectors[k][col])
	}
}
