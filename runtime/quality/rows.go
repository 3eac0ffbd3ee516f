package quality

import (
	"math"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/executor"
)

// MaxRowSamples bounds the samples that RowScales keeps of a class in a layer. Where there are more rows, every second one is
// kept, every fourth, and so on, from the first.
const MaxRowSamples = 1 << 14

// RowScales collects the scales that the rows which enter the matrix products have of their own, from executions in float32
// on one lane: pass Observe to the executor and execute.
type RowScales struct {
	// Factors divide the channels of a class in a layer; nil: none does.
	Factors func(class string, layer int) []float32

	samples map[place]*rowSamples
	err     error
}

type rowSamples struct {
	rows, every int
	kept        []float64
}

// Observe adds what a step has read, if it is a matrix product. Executions are observed one after another.
func (r *RowScales) Observe(seen executor.Observed) {
	if r.err != nil {
		return
	}
	node, rows, cols, err := product(&seen)
	if err != nil {
		r.err = err
	}
	if node == nil {
		return
	}
	var factors []float32
	if r.Factors != nil {
		factors = r.Factors(seen.Node, seen.Layer)
	}
	if factors != nil && len(factors) != cols {
		r.err = diag.New(diag.ClassRun, "observe %q in layer %d: %d factors, want %d", seen.Node, seen.Layer, len(factors), cols)
		return
	}
	if r.samples == nil {
		r.samples = map[place]*rowSamples{}
	}
	at := place{seen.Node, seen.Layer}
	if r.samples[at] == nil {
		r.samples[at] = &rowSamples{every: 1}
	}
	for row := range rows {
		top := 0.0
		for i, value := range row {
			magnitude := math.Abs(float64(value))
			if factors != nil {
				magnitude /= float64(factors[i])
			}
			top = max(top, magnitude)
		}
		if math.IsNaN(top) || math.IsInf(top, 0) {
			r.err = diag.New(diag.ClassRun, "observe %q in layer %d: a row holds NaN or an infinity", seen.Node, seen.Layer)
			return
		}
		r.samples[at].add(top / 127)
	}
}

func (s *rowSamples) add(scale float64) {
	if s.rows%s.every == 0 {
		if len(s.kept) == MaxRowSamples {
			for i := range MaxRowSamples / 2 {
				s.kept[i] = s.kept[2*i]
			}
			s.kept = s.kept[:MaxRowSamples/2]
			s.every *= 2
		}
		if s.rows%s.every == 0 {
			s.kept = append(s.kept, scale)
		}
	}
	s.rows++
}

// Samples are the scales of rows of a class in a layer, in the order of execution; nil where it was not observed.
func (r *RowScales) Samples(class string, layer int) ([]float64, error) {
	if r.err != nil {
		return nil, r.err
	}
	if samples := r.samples[place{class, layer}]; samples != nil {
		return samples.kept, nil
	}
	return nil, nil
}
