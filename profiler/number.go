package profiler

import (
	"math"
	"strconv"
)

// round keeps the given number of significant digits; more would claim a precision that was not
// measured.
func round(value float64, digits int) float64 {
	if value == 0 || math.IsNaN(value) || math.IsInf(value, 0) {
		return value
	}
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(value, 'g', digits, 64), 64)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return rounded
}
