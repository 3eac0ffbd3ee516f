package profiler

import (
	"sync/atomic"

	"github.com/hetc/hetc/internal/mem"
)

// readChunk is how much memory a worker reads between two looks at the stop flag.
const readChunk = 1 << 20

// readMemory reads one word of every cache line of data, which is aligned and a multiple of 512 bytes long, and returns
// their sum. Adding all words would measure the arithmetic. Eight streams keep enough fetches in flight to saturate a
// core's path to memory, which one stream does not on every CPU.
func readMemory(data []byte) uint64 {
	words, err := mem.View[uint64](data)
	if err != nil {
		panic("BUG: bandwidth memory is not aligned")
	}
	const line = 8 // words
	n := len(words) / 8
	a0, a1, a2, a3 := words[:n], words[n:2*n], words[2*n:3*n], words[3*n:4*n]
	a4, a5, a6, a7 := words[4*n:5*n], words[5*n:6*n], words[6*n:7*n], words[7*n:8*n]
	var sums [8]uint64
	for i := 0; i < n; i += line {
		sums[0] += a0[i]
		sums[1] += a1[i]
		sums[2] += a2[i]
		sums[3] += a3[i]
		sums[4] += a4[i]
		sums[5] += a5[i]
		sums[6] += a6[i]
		sums[7] += a7[i]
	}
	return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7]
}

// reading returns the work of the workers that read memory together: worker i reads its own,
// aligned part over and over, a chunk at a time, with the function read.
func reading(memory []byte, cores int, read func([]byte) uint64) func(i int) func() int64 {
	each := len(memory) / max(cores, 1) &^ (readChunk - 1)
	if each < readChunk {
		panic("BUG: too little memory for the readers")
	}
	return func(i int) func() int64 {
		part, at := memory[i*each:(i+1)*each], 0
		return func() int64 {
			sink.Add(read(part[at : at+readChunk]))
			if at += readChunk; at == len(part) {
				at = 0
			}
			return readChunk
		}
	}
}

// sink takes results, so that the compiler does not remove the reads.
var sink atomic.Uint64

// streamBytes returns the size of a memory that no cache holds: four times the last-level cache, at
// least 1 GiB. It is at most a third of the available memory, but never less than 64 MiB.
func streamBytes(lastCache int64) int64 {
	bytes := max(4*lastCache, 1<<30)
	if free := availableBytes(); free > 0 {
		bytes = min(bytes, free/3)
	}
	return max(bytes, 64<<20)
}

// allocTouched allocates memory and writes every page of it. Pages that were never written all map to one zero page,
// which a cache holds.
func allocTouched(bytes int64) (*mem.Region, error) {
	bytes = (bytes + readChunk - 1) &^ (readChunk - 1)
	region, err := mem.Alloc(int(bytes), 4096)
	if err != nil {
		return nil, err
	}
	words, err := mem.View[uint64](region.Bytes())
	if err != nil {
		region.Close()
		return nil, err
	}
	// xorshift64
	state := uint64(0x9e3779b97f4a7c15)
	for i := range words {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		words[i] = state
	}
	return region, nil
}
