package kernel

import "encoding/binary"

// The portable limits: chains of multiply-adds a = a*b + c on scalar registers. With b = c = 1 the chains
// count what they do.

const peakTurns = 1 << 18 // of one count: sums of float32 ones are exact up to 1<<24

// counted calls count(turns) until at least ops operations are done, and returns how many. A turn
// has perTurn operations. count returns the multiply-adds that its accumulators show, so that a
// loop that did less is not believed.
func counted(ops, perTurn int64, count func(turns int) int64) (done int64) {
	for done < ops {
		done += 2 * count(int(min(peakTurns, (ops-done+perTurn-1)/perTurn)))
	}
	return done
}

// Eight chains of int32 and twelve of float32 are enough to hide the latency of a multiply-add.
func peakI8(ops int64) int64 {
	return counted(ops, 2*8, func(turns int) (sum int64) {
		var a [8]int32
		chainsI32(turns, &a, 1, 1)
		for _, v := range a {
			sum += int64(v)
		}
		return sum
	})
}

// peakF32 computes float32 multiply-adds in registers, of 12 chains so that none waits for its own result.
func peakF32(ops int64) int64 {
	return counted(ops, 2*12, func(turns int) (sum int64) {
		var a [12]float32
		chainsF32(turns, &a, 1, 1)
		for _, value := range a {
			sum += int64(value)
		}
		return sum
	})
}

// chainsI32 is what the portable kernels make of 8-bit numbers: products of int32. It is not inlined, so
// that the chains are not known to be equal.
//
//go:noinline
func chainsI32(turns int, a *[8]int32, b, c int32) {
	a0, a1, a2, a3, a4, a5, a6, a7 := a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]
	for range turns {
		a0, a1, a2, a3 = a0*b+c, a1*b+c, a2*b+c, a3*b+c
		a4, a5, a6, a7 = a4*b+c, a5*b+c, a6*b+c, a7*b+c
	}
	*a = [8]int32{a0, a1, a2, a3, a4, a5, a6, a7}
}

//go:noinline
func chainsF32(turns int, a *[12]float32, b, c float32) {
	a0, a1, a2, a3, a4, a5 := a[0], a[1], a[2], a[3], a[4], a[5]
	a6, a7, a8, a9, a10, a11 := a[6], a[7], a[8], a[9], a[10], a[11]
	for range turns {
		a0, a1, a2, a3, a4, a5 = a0*b+c, a1*b+c, a2*b+c, a3*b+c, a4*b+c, a5*b+c
		a6, a7, a8, a9, a10, a11 = a6*b+c, a7*b+c, a8*b+c, a9*b+c, a10*b+c, a11*b+c
	}
	*a = [12]float32{a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11}
}

// integers and floats add up the elements of a register in which a loop has counted.
func integers(b []byte) (sum int64) {
	for ; len(b) > 0; b = b[4:] {
		sum += int64(binary.LittleEndian.Uint32(b))
	}
	return sum
}

// floats adds up float32 values: the results of a measured loop must be used, or it would be removed.
func floats(b []byte) (sum int64) {
	for ; len(b) > 0; b = b[4:] {
		sum += int64(f32at(b, 0))
	}
	return sum
}

const (
	line    = 64 // bytes of a cache line, on most CPUs
	streams = 8
)

// stream reads one word of every cache line, since arithmetic on all words would measure the
// arithmetic. It walks eight streams at once, because one does not keep enough fetches in flight on
// every CPU.
func stream(b []byte) uint64 {
	count := len(b) / (line * streams) * line
	p0, p1, p2, p3, p4, p5, p6, p7 := b[:count], b[count:2*count], b[2*count:3*count], b[3*count:4*count],
		b[4*count:5*count], b[5*count:6*count], b[6*count:7*count], b[7*count:8*count]
	var s0, s1, s2, s3, s4, s5, s6, s7 uint64
	word := binary.NativeEndian.Uint64
	for i := 0; i < count; i += line {
		s0 += word(p0[i:])
		s1 += word(p1[i:])
		s2 += word(p2[i:])
		s3 += word(p3[i:])
		s4 += word(p4[i:])
		s5 += word(p5[i:])
		s6 += word(p6[i:])
		s7 += word(p7[i:])
	}
	sum := s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7
	// the lines that eight equal streams leave
	for rest := b[8*count:]; len(rest) > 0; rest = rest[line:] {
		sum += word(rest)
	}
	return sum
}
