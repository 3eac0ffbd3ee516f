package pack

import (
	"maps"
	"slices"
	"strings"
)

// format is how the weights of a scheme are stored, see the package comment. tiles.go packs tiles, onnx.go moves them
// to layout Onnx and unpacks that.
type format struct {
	// tile returns the bytes of a tile of some rows in layout N32, and unpack writes what its rows stand for to the
	// rows that at returns.
	tile   func(rows int64) int64
	unpack func(at func(row int) []float32, rows int, tile []byte)
	// onnx returns the bytes of the values of layout Onnx, and how many scales there are; nil: there is no such layout.
	onnx func(rows, cols int64) (values, scales int64)
	// most is the largest code where a scale is searched for each column; 0: none is.
	most int32
}

var formats = map[string]*format{
	"w32": {
		tile:   func(rows int64) int64 { return 4 * TileN * rows },
		unpack: unpackW32,
		onnx:   func(rows, cols int64) (int64, int64) { return 4 * rows * cols, 0 },
	},
	"w16": {
		tile:   func(rows int64) int64 { return 2 * TileN * rows },
		unpack: unpackW16,
		onnx:   func(rows, cols int64) (int64, int64) { return 2 * rows * cols, 0 },
	},
	"q8c": {
		tile:   func(rows int64) int64 { return TileN*((rows+3)&^3) + 8*TileN },
		unpack: unpackQ8C,
		onnx:   func(rows, cols int64) (int64, int64) { return rows * cols, cols },
	},
	"q6c": {
		tile:   func(rows int64) int64 { return (rows+sixRows-1)/sixRows*sixGroup + 4*TileN },
		unpack: unpackQ6C,
		most:   31,
	},
	"q4c": {
		tile:   func(rows int64) int64 { return (rows+BlockK-1)/BlockK*16*BlockK + 4*TileN },
		unpack: unpackQ4C,
		onnx:   func(rows, cols int64) (int64, int64) { return (rows*cols + 1) / 2, cols },
		most:   7,
	},
	"q4b32":  blockFormat(BlockK),
	"q4b128": blockFormat(Block128),
}

// blockFormat returns the format of 4-bit codes in blocks of so many rows, with a scale for each.
func blockFormat(block int) *format {
	blocks := func(rows int64) int64 { return (rows + int64(block) - 1) / int64(block) }
	return &format{
		tile:   func(rows int64) int64 { return blocks(rows) * int64(q4Bytes(block)) },
		unpack: func(at func(row int) []float32, rows int, tile []byte) { unpackBlocks(at, rows, tile, block) },
		onnx: func(rows, cols int64) (int64, int64) {
			scales := cols * blocks(rows)
			return scales * int64(block) / 2, scales
		},
	}
}

// schemesWith lists the schemes whose format has a property, for messages.
func schemesWith(property func(*format) bool) string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(formats)) {
		if property(formats[name]) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// mostCode returns the largest code of a scheme that has a searched scale for each column, 0 for others.
func mostCode(scheme string) int32 {
	if form := formats[scheme]; form != nil {
		return form.most
	}
	return 0
}

// q4Block returns the number of rows that share a scale in schemes of 4-bit blocks, and the granularity of splits along
// K in all.
func q4Block(scheme string) int {
	if scheme == "q4b128" {
		return Block128
	}
	return BlockK
}

// q4Bytes returns the size of a block of a tile: codes, then a scale of each column.
func q4Bytes(block int) int { return 16*block + 2*TileN }
