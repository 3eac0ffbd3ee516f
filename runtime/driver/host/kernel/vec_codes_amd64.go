package kernel

import (
	"encoding/binary"
	"math"

	"github.com/hetc/hetc/internal/mem"
)

// Attention over an 8-bit cache with VPDPBUSD, which adds the products of four pairs of 8-bit codes to an integer. Four
// codes take the place of a float32: queries are quantised once, when they are copied; keys are turned into tiles
// [depth][TileN] of words of four codes; and values become words of the codes of four neighbouring positions,
// [keyBlock/4][TileN] for each TileN columns. The softmax stores weights as integers of 16 bits, each times the scale of
// its value, so that the largest that a line can have in a block becomes mostWeight.
//
// Integers are exact. So lines that attend to a part of a block have the same bits whichever positions are computed with
// them, where weights of others are zero.

const (
	mostWeight = 1<<16 - 1
	leastScale = 0x1p-90 // of the values of a block: with smaller ones, factors would overflow

	quad      = 4       // codes of a word
	mostCodes = 1 << 10 // columns of a head: sums of its codes have room among the scores
)

// codeTask is what a task of codes has besides.
type codeTask struct {
	starts                 []int32   // of lines, [2]: see codeTile512
	columns                []float32 // queries as columns, of few lines
	padded                 []uint8   // rows of the cache with others or zeros behind them
	keyScales, valueScales []float32 // of a block
}

// takeCodes takes what a task of codes needs of scratch.
func (t *lineTask) takeCodes(room int, take func(int) []float32) {
	t.wide = take(keyBlock / quad * paddedDim(t.Dim))
	t.code = codeTask{padded: mem.Bytes(take(vecN * (t.Dim + cachedScale) / 4)), starts: asIntegers(take(2 * room)), columns: take(tileKeys * t.depth), keyScales: take(keyBlock),
		valueScales: take(keyBlock)}
}

// asIntegers is room for float32 numbers as room for integers.
func asIntegers(room []float32) []int32 {
	out, err := mem.View[int32](mem.Bytes(room))
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return out
}

// codeQueries quantises the queries of all rows. One that has no such form, because a number is not finite, gets a scale
// that is not a number, and so do its results.
func (t *lineTask) codeQueries(q Matrix[float32]) {
	columns := t.Heads * t.Dim
	codes, scales := mem.Bytes(t.queries), t.scores[:t.lines]
	for row := range t.M {
		lines := Rows(q.row(row, columns), t.Dim)
		to := Quantised{Codes: Rows(codes[row*columns:][:columns], t.Dim), Scale: scales[row*t.Heads:][:t.Heads]}
		for done := 0; done < t.Heads; {
			bad := t.tier.quantRows(to.From(done), lines.From(done, 0), t.Heads-done, t.Dim)
			if bad < 0 {
				break
			}
			done += bad + 1
			to.Scale[done-1] = float32(math.NaN())
		}
	}
	blocks := (t.Dim + BlockK - 1) / BlockK
	sums := asIntegers(t.scores[t.lines:][:t.lines*blocks])
	vecBlockSums(Rows(sums, blocks), Rows(codes[:t.lines*t.Dim], t.Dim), t.lines, t.Dim)
	clear(t.code.starts)
	for line := range t.lines {
		start := int32(0)
		for _, sum := range sums[line*blocks : (line+1)*blocks] {
			start -= 128 * sum
		}
		t.code.starts[2*line], t.code.starts[2*line+1] = start, int32(math.Float32bits(scales[line]))
	}
	for i := 0; i < t.lines*t.Dim; i += 8 {
		eight := codes[i : i+8]
		binary.LittleEndian.PutUint64(eight, binary.LittleEndian.Uint64(eight)^0x8080808080808080)
	}
}

// floatQuery is the query of a line as float32 numbers, which lie where values will.
func (t *lineTask) floatQuery(line int) []float32 {
	wide, scale := t.wide[:t.Dim], math.Float32frombits(uint32(t.code.starts[2*line+1]))
	for i, code := range mem.Bytes(t.queries)[line*t.Dim:][:t.Dim] {
		wide[i] = scale * float32(int8(code))
	}
	return wide
}

// blockOfCodes is block.
func (t *lineTask) blockOfCodes(pos, count int) {
	t.scalesOf(t.code.keyScales, t.from.k8, pos, count)
	t.scalesOf(t.code.valueScales, t.from.v8, pos, count)
	for at := 0; at < count; at += pieceKeys {
		end := min(at+pieceKeys, count)
		t.turnCodes(pos+at, pos+end)
		t.scoreCodes(pos, at, end)
	}
	t.factorsOf(pos, count)
	partial := t.soften(pos, count)
	t.quadValues(pos, count)
	if !partial {
		t.weighCodes(0, t.M, 0, count)
		return
	}
	t.eachPart(pos, 0, count, count, func(row, rows, from, to int) { t.weighCodes(row, rows, from&^(quad-1), to) })
}

// scalesOf copies the scales of count keys or values from pos on, with zeros behind them.
func (t *lineTask) scalesOf(scales []float32, rows []uint8, pos, count int) {
	pitch := t.Dim + cachedScale
	for i := range count {
		scales[i] = ScaleQ8(rows[(pos+i)*pitch:], t.Dim)
	}
	clear(scales[count:keyBlock])
}

