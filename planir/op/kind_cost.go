package op

import (
	"fmt"
	"strconv"
)

// What the rows of kindTable share: keys, and how much an operator computes and reads.

// matMulKey is built by hand because solvers ask for it thousands of times a plan.
func matMulKey(operator Op) string {
	text := make([]byte, 0, 64)
	for i, dimension := range []int{operator.M, operator.K, operator.K, operator.N} {
		text = strconv.AppendInt(append(text, []string{"matmul[", ",", "]x[", ","}[i]...), int64(dimension), 10)
	}
	text = append(append(text, "] "...), operator.Scheme...)
	return string(text) + textIf(operator.Bias, " bias") + textIf(operator.Form != "", " "+string(operator.Form))
}

// activationKey returns the key of GLU and Activate: the function matters.
func activationKey(operator Op) string {
	return fmt.Sprintf("%s[%d,%d] %s", operator.Kind, operator.Rows(), operator.N, operator.Act)
}

// textIf returns the text if the condition is set, else "".
func textIf(set bool, text string) string {
	if set {
		return text
	}
	return ""
}

// elements returns the number of elements of [rows,columns].
func elements(rows, columns int) int64 { return int64(rows) * int64(columns) }

// perElement counts so much for every element of the [M*Fan,N] that the operator computes.
func perElement(each int64) func(operator Op) int64 {
	return func(operator Op) int64 { return each * elements(operator.Rows(), operator.N) }
}

// productFlops counts a multiply-add for every element of every row's product.
func productFlops(operator Op) int64 {
	return 2 * elements(operator.Rows(), operator.K) * int64(operator.N)
}

// productBytes returns the traffic of a product that reads inputRows rows of activations and so many weights.
func productBytes(operator Op, inputRows, weights int) int64 {
	in := 4 * elements(inputRows, operator.K)
	if operator.Scheme.QuantisedRows() {
		in = elements(inputRows, operator.K) + 4*int64(inputRows)
	}
	if operator.Bias {
		in += 4 * int64(operator.N)
	}
	if operator.Scheme.Grid() {
		in += 8 * int64(operator.N)
	}
	return int64(weights)*WeightBytes(operator.Scheme.Weight(), operator.K, operator.N) + in +
		4*elements(operator.Rows(), operator.N)
}

// attentionBytes counts the keys and values of the positions that any row attends to, once, and queries and results.
func attentionBytes(operator Op) int64 {
	cached := int64(max(operator.Context, operator.M))
	switch {
	case operator.Batch:
		cached = operator.attendedPairs()
	case operator.Window > 0:
		cached = min(cached, int64(operator.Window)+int64(operator.M))
	}
	return 2*cached*int64(operator.KVHeads)*operator.KV.CacheRowBytes(operator.HeadDim) +
		8*elements(operator.M, operator.Heads)*int64(operator.HeadDim)
}

// attendedPairs returns the number of (query row, cached position) pairs of a causal attention.
func (o Op) attendedPairs() int64 {
	rows, context, window := int64(o.M), int64(o.Context), int64(o.Window)
	if o.Batch {
		if window > 0 {
			context = min(context, window)
		}
		return rows * context
	}
	context = max(context, rows)
	before := context - rows // positions that every row attends to
	if window == 0 || context <= window {
		return rows*before + rows*(rows+1)/2
	}
	short := max(0, min(rows, window-before)) // rows that attend to fewer than Window positions
	return short*before + short*(short+1)/2 + (rows-short)*window
}
