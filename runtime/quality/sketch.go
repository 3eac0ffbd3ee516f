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
	k     int
	signs []float32 // W [K,S]
	y     []float32 // [K,S]: sum of x (x'W)
	z     [sketchWidth]float32
	x     []float32 // the row, scaled
	scale []float32 // [K]: inverse root mean squares, 0 for silent channels
	rows  int
}

// newSketch begins one for channels of the given mean squares: their scales must not matter to what is found.
func newSketch(meanSquare []float32) *sketch {
	k := len(meanSquare)
	s := &sketch{k: k, signs: make([]float32, k*sketchWidth), y: make([]float32, k*sketchWidth), x: make([]float32, k), scale: make([]float32, k)}
	rng := rand.New(rand.NewPCG(uint64(k), 0))
	for i := range s.signs {
		s.signs[i] = 1 - 2*float32(rng.Uint64()&1)
	}
	for i, m := range meanSquare {
		if m > 0 {
			s.scale[i] = float32(1 / math.Sqrt(float64(m)))
		}
	}
	return s
}

// add adds a row [K].
func (s *sketch) add(row []float32) {
	s.rows++
	clear(s.z[:])
	for i, v := range row {
		x := v * s.scale[i]
		s.x[i] = x
		w := s.signs[i*sketchWidth:][:sketchWidth]
		for r := range s.z {
			s.z[r] += float32(x * w[r])
		}
	}
	for i, x := range s.x {
		y := s.y[i*sketchWidth:][:sketchWidth]
		for r := range s.z {
			y[r] += float32(x * s.z[r])
		}
	}
}

// directions returns V [K,rank] in units of the activations with V V' about E[x x'], but for what only one
// channel does.
func (s *sketch) directions(rank int) []float32 {
	const n = sketchWidth
	// L L' = W' C W.
	var l [n][n]float64
	for i := range s.k {
		for a := range n {
			for b := range a + 1 {
				l[a][b] += float64(s.signs[i*n+a]) * float64(s.y[i*n+b]) / float64(s.rows)
			}
		}
	}
	trace := 0.0
	for a := range n {
		trace += l[a][a] / n
	}
	for a := range n {
		for b := range a + 1 {
			sum := l[a][b]
			for c := range b {
				sum -= l[a][c] * l[b][c]
			}
			switch {
			case b < a && l[b][b] > 0:
				l[a][b] = sum / l[b][b]
			case b == a && sum > 1e-6*trace:
				l[a][a] = math.Sqrt(sum)
			default: // the vectors so far span it already
				l[a][b] = 0
			}
		}
	}
	// F = (C W) L'^-1 [K,S], and G = F'F.
	f := make([]float64, s.k*n)
	var g [n][n]float64
	for i := range s.k {
		row := f[i*n : (i+1)*n]
		for a := range n {
			if l[a][a] == 0 {
				continue
			}
			sum := float64(s.y[i*n+a]) / float64(s.rows)
			for c := range a {
				sum -= l[a][c] * row[c]
			}
			row[a] = sum / l[a][a]
		}
		for a := range n {
			for b := range n {
				g[a][b] += row[a] * row[b]
			}
		}
	}
	u, order := eigen(&g)
	out := make([]float32, s.k*rank)
	for i := range s.k {
		if s.scale[i] == 0 {
			continue
		}
		v := make([]float64, rank)
		square := 0.0
		for r := range rank {
			for a := range n {
				v[r] += f[i*n+a] * u[a][order[r]]
			}
			square += v[r] * v[r]
		}
		shrink := 1 / math.Sqrt(max(1, square)) / float64(s.scale[i])
		for r := range rank {
			out[i*rank+r] = float32(v[r] * shrink)
		}
	}
	return out
}

// eigen returns the eigenvectors of a symmetric matrix as columns, by Jacobi's rotations, and their order by
// falling eigenvalue. The matrix is destroyed.
func eigen(g *[sketchWidth][sketchWidth]float64) (u [sketchWidth][sketchWidth]float64, order [sketchWidth]int) {
	const n = sketchWidth
	for i := range n {
		u[i][i] = 1
		order[i] = i
	}
	for range 30 {
		off, diag := 0.0, 0.0
		for p := range n {
			diag += g[p][p] * g[p][p]
			for q := range p {
				off += g[p][q] * g[p][q]
			}
		}
		if off <= 1e-24*diag {
			break
		}
		for p := range n {
			for q := p + 1; q < n; q++ {
				if g[p][q] == 0 {
					continue
				}
				theta := (g[q][q] - g[p][p]) / (2 * g[p][q])
				t := 1 / (math.Abs(theta) + math.Sqrt(theta*theta+1))
				if theta < 0 {
					t = -t
				}
				c := 1 / math.Sqrt(t*t+1)
				s := t * c
				for k := range n {
					a, b := g[k][p], g[k][q]
					g[k][p], g[k][q] = c*a-s*b, s*a+c*b
				}
				for k := range n {
					a, b := g[p][k], g[q][k]
					g[p][k], g[q][k] = c*a-s*b, s*a+c*b
				}
				for k := range n {
					a, b := u[k][p], u[k][q]
					u[k][p], u[k][q] = c*a-s*b, s*a+c*b
				}
			}
		}
	}
	for i := 1; i < n; i++ {
		for j := i; j > 0 && g[order[j]][order[j]] > g[order[j-1]][order[j-1]]; j-- {
			order[j], order[j-1] = order[j-1], order[j]
		}
	}
	return u, order
}
