package shalanes

import "golang.org/x/sys/cpu"

// kinds returns the numbers of pieces that this processor can hash at once, the fastest first.
func kinds() (list []int) {
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW {
		list = append(list, Width)
	}
	if hasSHA() && cpu.X86.HasSSE41 && cpu.X86.HasSSSE3 {
		list = append(list, 2)
	}
	return list
}

// hasSHA reports whether the processor has instructions for SHA-256.
func hasSHA() bool

// blocks16 adds the first blocks blocks of every part to the digests.
//
//go:noescape
func blocks16(state *[8][Width]uint32, parts *[Width][]byte, blocks int)

// blocks2 adds blocks blocks of two pieces to their digests, whose words are in the order of pairOrder.
//
//go:noescape
func blocks2(state *[2][8]uint32, first, second *byte, blocks int)
