package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// 4-bit weights are unpacked by panel, and multiplied by kernels of amx_staying.go.

// tileNibbles generates the kernels of 4-bit weights.
func tileNibbles() {
	tileSteps("tileSteps32", 32)
	tileSteps("tileSteps64", 64)
	tileUnpack("tileUnpack32", 32)
	tileUnpack("tileUnpack128", 128)
	newStayingTiles("q4TilesAMX", 32).generate()
	newStayingTiles("q4x128TilesAMX", 128).generate()
	q4Scale()
}

// tileUnpack unpacks 4-bit blocks: 16*(nibble-8) as int8, and scales over 16, in the places of spreadBytes.
func tileUnpack(name string, block int) {
	function(name, "(panel *byte, w *byte, blocks int)",
		fmt.Sprintf("unpacks blocks (at least 1) of a q4b%d tile, %d bytes each:", block, spreadBytes(block)),
		fmt.Sprintf("[%d][32][4] int8 of 16*(nibble-8), and the scales of the columns over 16.", block/4))
	panel, weights, count := param("panel"), param("w"), param("blocks")
	lo, hi, c80, cF0, sixteenth := z[0], z[1], z[2], z[3], z[4]
	broadcast32(0x80808080, c80)
	broadcast32(0xf0f0f0f0, cF0)
	broadcast32(0x3d800000, sixteenth)
	Label("block")
	quads := GP64()
	MOVQ(I32(block/32), quads)
	Label("quads")
	for quad := range 8 {
		VMOVDQU64(Mem{Base: weights, Disp: 64 * quad}, hi)
		VPSLLD(I8(4), hi, lo)
		VPTERNLOGD(U8(0x6a), c80, cF0, lo) // (lo & f0) ^ 80
		VPTERNLOGD(U8(0x6a), c80, cF0, hi)
		VMOVDQU64(lo, Mem{Base: panel, Disp: 128 * quad})
		VMOVDQU64(hi, Mem{Base: panel, Disp: 128*quad + 64})
	}
	ADDQ(I32(512), weights)
	ADDQ(I32(1024), panel)
	DECQ(quads)
	JNZ(LabelRef("quads"))
	for half := range 2 {
		VCVTPH2PS(Mem{Base: weights, Disp: 32 * half}, lo)
		VMULPS(sixteenth, lo, lo)
		VMOVUPS(lo, Mem{Base: panel, Disp: 64 * half})
	}
	ADDQ(I32(64), weights)
	ADDQ(I32(128), panel)
	DECQ(count)
	JNZ(LabelRef("block"))
	VZEROUPPER()
	RET()
}

// tileSteps packs rows for steps of two tiles, each of which has so many activations of a row.
func tileSteps(name string, width int) {
	function(name, "(dst *byte, pitch int, advance int, x *uint8, turns int)",
		fmt.Sprintf("writes turns (at least 1) times %d activations of a row x as signed bytes: half of them to dst,", 2*width),
		"half to pitch bytes behind it, and the next ones advance bytes behind those.")
	dst, second, advance, x, count := param("dst"), param("pitch"), param("advance"), param("x"), param("turns")
	broadcast32(0x80808080, z[0])
	ADDQ(dst, second)
	Label("turn")
	for half, to := range []reg.Register{dst, second} {
		from := Mem{Base: x, Disp: width * half}
		if width == 32 {
			VPXORD(from, z[0].AsY(), z[1+half].AsY())
			VMOVDQU(z[1+half].AsY(), Mem{Base: to})
		} else {
			VPXORD(from, z[0], z[1+half])
			VMOVDQU64(z[1+half], Mem{Base: to})
		}
	}
	ADDQ(I32(2*width), x)
	ADDQ(advance, dst)
	ADDQ(advance, second)
	DECQ(count)
	JNZ(LabelRef("turn"))
	VZEROUPPER()
	RET()
}

// alongTile emits a loop over the rows of a group, whose sums of columns 16..31 lie 1024 bytes behind the others.
func alongTile(body func(sums, output, scale reg.GPVirtual)) {
	output, ldy, sums, scale, count := param("y"), param("ldy"), param("sums"), param("xscale"), param("rows")
	Label("row")
	body(sums, output, scale)
	ADDQ(I32(64), sums)
	ADDQ(ldy, output)
	ADDQ(I32(4), scale)
	DECQ(count)
	JNZ(LabelRef("row"))
	VZEROUPPER()
	RET()
}

// q4Scale makes results of the float sums of one group.
func q4Scale() {
	function("q4ScaleAMX", "(rows int, y *float32, ldy int, sums *float32, xscale *float32)",
		"writes sums [2][16][16] of rows (1..16) rows, times xscale of the row, to y [rows][32]. ldy is in",
		"bytes.")
	alongTile(func(sums, output, scale reg.GPVirtual) {
		VBROADCASTSS(Mem{Base: scale}, z[0])
		for half := range 2 {
			VMULPS(Mem{Base: sums, Disp: 1024 * half}, z[0], z[1+half])
			VMOVUPS(z[1+half], Mem{Base: output, Disp: 64 * half})
		}
	})
}
