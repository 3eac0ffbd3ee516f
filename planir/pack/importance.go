package pack

import (
	"sync"

	"github.com/hetc/hetc/internal/diag"
)

// Importance says which errors of a weight [K,N] matter, from what enters it: activations x whose second
// moments are E[x_i x_j], so that errors e of a column cost e' E[x x'] e.
type Importance struct {
	k, rank int
	weight  []float32 // [K], what an error of a row alone costs, 1 on the average
	dir     []float32 // [K,rank]
	gain    []float32 // [K,rank]: see NewImportance

	mu    sync.Mutex
	cross map[int][]float32 // by block length: [K,block], gain of a row times dir of each row of its block
}

// NewImportance makes the importance of K rows from the mean squares [K] of the activations that enter them and,
// where correlations are known, directions [K,R] with E[x_i x_j] close to their products for i != j (nil: none).
//
// Quantisation then lets later rows make up for the errors of earlier ones: with H = D + V V', V the directions, the
// rows from k on that are still free move by -D^-1 V G V' e for the errors e so far, G the inverse of I + sum over
// j >= k of v_j v_j'/d_j. It is the error feedback of GPTQ (sec. 3) for an H that is diagonal plus low rank. Negative,
// infinite and NaN values are refused.
//
// RATIONALE: Why do rows make up for each other's errors?
func NewImportance(meanSquare, directions []float32) (*Importance, error) {
	rows := len(meanSquare)
	if rows < 1 || rows > maxDim || len(directions)%rows != 0 {
		return nil, diag.New(diag.ClassInput,
			"importance: got %d mean squares and %d values of directions, want a whole number of directions for "+
				"1..%d rows", rows, len(directions), maxDim)
	}
	importance := &Importance{k: rows, rank: len(directions) / rows, weight: make([]float32, rows), dir: directions,
		cross: map[int][]float32{}}
	if importance.rank > maxRank {
		return nil, diag.New(diag.ClassInput, "importance: got %d directions, want at most %d", importance.rank,
			maxRank)
	}

	mean := 0.0
	for i, value := range meanSquare {
		if !finite(value) || value < 0 {
			return nil, diag.New(diag.ClassInput, "importance: mean square %d is %v, want finite and not negative", i,
				value)
		}
		mean += float64(value) / float64(rows)
	}

	for i, value := range directions {
		if !finite(value) {
			return nil, diag.New(diag.ClassInput, "importance: direction %d of row %d is %v, want a finite number",
				i%importance.rank, i/importance.rank, value)
		}
	}

	if mean == 0 { // nothing is known
		mean = 1
	}
	for i, value := range meanSquare {
		importance.weight[i] = float32((float64(value)/mean + damp) / (1 + damp))
	}
	if importance.rank > 0 {
		importance.gain = feedbackGains(meanSquare, directions, mean)
	}
	return importance, nil
}

// damp is the weight of a channel that was silent during calibration, as a share of the mean: it may be active later.
const damp = 0.01

// feedbackGains returns the gains [K,R] of each row's error feedback, from the last row to the first. Here gain is G:
// each row adds v v'/d to the matrix that it is the inverse of, a change of rank one (Sherman-Morrison).
func feedbackGains(meanSquare, directions []float32, mean float64) []float32 {
	rows := len(meanSquare)
	rank := len(directions) / rows
	out := make([]float32, len(directions))
	gain := make([]float64, rank*rank)
	gv := make([]float64, rank)
	for i := range rank {
		gain[i*rank+i] = 1
	}
	for row := rows - 1; row >= 0; row-- {
		own := directions[row*rank : (row+1)*rank]
		along := 0.0 // of the mean square: what directions explain
		for _, value := range own {
			along += float64(float64(value) * float64(value))
		}
		diagonal := max(float64(meanSquare[row])-along, 0.01*float64(meanSquare[row])) + float64(damp*mean)
		den := diagonal

		for i := range rank {
			sum := 0.0
			for j, value := range own {
				sum += float64(gain[i*rank+j] * float64(value))
			}
			gv[i] = sum
			den += float64(sum * float64(own[i]))
		}

		for i := range rank {
			factor := gv[i] / den
			out[row*rank+i] = float32(factor)
			for j := range rank {
				gain[i*rank+j] -= float64(factor * gv[j])
			}
		}
	}
	return out
}

// maxRank is the largest number of directions.
const maxRank = 256

// rows returns the importance of rows from on, without directions.
func (p *Importance) rows(from int) *Importance {
	return &Importance{k: p.k - from, weight: p.weight[from:]}
}

// blockGains returns the products of gains and directions within blocks.
func (p *Importance) blockGains(block int) []float32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.cross[block]; ok {
		return known
	}

	rank := p.rank
	gains := make([]float32, p.k*block)
	for row := range p.k {
		own := p.gain[row*rank : (row+1)*rank]
		for j := row / block * block; j < row; j++ {
			var sum float32
			for i, value := range p.dir[j*rank : (j+1)*rank] {
				sum += float32(own[i] * value)
			}
			gains[row*block+j%block] = sum
		}
	}
	p.cross[block] = gains
	return gains
}
