package socs

import (
	"math"

	"github.com/hetc/hetc/planir/op"
)

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