// factorsOf keeps for each line what its weights in a block are multiplied by, besides the scales of values: the largest
// of those that its row attends to becomes mostWeight.
func (t *lineTask) factorsOf(pos, count int) {
	scales := t.code.valueScales[:count]
	if t.first(t.M-1) <= pos && pos+count <= t.Pos+1 { // all rows attend to all of the block
		factor := mostWeight / max(leastScale, vecPeak(scales))
		for line := range t.lines {
			t.state[4*line+3] = factor
		}
		return
	}
	most := t.code.keyScales[:count] // of the scales up to each: those of keys were used
	largest := float32(leastScale)
	for i, scale := range scales {
		if scale > largest {
			largest = scale
		}
		most[i] = largest
	}
	for row := range t.M {
		factor := float32(0)
		if from, to := t.span(row, pos, count); from < to {
			top := most[to-1]
			if from > 0 {
				top = max(leastScale, vecPeak(scales[from:to]))
			}
			factor = mostWeight / top
		}
		for line := row * t.Heads; line < (row+1)*t.Heads; line++ {
			t.state[4*line+3] = factor
		}
	}
}

// turnCodes is tiles. Those of positions from to on hold anything.
func (t *lineTask) turnCodes(from, to int) {
	pitch := t.Dim + cachedScale
	for pos := from; pos < to; pos += vecN {
		rows := t.from.k8[pos*pitch:]
		if to-pos < vecN {
			copy(t.code.padded, rows[:(to-pos)*pitch])
			rows = t.code.padded
		}
		index := pos - from
		tile := t.keys[index/TileN*tilePitch(t.depth, TileN):][index%TileN:]
		turnWideCodes(&tile[:(t.depth-1)*TileN+vecN][0], &rows[:vecN*pitch][0], pitch, t.depth)
	}
}

// scoreCodes is score.
func (t *lineTask) scoreCodes(pos, from, to int) {
	for at := from; at < to; at += TileN {
		low, middle, high := t.attending(pos + at)
		if low >= high {
			continue
		}
		for range (high - low) * t.Heads / t.tier.mostF32() {
			t.askNeeded()
		}
		keys, scales := &t.keys[(at-from)/TileN*tilePitch(t.depth, TileN)], &t.code.keyScales[at]
		if n, line := (middle-low)*t.Heads, low*t.Heads; n > 0 {
			codeHalf512(n, &t.scores[line*keyBlock+at], 4*keyBlock, &t.queries[line*t.depth], 4*t.depth, t.depth, keys,
				&t.code.starts[2*line], scales)
		}
		if n, line := (high-middle)*t.Heads, middle*t.Heads; n > 0 {
			codeTile512(n, &t.scores[line*keyBlock+at], 4*keyBlock, &t.queries[line*t.depth], 4*t.depth, t.depth, keys,
				&t.code.starts[2*line], scales)
		}
	}
}

// quadValues makes words of the values of a block.
func (t *lineTask) quadValues(pos, count int) {
	pitch := t.Dim + cachedScale
	whole := count / quad
	if whole > 0 {
		t.quadRows(t.from.v8[pos*pitch:(pos+quad*whole)*pitch], 0, whole)
	}
	if rest := count % quad; rest > 0 {
		rows := t.code.padded[:quad*pitch]
		clear(rows[copy(rows, t.from.v8[(pos+count-rest)*pitch:(pos+count)*pitch]):])
		t.quadRows(rows, whole, 1)
	}
}

// quadRows makes words of the codes of some groups of four rows, in the place of group to of a block.
func (t *lineTask) quadRows(rows []uint8, to, groups int) {
	pitch := t.Dim + cachedScale
	for column := 0; column < t.Dim; column += TileN {
		dst := &t.wide[column*keyBlock/quad+to*TileN]
		if t.Dim-column >= TileN {
			quadRows512(dst, &rows[column], pitch, groups)
		} else {
			quadRows512x16(dst, &rows[column], pitch, groups)
		}
	}
}

// weighCodes adds the values of positions from..to-1 of a block, from a multiple of four, weighted to the sums of rows
// from row on.
func (t *lineTask) weighCodes(row, rows, from, to int) {
	line, n, k := row*t.Heads, rows*t.Heads, (to-from+quad-1)/quad
	weights, factors := &t.scores[line*keyBlock+from/2], &t.state[4*line+3]
	for column := 0; column < t.Dim; column += TileN {
		sums, values := &t.sums[line*t.ld+column], &t.wide[column*keyBlock/quad+from/quad*TileN]
		if t.Dim-column >= TileN {
			weighCodes512(n, sums, 4*t.ld, weights, 4*keyBlock, k, values, factors)
		} else {
			weighHalf512(n, sums, 4*t.ld, weights, 4*keyBlock, k, values, factors)
		}
	}
}

// softenCodes is a part of softenBlocks: it makes weights of a whole block's scores, count of each line.
func (t *lineTask) softenCodes(pos, count int, scores *float32, next *byte, stride int) {
	t.scalesOf(t.code.valueScales, t.from.v8, pos, keyBlock)
	t.factorsOf(pos, keyBlock)
	softmaxCodesAsking512(t.lines, scores, 4*count, keyBlock, t.scale, &t.state[0], 0, &t.code.valueScales[0], next, stride)
}

// weighWholeCodes is weighWhole for a whole block. What the kernels ask for is that of the part the block begins in.
func (t *lineTask) weighWholeCodes(pos, block, count int, part *blocksPart) {
	pitch, to := t.Dim+cachedScale, min(part.to, block+keyBlock)
	const steps = keyBlock / quad
	values := t.from.v8[(pos+block)*pitch:][:keyBlock*pitch]
	for column := 0; column < t.Dim; column += vecN {
		ahead := t.spread(part, block, to, column, vecN, steps)
		valuesWideCodes(t.lines, &t.sums[column], 4*t.ld, &t.scores[block], 4*count, steps, &values[column], pitch,
			&t.fades[block/keyBlock*4*t.lines+3], ahead.first, ahead.stride)
	}
}
