package main

// i8mm writes the products of the tier i8mm for arm64: SMMLA multiplies two rows of activations with two columns of
// weights, 8 bytes of k each, which is twice the multiply-adds of SDOT in one instruction.
//
// Packed weights hold 4 bytes of k of a column side by side, so two rows of a tile are zipped in words to 8 bytes of a
// column. To spread that over many rows a kernel takes 2..6 rows of activations, in pairs, and 16 of a tile's 32
// columns at a time: 8 registers of 2x2 sums a pair, V0..V23. V24..V26 hold a pair of activations each, V27..V31
// weights and constants. Of an odd number of rows the last one is its own partner, and is stored once.
func i8mm() {
	asm := &arm{most: mmlaRows, least: 2}
	asm.q8cPairs()
	asm.q4Pairs()
	asm.peak("peakI8MM", "SMMLA", 0x01, 0x4e80a400, 0x4ea08400)
	asm.write("i8mm")
}

// mmlaRows is the largest number of rows of one call, limited by registers. Package kernel has the same constant.
const mmlaRows = 6

// pairs is the number of registers for a step's activations of m rows.
func pairs(m int) int { return (m + 1) / 2 }

// smmla adds to the 2x2 sums d the products of two columns, n, with two rows, m.
func (a *arm) smmla(d, n, m int) {
	a.word(0x4e80a400|uint32(m<<16|n<<5|d), "SMMLA V%d.B16, V%d.B16, V%d.S4", m, n, d)
}

// sixteenth converts d from int32 to float32 in place, divided by 16, which loses nothing.
func (a *arm) sixteenth(d int) {
	a.word(0x4f3ce400|uint32(d<<5|d), "SCVTF $4, V%d.S4, V%d.S4", d, d)
}

// pointPairs sets the row pointers to p, ld bytes apart, and a missing partner's to the last row.
func (a *arm) pointPairs(m int, p, ld string) {
	a.point(m, p, ld)
	if m%2 == 1 {
		a.f("MOVD R%d, R%d", row+m-1, row+m)
	}
}

// loadPairs loads 8 activations of each row, two rows to a register, and turns them from u to u-128.
func (a *arm) loadPairs(m int) {
	for pair := range pairs(m) {
		a.f("FMOVD.P 8(R%d), F%d", row+2*pair, 24+pair)
		a.f("VLD1.P 8(R%d), V%d.D[1]", row+2*pair+1, 24+pair)
	}
	a.signed(pairs(m))
}

// multiplyPairs adds the products of the two columns in register from with all rows to sums group, 0..7.
func (a *arm) multiplyPairs(m, group, from int) {
	for pair := range pairs(m) {
		a.smmla(8*pair+group, from, 24+pair)
	}
}

// q8cPairs computes 16 columns of a tile after the other, each over all of k.
func (a *arm) q8cPairs() {
	a.function("q8cPairsI8MM", []string{"rows int", "y *float32", "ldy int", "x *uint8", "ldx int", "steps int",
		"tail *uint8", "rest int", "w *uint8", "xscale *float32"},
		"computes rows (2..6) rows of one q8c tile into y [rows][32]. x holds 8*steps of each row's activations;",
		"tail is nil or [rows][8] more of them, padded with 128, for rest (1 or 2) further rows [32][4] of the tile.",
		"Strides are in bytes.")(func(m int) {
		a.bytes(0x80, 31)
		for half := range 2 {
			at := func(label string) string { return label + string(rune('a'+half)) + string(rune('0'+m)) }
			a.zero(8 * pairs(m))
			a.f("MOVD w+64(FP), R8")
			a.f("ADD $%d, R8, R10", 64*half)
			a.f("MOVD x+24(FP), R3")
			a.pointPairs(m, "R3", "R4")
			a.f("CBZ R5, %s", at("last"))
			a.f("MOVD R5, R13")
			a.label("%s", at("step"))
			a.loadPairs(m)
			a.q8cStep(m, func(vec int) { a.f("FMOVQ %d(R10), F28", 128+16*vec) })
			a.f("ADD $256, R10, R10")
			a.f("SUBS $1, R13, R13")
			a.f("BNE %s", at("step"))
			// the tail has one row or two
			a.label("%s", at("last"))
			a.f("CBZ R6, %s", at("sum"))
			a.f("MOVD $8, R14")
			a.pointPairs(m, "R6", "R14")
			a.loadPairs(m)
			a.f("CMP $2, R7")
			a.f("BEQ %s", at("two"))
			a.q8cStep(m, func(int) { a.f("VEOR V28.B16, V28.B16, V28.B16") })
			a.f("ADD $128, R10, R10")
			a.f("B %s", at("sum"))
			a.label("%s", at("two"))
			a.q8cStep(m, func(vec int) { a.f("FMOVQ %d(R10), F28", 128+16*vec) })
			a.f("ADD $256, R10, R10")
			a.label("%s", at("sum"))
			// y = float32(sum) * (xscale*scale); R10 is at the scales of these columns, 4 bytes each
			if half == 1 {
				a.f("SUB $64, R10, R10")
			}
			a.f("MOVD y+8(FP), R1")
			a.f("MOVD xscale+72(FP), R9")
			a.rowSums(m, func(line, vec, sums int) {
				if vec == 0 {
					a.f("VLD1R.P 4(R9), [V27.S4]")
				}
				a.f("FMOVQ %d(R10), F28", 64*half+16*vec)
				a.fmul(28, 27, 28)
				a.scvtf(sums)
				a.fmul(sums, sums, 28)
				a.f("FMOVQ F%d, %d(R1)", sums, 64*half+16*vec)
			})
		}
	})
}

