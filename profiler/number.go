package profiler

import (
	"encoding/binary"
	"math"
	"strconv"
	"time"
)

// round keeps the given number of significant digits: more would claim what was not measured.
func round(x float64, digits int) float64 {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return x
	}
	r, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', digits, 64), 64)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return r
}

func floatBits(x float32) uint32 { return math.Float32bits(x) }
func put32(b []byte, x uint32)   { binary.LittleEndian.PutUint32(b, x) }
func put16(b []byte, x uint16)   { binary.LittleEndian.PutUint16(b, x) }
func patience() <-chan time.Time { return time.After(2 * time.Second) }
