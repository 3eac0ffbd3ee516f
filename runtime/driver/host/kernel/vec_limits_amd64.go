package kernel

// Multiply-adds of one turn of the loops: accumulators times elements.
const (
	peakI8Turn512, peakF32Turn512 = 24 * 64, 24 * 16
	peakI8Turn256, peakF32Turn256 = 8 * 32, 12 * 8
	peakI8TurnVNNI                = 12 * 32
)

// peakI8 runs the loop of the instruction that the tier's 8-bit kernels use.
func (t tier) peakI8(ops int64) int64 {
	switch t {
	case avx512vnni:
		return counted(ops, 2*peakI8Turn512, func(turns int) int64 {
			var sum [64]byte
			peakI8x512(turns, &sum[0])
			return integers(sum[:])
		})
	case avxvnni:
		return counted(ops, 2*peakI8TurnVNNI, func(turns int) int64 {
			var sum [32]byte
			peakI8xVNNI(turns, &sum[0])
			return integers(sum[:])
		})
	}
	return counted(ops, 2*peakI8Turn256, func(turns int) int64 {
		var sum [32]byte
		peakI8x256(turns, &sum[0])
		return integers(sum[:])
	})
}

// peakF32 runs the loop of multiply-adds in the width of the tier's float32 kernels.
func (t tier) peakF32(ops int64) int64 {
	if t.wide() {
		return counted(ops, 2*peakF32Turn512, func(turns int) int64 {
			var sum [64]byte
			peakF32x512(turns, &sum[0])
			return floats(sum[:])
		})
	}
	return counted(ops, 2*peakF32Turn256, func(turns int) int64 {
		var sum [32]byte
		peakF32x256(turns, &sum[0])
		return floats(sum[:])
	})
}

// issue does at least n instructions that wait for nothing.
func issue(n int64) (done int64) {
	const turn = 240
	for done < n {
		turns := min(peakTurns, (n-done+turn-1)/turn)
		issue240(int(turns))
		done += turns * turn
	}
	return done
}

// stream reads in the tier's register width, and what eight equal streams leave in Go.
func (t tier) stream(b []byte) uint64 {
	turns := len(b) / (streams * line)
	if turns == 0 {
		return stream(b)
	}
	rest := stream(b[turns*streams*line:])
	if t.wide() {
		return rest + stream512(&b[0], turns, turns*line)
	}
	return rest + stream256(&b[0], turns, turns*line)
}
