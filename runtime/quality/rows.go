package quality

import (
	"math"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/executor"
)

// maxRowSamples bounds the samples that RowScales keeps of a class in a layer. Where there are more rows, every second
// one is kept, every fourth, and so on, from the first.
const maxRowSamples = 1 << 14

// RowScales collects the scales that the rows which enter the matrix products have of their own: the largest magnitude
// of a row over 127, the largest number of int8. Pass Observe to the executor and execute in float32 on one lane.
type RowScales struct {
	// Factors divide the channels of a class in a layer; nil: none does.
	Factors func(class string, layer int) []float32

	// by node and layer
	samples map[place]*rowSamples
	err     error
}

// rowSamples are the scales of every so many rows.
type rowSamples struct {
	rows, every int
	kept        []float64
}

// Observe adds what a step has read, if it is a matrix product. Executions are observed one after another. The first
// error is kept for Samples.
func (r *RowScales) Observe(seen executor.Observed) {
	if r.err == nil {
		r.err = r.observe(&seen)
	}
}

// observe looks at the rows that enter a product, divided by the factors of their channels.
func (r *RowScales) observe(seen *executor.Observed) error {
	step, err := product(seen)
	if step == nil {
		return err
	}
	var factors []float32
	if r.Factors != nil {
		factors = r.Factors(seen.Node, seen.Layer)
	}
	if factors != nil && len(factors) != step.cols {
		const differ = "observe %q in layer %d: %d factors, want %d"
		return diag.New(diag.ClassRun, differ, seen.Node, seen.Layer, len(factors), step.cols)
	}
	if r.samples == nil {
		r.samples = map[place]*rowSamples{}
	}
	at := place{seen.Node, seen.Layer}
	if r.samples[at] == nil {
		r.samples[at] = &rowSamples{every: 1}
	}
	for row := range step.rows {
		// after smoothing, as the quantised product will see the row
		top := largest(row, factors)
		if math.IsNaN(top) || math.IsInf(top, 0) {
			const endless = "observe %q in layer %d: a row holds NaN or an infinity"
			return diag.New(diag.ClassRun, endless, seen.Node, seen.Layer)
		}
		r.samples[at].add(top / 127)
	}
	return nil
}

// largest returns the largest magnitude of a row whose channels are divided by factors, unless nil.
func largest(row, factors []float32) float64 {
	top := 0.0
	for i, value := range row {
		magnitude := math.Abs(float64(value))
		if factors != nil {
			magnitude /= float64(factors[i])
		}
		top = max(top, magnitude)
	}
	return top
}

// add keeps the scale of a row if it is its turn, and drops every second one when there are too many.
func (s *rowSamples) add(scale float64) {
	if s.rows%s.every == 0 {
		if len(s.kept) == maxRowSamples {
			for i := range maxRowSamples / 2 {
				s.kept[i] = s.kept[2*i]
			}
			s.kept = s.kept[:maxRowSamples/2]
			s.every *= 2
		}
		if s.rows%s.every == 0 {
			s.kept = append(s.kept, scale)
		}
	}
	s.rows++
}

// Samples returns the scales of rows of a class in a layer, in the order of execution; nil where it was not observed.
func (r *RowScales) Samples(class string, layer int) ([]float64, error) {
	if r.err != nil {
		return nil, r.err
	}
	if samples := r.samples[place{class, layer}]; samples != nil {
		return samples.kept, nil
	}
	return nil, nil
}
