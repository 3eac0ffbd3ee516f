package kernel

// Packed activations lie as the widest kernels read them. Rows are in groups of at most mostPacked.
// A group is, for each block of k, [rows] int32 of -128 times the sum of the block's activations,
// then [block/4][rows][4] of these as int8, padded with zeros.
const (
	// packFrom is the number of rows from which packing pays: the first group prepares a tile for
	// the others.
	packFrom   = 24
	mostPacked = 14

	// A pass over a weight takes as many packed rows as stay in the second-level cache meanwhile,
	// in bytes, but between a least and a largest number of groups.
	packedPassBytes = 1 << 20
	packedPassMin   = 9
	packedPassMax   = 32

	// packedPassFloats is the number of groups of a pass in float32, which takes a part of k.
	packedPassFloats = 10

	spreadMost = 16 << 10 // bytes of an unpacked part of a 4-bit tile

	nibbleScratch = 66 << 10 // what the product in tiles needs
)

// PackGroups is the number of groups of m packed rows, all of nearly equal size.
func PackGroups(m int) int { return (m + mostPacked - 1) / mostPacked }

// PackedBytes is the size of m packed rows of k activations for a weight in blocks of block rows, 0: one block of all.
func PackedBytes(m, k, block int) int { return m * packedRow(k, block) }

// PackedScratch is the number of bytes of scratch for the product of packed rows of k activations with such a weight.
func PackedScratch(k, block int) int {
	if block == 0 {
		return (k + 3) / 4 * 4 * TileN
	}
	return max(spreadMost+4*TileN*packedPassRows(packedRow(k, block)), nibbleScratch)
}

// packedRow is the size of a packed row in bytes: per block, an int32 and the activations.
func packedRow(k, block int) int {
	if block == 0 {
		block = (k + 3) / 4 * 4
	}
	return (k + block - 1) / block * (4 + block)
}

// packedPassRows bounds the rows of one pass over a weight; row is the size of a packed row in
// bytes.
func packedPassRows(row int) int {
	return mostPacked * min(packedPassMax, max(packedPassMin, packedPassBytes/(mostPacked*row)))
}

// groupRows returns the first row of group g of m rows, and its number of rows.
func groupRows(m, g int) (r, rows int) {
	groups := PackGroups(m)
	rows, large := m/groups, m%groups // the first ones have one more
	if g < large {
		return g * (rows + 1), rows + 1
	}
	return g*rows + large, rows
}
