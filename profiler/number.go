package profiler

import (
	"encoding/binary"
	"math"
	"strconv"
	"time"
)

// round keeps the given number of significant digits: more would claim what was not measured.
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

func floatBits(value float32) uint32 { return math.Float32bits(value) }
func put32(to []byte, value uint32)  { binary.LittleEndian.PutUint32(to, value) }
func put16(to []byte, value uint16)  { binary.LittleEndian.PutUint16(to, value) }
func patience() <-chan time.Time     { return time.After(2 * time.Second) }
