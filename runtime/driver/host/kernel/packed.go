package kernel

// Packed activations lie as the widest kernels read them. Rows are in groups of at most mostPacked; a group is, for
// each block of k, [rows] int32 of -128 times the sum of the block's activations, and [block/4][rows][4] of them as
// int8, padded with zeros.

const (
	packFrom   = 24 // rows: the first group prepares a tile for the others
	mostPacked = 14

	packedPassBytes = 1 << 20 // of packed rows that stay in the second-level cache while a weight is read
	packedPassMin   = 9       // groups of a pass
	packedPassMax   = 32

	packedPassFloats = 10 // the same for float32, whose passes take a part of k instead

	spreadMost = 16 << 10 // bytes of an unpacked part of a 4-bit tile
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
	return spreadMost + 4*TileN*packedPassRows(packedRow(k, block))
}

// packedRow is the bytes of a packed row.
func packedRow(k, block int) int {
	if block == 0 {
		block = (k + 3) / 4 * 4
	}
	return (k + block - 1) / block * (4 + block)
}

// packedPassRows bounds the rows that take part in one pass over a weight.
func packedPassRows(row int) int {
	return mostPacked * min(packedPassMax, max(packedPassMin, packedPassBytes/(mostPacked*row)))
}

// groupRows is where group g of m rows begins, and how many rows it has.
func groupRows(m, g int) (r, rows int) {
	groups := PackGroups(m)
	rows, large := m/groups, m%groups // the first ones have one more
	if g < large {
		return g * (rows + 1), rows + 1
	}
	return g*rows + large, rows
}
