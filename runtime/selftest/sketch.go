package selftest

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Sketch is what is kept of a result [Rows,Cols]. Its values in row-major order are cut into at most maxBlocks runs of
// neighbours, and, where a run has more than one value, into as many classes by their place in the run. Of every such
// block there is the sum with pseudo-random signs and the Euclidean norm (Alon, Matias and Szegedy's sketch of the
// second moment, per block). A difference of norm d in a block changes its sum by d in the mean, so that
// |sum-sum'|/norm estimates the relative error of the block. Each value is in a run and in a class.
type Sketch struct {
	Name string `json:"name"`
	Rows int    `json:"rows"`
	Cols int    `json:"cols"`
	// Sums are little-endian float32 with 16 bits of mantissa, those of runs, then those of classes; Norms are the
	// upper halves of float32, rounded up.
	Sums  []byte `json:"sums"`
	Norms []byte `json:"norms"`
}

// maxBlocks bounds a sketch to 6 KiB.
const maxBlocks = 512

// shape is the size of a result.
type shape struct {
	name       string
	rows, cols int
}

// blocks says how so many values are cut: the length of a run, and the numbers of runs and classes.
func blocks(values int) (length, runs, classes int) {
	length = max(1, (values+maxBlocks-1)/maxBlocks)
	runs = (values + length - 1) / length
	if length > 1 {
		classes = min(length, maxBlocks)
	}
	return length, runs, classes
}

// mixed returns a well mixed function of a place (SplitMix64), whose bits are signs.
func mixed(place int) uint64 {
	bits := uint64(place+1) * 0x9e3779b97f4a7c15
	bits = (bits ^ bits>>30) * 0xbf58476d1ce4e5b9
	bits = (bits ^ bits>>27) * 0x94d049bb133111eb
	return bits ^ bits>>31
}

// moments returns the sums and norms of the blocks of values, runs first, and the numbers of values in them.
func moments(values []float32) (sums, norms []float64, counts []int) {
	length, runs, classes := blocks(len(values))
	sums, norms, counts = make([]float64, runs+classes), make([]float64, runs+classes), make([]int, runs+classes)
	add := func(block int, value float64, negative bool) {
		counts[block]++
		norms[block] += float64(value * value)
		if negative {
			value = -value
		}
		sums[block] += value
	}
	for i, value := range values {
		signs := mixed(i)
		add(i/length, float64(value), signs&1 != 0)
		if classes > 0 {
			add(runs+i%length%classes, float64(value), signs&2 != 0)
		}
	}
	for i := range norms {
		norms[i] = math.Sqrt(norms[i])
	}
	return sums, norms, counts
}

// newSketch keeps what is needed of values.
func newSketch(of shape, values []float32) Sketch {
	sums, norms, _ := moments(values)
	out := Sketch{Name: of.name, Rows: of.rows, Cols: of.cols}
	for i := range sums {
		// Rounding takes off what two machines may compute differently in the last bits.
		sum := (math.Float32bits(float32(sums[i])) + 1<<7) &^ (1<<8 - 1)
		out.Sums = binary.LittleEndian.AppendUint32(out.Sums, sum)
		norm := (math.Float32bits(float32(norms[i])) + 1<<16 - 1) >> 16
		out.Norms = binary.LittleEndian.AppendUint16(out.Norms, uint16(norm))
	}
	return out
}

// check compares the sizes with those of a result, and refuses what is no number.
func (s *Sketch) check(want shape) error {
	if s.Name != want.name || s.Rows != want.rows || s.Cols != want.cols {
		return fmt.Errorf("%q [%d,%d], want %q [%d,%d]", s.Name, s.Rows, s.Cols, want.name, want.rows, want.cols)
	}
	_, runs, classes := blocks(s.Rows * s.Cols)
	if count := runs + classes; len(s.Sums) != 4*count || len(s.Norms) != 2*count {
		return fmt.Errorf("%q: %d and %d bytes of sums and norms, want %d and %d", s.Name, len(s.Sums), len(s.Norms),
			4*count, 2*count)
	}
	for i := range len(s.Norms) / 2 {
		if sum, norm := s.block(i); math.IsNaN(sum) || math.IsInf(sum, 0) || !(norm >= 0) || math.IsInf(norm, 0) {
			return fmt.Errorf("%q: block %d is no number", s.Name, i)
		}
	}
	return nil
}

// block returns the sum and the norm of a block.
func (s *Sketch) block(i int) (sum, norm float64) {
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(s.Sums[4*i:]))),
		float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(s.Norms[2*i:])) << 16))
}

// Difference is the largest relative error of a block, and where it is: rows Row to LastRow and columns Col to LastCol,
// both included.
type Difference struct {
	Error                      float64
	Row, LastRow, Col, LastCol int
}

// Compare returns how far values lie from those of the sketch: the largest difference of a block's sums, relative to
// the block's norm, or to the norm of an average block where that is larger. It is infinite for values that are no
// numbers.
func (s *Sketch) Compare(values []float32) Difference {
	sums, _, counts := moments(values)
	length, runs, _ := blocks(len(values))
	square := 0.0
	for i := range runs {
		_, norm := s.block(i)
		square += norm * norm
	}
	typical := math.Sqrt(square / float64(len(values))) // of one value
	worst, at := -1.0, 0
	for i := range sums {
		sum, norm := s.block(i)
		size := max(norm, typical*math.Sqrt(float64(counts[i])))
		off := math.Abs(sums[i] - sum)
		switch {
		case size > 0:
			off /= size
		case off > 0:
			off = math.Inf(1)
		}
		if math.IsNaN(off) {
			off = math.Inf(1)
		}
		// Runs come first, and say more exactly where it is.
		if off > worst {
			worst, at = off, i
		}
	}
	out := Difference{Error: worst, LastRow: s.Rows - 1, LastCol: s.Cols - 1}
	if at < runs {
		first, last := at*length, min((at+1)*length, len(values))-1
		out.Row, out.LastRow = first/s.Cols, last/s.Cols
		if out.Row == out.LastRow {
			out.Col, out.LastCol = first%s.Cols, last%s.Cols
		}
	}
	return out
}