// q8cStep multiplies 8 rows of 16 columns at R10, loading the second four with next.
func (a *arm) q8cStep(m int, next func(vec int)) {
	for vec := range 4 {
		a.f("FMOVQ %d(R10), F27", 16*vec)
		next(vec)
		a.f("VZIP1 V28.S4, V27.S4, V29.S4")
		a.f("VZIP2 V28.S4, V27.S4, V30.S4")
		a.multiplyPairs(m, 2*vec, 29)
		a.multiplyPairs(m, 2*vec+1, 30)
	}
}

// rowSums emits body for each row and each four columns, with the row's sums of them in a register and the address of
// y's row in R1. Two registers of 2x2 sums hold four columns of two rows.
func (a *arm) rowSums(m int, body func(line, vec, sums int)) {
	for line := range m {
		for vec := range 4 {
			first := 8*(line/2) + 2*vec
			if line%2 == 0 {
				a.f("VUZP1 V%d.S4, V%d.S4, V29.S4", first+1, first)
			} else {
				a.f("VUZP2 V%d.S4, V%d.S4, V29.S4", first+1, first)
			}
			body(line, vec, 29)
		}
		if line < m-1 {
			a.f("ADD R2, R1, R1")
		}
	}
}

// q4Pairs keeps the float sums in y, like q4Rows. A byte holds column c and, in its upper half, 16+c. With the sign
// bits of both halves turned, a shift to the left leaves 16*(nibble-8) and one to the right nibble-8. The loop nest is
// blocks, 8 of the 16 pairs of columns, and steps of 8 rows of the weight.
func (a *arm) q4Pairs() {
	a.function("q4PairsI8MM", []string{"rows int", "y *float32", "ldy int", "x *uint8", "ldx int", "blocks int",
		"tail *uint8", "w *uint8", "xscale *float32", "parts int"},
		"computes rows (2..6) rows of one tile of 4-bit weights in blocks of 32*parts into y [rows][32]. x holds",
		"32*parts*blocks of each row's activations; tail is nil or [rows][32*parts] more of them, padded with 128.",
		"Strides are in bytes.")(func(m int) {
		a.clearRows(m)
		a.f("MOVD R4, R11") // the pitch of x, later of the tail
		a.label("start%d", m)
		a.f("CBZ R5, after%d", m)
		a.label("block%d", m)
		a.f("LSL $9, R9, R12") // bytes of nibbles
		a.f("ADD R12, R7, R12")
		for half := range 2 {
			a.q4HalfBlock(m, half)
			a.q4AddHalf(m, half)
		}
		a.f("LSL $5, R9, R14")
		a.f("ADD R14, R3, R3")
		a.f("ADD $64, R12, R7")
		a.f("SUBS $1, R5, R5")
		a.f("BNE block%d", m)
		a.label("after%d", m)
		// the tail is one more block over its own little matrix
		a.f("CBZ R6, sum%d", m)
		a.f("MOVD R6, R3")
		a.f("MOVD ZR, R6")
		a.f("MOVD $1, R5")
		a.f("LSL $5, R9, R11")
		a.f("B start%d", m)
		a.label("sum%d", m)
		a.scaleRows(m)
	})
}

// q4HalfBlock makes the integer sums of half of the columns of a block.
func (a *arm) q4HalfBlock(m, half int) {
	a.bytes(0x88, 30)
	a.bytes(0x80, 31)
	a.zero(8 * pairs(m))
	a.pointPairs(m, "R3", "R11")
	a.f("ADD $%d, R7, R10", 32*half)
	a.f("LSL $2, R9, R13") // 8 rows of the weight a turn
	a.label("step%c%d", 'a'+half, m)
	a.loadPairs(m)
	for vec := range 2 {
		a.f("FMOVQ %d(R10), F27", 16*vec)
		a.f("FMOVQ %d(R10), F28", 64+16*vec)
		a.f("VEOR V30.B16, V27.B16, V27.B16")
		a.f("VEOR V30.B16, V28.B16, V28.B16")
		a.f("VZIP1 V28.S4, V27.S4, V29.S4")
		a.f("VZIP2 V28.S4, V27.S4, V28.S4")
		for columns, from := range []int{29, 28} {
			a.f("VSHL $4, V%d.B16, V27.B16", from)
			a.multiplyPairs(m, 2*vec+columns, 27)
			a.word(0x4f0c0400|uint32(from<<5|27), "SSHR $4, V%d.B16, V27.B16", from)
			a.multiplyPairs(m, 4+2*vec+columns, 27)
		}
	}
	a.f("ADD $128, R10, R10")
	a.f("SUBS $1, R13, R13")
	a.f("BNE step%c%d", 'a'+half, m)
}

// q4AddHalf adds the sums, times their scales in float16 behind the nibbles, to y. Those of the low nibbles are 16
// times as large.
func (a *arm) q4AddHalf(m, half int) {
	a.f("MOVD y+8(FP), R1")
	a.rowSums(m, func(line, vec, sums int) {
		column := 8*half + 4*(vec%2)
		if vec < 2 {
			a.sixteenth(sums)
		} else {
			column += 16
			a.scvtf(sums)
		}
		a.f("FMOVD %d(R12), F30", 2*column)
		a.word(0x0e217800|30<<5|30, "FCVTL V30.H4, V30.S4")
		a.f("FMOVQ %d(R1), F31", 4*column)
		a.f("VFMLA V30.S4, V%d.S4, V31.S4", sums)
		a.f("FMOVQ F31, %d(R1)", 4*column)
	})
}

// clearRows sets m rows of y to zero.
func (a *arm) clearRows(m int) {
	a.zero(4)
	a.eachRow(m, func(int) {
		a.f("VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R15)")
		a.f("VST1 [V0.S4, V1.S4, V2.S4, V3.S4], (R15)")
	})
}
