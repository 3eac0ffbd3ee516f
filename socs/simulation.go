package socs

import (
	"math"

	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
)

// simulation holds the simulation's truth about a processor: a graph takes launch_us and the sum of its operators.
type simulation struct {
	Schemes map[op.Scheme]SimScheme `json:"schemes" yaml:"schemes"`
	// 1e9 op/s of everything but matmuls, which takes max(work/rate, bytes/bandwidth)
	OtherGops float64 `json:"other_gops" yaml:"other_gops"`
	// Estimate is how fast scores of sparse attention are estimated; nil: as everything but matmuls.
	Estimate *SimEstimate `json:"estimate,omitempty" yaml:"estimate,omitempty"`
	// NoiseCV is the coefficient of variation of samples, e.g. 0.02.
	NoiseCV float64 `json:"noise_cv,omitempty" yaml:"noise_cv,omitempty"`
	// Infeasible lists matmul shapes the simulated compiler refuses.
	Infeasible []ShapeRange `json:"infeasible,omitempty" yaml:"infeasible,omitempty"`
}

// SimEstimate is how fast a processor estimates the scores of sparse attention in 8 bits (op.Estimate): a launch of
// some heads takes setup_us + max(work/peak, bytes/bandwidth), with work as op.Op.EstimateWork counts it.
type SimEstimate struct {
	PeakGops float64 `json:"peak_gops" yaml:"peak_gops"`                   // 1e9 op/s
	SetupUS  float64 `json:"setup_us,omitempty" yaml:"setup_us,omitempty"` // per launch
}

// SimScheme is how fast matmuls of one scheme run: M, K and N are rounded up to Step, then the time is
// setup_us + long_k * wide * max(work/peak, bytes/bandwidth).
type SimScheme struct {
	PeakGops float64 `json:"peak_gops" yaml:"peak_gops"` // 1e9 op/s reached by large shapes
	// memory traffic per weight when it differs from the stored size
	WeightBits float64         `json:"weight_bits,omitempty" yaml:"weight_bits,omitempty"`
	SetupUS    float64         `json:"setup_us,omitempty" yaml:"setup_us,omitempty"` // per matmul
	Step       capability.Tile `json:"step" yaml:"step,omitempty"`                   // latency is flat within one step
	// factor >= 1 when K >= long_k_from; 0: none
	LongK     float64 `json:"long_k,omitempty" yaml:"long_k,omitempty"`
	LongKFrom int     `json:"long_k_from,omitempty" yaml:"long_k_from,omitempty"`
	// products of N > wide_from columns take (N/wide_from)^wide_power times as long; 0: none do
	WideFrom  int     `json:"wide_from,omitempty" yaml:"wide_from,omitempty"`
	WidePower float64 `json:"wide_power,omitempty" yaml:"wide_power,omitempty"`
	// Forms are the prices of other forms than the default, by class: one for each that the processor lists.
	Forms map[op.Form]SimForm `json:"forms,omitempty" yaml:"forms,omitempty"`
}

// ShapeFactor returns how many times as long a product takes for its K and N than the rates of the scheme say.
func (r *SimScheme) ShapeFactor(k, n int) float64 {
	factor := 1.0
	if r.LongK > 1 && k >= r.LongKFrom {
		factor = r.LongK
	}
	if r.WideFrom > 0 && n > r.WideFrom {
		factor *= math.Pow(float64(n)/float64(r.WideFrom), r.WidePower)
	}
	return factor
}

// ShapeRange is a box of matmul shapes: each dimension within [Min, Max]; Max 0 is unbounded.
type ShapeRange struct {
	MinM int `json:"min_m,omitempty" yaml:"min_m,omitempty"`
	MaxM int `json:"max_m,omitempty" yaml:"max_m,omitempty"`
	MinK int `json:"min_k,omitempty" yaml:"min_k,omitempty"`
	MaxK int `json:"max_k,omitempty" yaml:"max_k,omitempty"`
	MinN int `json:"min_n,omitempty" yaml:"min_n,omitempty"`
	MaxN int `json:"max_n,omitempty" yaml:"max_n,omitempty"`
}

// Contains reports whether a matmul of that shape lies in the box.
func (r ShapeRange) Contains(m, k, n int) bool {
	in := func(v, lo, hi int) bool { return v >= lo && (hi == 0 || v <= hi) }
	return in(m, r.MinM, r.MaxM) && in(k, r.MinK, r.MaxK) && in(n, r.MinN, r.MaxN)
}

// SimForm is how fast matmuls of a scheme run in a form other than the default: either Gain or, of op.Swapped
// alone, FillRows.
type SimForm struct {
	// Gain is the time of an operator in the default form over that in this one. Of a convolution it is the gain of an
	// image whose shorter side is Side or more (llm.npu sec. 4); one pixel wide or high it takes the default's time,
	// and between the two the gain is interpolated in logarithms.
	Gain float64 `json:"gain,omitempty" yaml:"gain,omitempty"`
	Side int     `json:"side,omitempty" yaml:"side,omitempty"`
	// FillRows is what it costs to load a tile of the operand that stays in the array, in rows of the other operand
	// that could stream through meanwhile (HeteroInfer sec. 3.2). The scheme's rates are then those of the
	// weight-first order, and computing in the default order takes (M+FillRows)/M * N/(N+FillRows) times as long.
	FillRows int `json:"fill_rows,omitempty" yaml:"fill_rows,omitempty"`
}

// FormFactors returns what the form of a matmul of m rows and n columns changes: its computing takes compute times, and
// then the whole of it whole times what the rates of the scheme say.
func (r *SimScheme) FormFactors(form op.Form, m, n int) (compute, whole float64) {
	price, priced := r.Forms[form.Class()]
	if form == "" {
		if fill := float64(r.Forms[op.Swapped].FillRows); fill > 0 {
			rows, cols := float64(m), float64(n)
			return (rows + fill) / rows * (cols / (cols + fill)), 1
		}
		return 1, 1
	}
	if !priced || price.Gain == 0 {
		return 1, 1
	}
	if width, height, ok := form.Image(); ok && price.Side > 1 {
		return 1, math.Pow(price.Gain, -math.Log(float64(min(width, height, price.Side)))/math.Log(float64(price.Side)))
	}
	return 1, 1 / price.Gain
}
