package kernel

import (
	"math"

	"github.com/hetc/hetc/internal/mem"
)

// Attention over a bfloat16 cache with VDPBF16PS, which adds the products of two pairs of bfloat16 numbers to a float32.
// A pair takes the place of a float32: queries are rounded once, when they are copied; keys are turned into tiles
// [depth][TileN] of pairs of neighbouring numbers; and values become pairs of the numbers of two neighbouring
// positions, [keyBlock/2][TileN] for each TileN columns, while the softmax stores its weights as pairs of positions.
//
// Pairs of positions begin at even ones, and a pair of which a row attends to one position has a weight of zero for the
// other. Where no row of a task attends to that position, its value is zero, too: what lies there in the cache may be
// NaN.

// pairSetName is the name of the set of this attention.
const pairSetName = "avx512bf16"

// pairSet is another set, that of avx512vnni, with attention over bfloat16 by pairs.
func pairSet(other *Set) *Set {
	set := *other
	set.Name, set.AttentionBF16 = pairSetName, attentionPairs
	return &set
}

// attentionPairs is Set.AttentionBF16.
func attentionPairs(y, q Matrix[float32], k, v []uint16, scratch []float32, a Attention) {
	width := TileN
	if a.M*a.Heads <= mostFewLines && a.Dim%vecN == 0 && a.context() >= wideKeys {
		width = tileKeys // says that there are no tiles: keys are taken as they are cached (see isFew)
	}
	avx512vnni.attention(width, y, q, scratch, a, source{k16: k, v16: v, brain: true, pairs: true})
}

// pairsOf is the number of pairs of a key of dim numbers, which are padded with zeros.
func pairsOf(dim int) int { return (dim + keyGroup - 1) / keyGroup * keyGroup / 2 }

// takePairs takes what a task of pairs needs of scratch: as much as values of float32.
func (t *lineTask) takePairs(take func(int) []float32) {
	t.wide = take(keyBlock / 2 * paddedDim(t.Dim))
	padded := mem.Bytes(take(keyBlock / 2 * t.ld))
	t.padded, _ = mem.View[uint16](padded) // float32 numbers are aligned for those of 16 bits
}

// pairQueries rounds the queries of all rows.
func (t *lineTask) pairQueries(q Matrix[float32]) {
	columns := t.Heads * t.Dim
	if 2*t.depth == t.Dim {
		for row := range t.M {
			roundPairs512(&t.queries[row*columns/2:][:columns/2][0], &q.row(row, columns)[0], columns)
		}
		return
	}
	padded := t.wide[:2*t.depth]
	clear(padded[t.Dim:])
	for line := range t.lines {
		copy(padded, q.From(line/t.Heads, line%t.Heads*t.Dim).row(0, t.Dim))
		roundPairs512(&t.queries[line*t.depth], &padded[0], len(padded))
	}
}

// wideQuery is a query of pairs as float32 numbers, which lie where values will.
func (t *lineTask) wideQuery(pairs []float32) []float32 {
	wide := t.wide[:t.Dim]
	for i := range wide {
		bits := math.Float32bits(pairs[i/2])
		wide[i] = math.Float32frombits(bits >> (i % 2 * 16) << 16)
	}
	return wide
}

// blockOfPairs is block.
func (t *lineTask) blockOfPairs(pos, count int) {
	if t.few {
		t.scoreFewPairs(pos, count)
		t.weighFewPairs(pos, count, t.soften(pos, count))
		return
	}
	for at := 0; at < count; at += pieceKeys {
		end := min(at+pieceKeys, count)
		t.turnPairs(pos+at, pos+end)
		t.scorePairs(pos, at, end)
	}
	partial := t.soften(pos, count)
	t.pairValues(pos, count)
	if !partial {
		t.weighPairs(0, t.M, 0, count)
		return
	}
	t.eachPart(pos, 0, count, count, func(row, rows, from, to int) { t.weighPairs(row, rows, from&^1, to) })
}

// eachPart calls weigh for neighbouring rows, whose lines fill whole groups, with those of the positions at..end-1 of a
// block that they attend to.
func (t *lineTask) eachPart(pos, at, end, count int, weigh func(row, rows, from, to int)) {
	each := t.rowsTogether()
	for row := 0; row < t.M; row += each {
		rows := min(each, t.M-row)
		from, _ := t.span(row, pos, count)
		_, to := t.span(row+rows-1, pos, count)
		if from, to = max(from, at), min(to, end); from < to {
			weigh(row, rows, from, to)
		}
	}
}

// paddedRows copies rows from..to-1 of keys or values to rows of ld numbers.
func (t *lineTask) paddedRows(cached []uint16, from, to, ld int) []uint16 {
	for pos := from; pos < to; pos++ {
		row := t.padded[(pos-from)*ld : (pos-from+1)*ld]
		copy(row, cached[pos*t.Dim:(pos+1)*t.Dim])
		clear(row[t.Dim:])
	}
	return t.padded
}

// turnPairs is tiles, for keys of pairs. Tiles are whole: columns of positions from to on hold anything.
func (t *lineTask) turnPairs(from, to int) {
	for pos := from; pos < to; pos += vecN {
		rows, ld := t.from.k16[pos*t.Dim:], t.Dim
		if ld != 2*t.depth || to-pos < vecN {
			ld = 2 * t.depth
			rows = t.paddedRows(t.from.k16, pos, min(pos+vecN, to), ld)
		}
		index := pos - from
		tile := t.keys[index/TileN*tilePitch(t.depth, TileN):][index%TileN:]
		turnWideBF16(&tile[:(t.depth-1)*TileN+vecN][0], &rows[:(vecN-1)*ld+2*t.depth][0], 2*ld, t.depth)
	}
}

// attending are the rows low..high-1 that attend to some of the TileN positions from pos on; those before middle attend
// to no more than the first half of them.
func (t *lineTask) attending(pos int) (low, middle, high int) {
	low, high = max(0, pos-t.Pos), t.M
	if t.Window > 0 {
		high = min(high, pos+TileN-1+t.Window-t.Pos)
	}
	return low, min(high, max(low, pos+TileN/2-t.Pos)), high
}

// scorePairs is score.
func (t *lineTask) scorePairs(pos, from, to int) {
	for at := from; at < to; at += TileN {
		low, middle, high := t.attending(pos + at)
		if low >= high {
			continue
		}
		for range (high - low) * t.Heads / t.tier.mostF32() {
			t.askNeeded()
		}
		keys := &t.keys[(at-from)/TileN*tilePitch(t.depth, TileN)]
		if n, line := (middle-low)*t.Heads, low*t.Heads; n > 0 {
			pairHalf512(n, &t.scores[line*keyBlock+at], 4*keyBlock, &t.queries[line*t.depth], 4*t.depth, t.depth, keys, 0)
		}
		if n, line := (high-middle)*t.Heads, middle*t.Heads; n > 0 {
			pairTile512(n, &t.scores[line*keyBlock+at], 4*keyBlock, &t.queries[line*t.depth], 4*t.depth, t.depth, keys, 0)
		}
	}
}

// clearAround makes the weights of lines around low..high-1 zero, as many as rows of a group attend to besides.
func (t *lineTask) clearAround(first, last, low, high int) {
	if t.M == 1 {
		return
	}
	for line := first; line < last; line++ {
		weights := t.scores[line*keyBlock : line*keyBlock+keyBlock/2]
		if low > 0 {
			*(*[vecN / 2]float32)(weights[low/2-vecN/2:]) = [vecN / 2]float32{}
		}
		if high < keyBlock {
			*(*[vecN / 2]float32)(weights[high/2:]) = [vecN / 2]float32{}
		}
	}
}

// pairValues makes pairs of the values of a block.
func (t *lineTask) pairValues(pos, count int) {
	from, end := max(pos, t.first(0)), pos+count
	if from%2 == 1 {
		t.pairRows(t.lonePair(from), t.ld, from-1-pos, 2)
		from++
	}
	if from >= end {
		return
	}
	rows, ld := t.from.v16[from*t.Dim:end*t.Dim], t.Dim
	if ld != t.ld {
		rows, ld = t.paddedRows(t.from.v16, from, end, t.ld), t.ld
	}
	t.pairRows(rows, ld, from-pos, end-from)
}

// lonePair is the pair of the value at an odd position, to the position before which no row attends, or, at an even
// one, to the position behind.
func (t *lineTask) lonePair(pos int) []uint16 {
	clear(t.padded[:2*t.ld])
	copy(t.padded[pos%2*t.ld:], t.from.v16[pos*t.Dim:(pos+1)*t.Dim])
	return t.padded
}

// pairRows makes pairs of rows of ld numbers, positions of a block from at on.
func (t *lineTask) pairRows(rows []uint16, ld, at, count int) {
	for column := 0; column < t.ld; column += TileN {
		dst := &t.wide[(column*keyBlock+at*TileN)/2]
		if t.ld-column >= TileN {
			pairRows512(dst, &rows[column], 2*ld, count)
		} else {
			pairRows512x16(dst, &rows[column], 2*ld, count)
		}
	}
}

// weighPairs adds the values of positions from..to-1 of a block, from even, weighted to the sums of rows from row on.
func (t *lineTask) weighPairs(row, rows, from, to int) {
	line, n, k := row*t.Heads, rows*t.Heads, (to-from+1)/2
	weights := &t.scores[line*keyBlock+from/2]
	for column := 0; column < t.ld; column += TileN {
		sums, values := &t.sums[line*t.ld+column], &t.wide[(column*keyBlock+from*TileN)/2]
		if t.ld-column >= TileN {
			pairTile512(n, sums, 4*t.ld, weights, 4*keyBlock, k, values, 1)
		} else {
			pairHalf512(n, sums, 4*t.ld, weights, 4*keyBlock, k, values, 1)
		}
	}
}

// scoreFewPairs is scoreFew. Kernels take wideKeys keys at a time.
func (t *lineTask) scoreFewPairs(pos, count int) {
	from, _ := t.span(0, pos, count)
	_, to := t.span(t.M-1, pos, count)
	from &^= wideKeys - 1
	if from >= to {
		return
	}
	whole := to - (to-from)%wideKeys
	for at := from; at < whole; {
		end := t.oneAhead(pos+at, pos+whole) - pos
		far, _ := t.far(pos+at, pos+end)
		t.scoreWide(t.scores[at:], keyBlock, pos+at, (end-at)/wideKeys, far)
		at = end
	}
	// What is left is less than kernels take. The keys that end with it are multiplied, and the last scores are taken.
	if rest := to - whole; rest > 0 {
		own := t.keys[ownScores:][:mostFewLines*wideKeys]
		t.scoreWide(own, wideKeys, pos+to-wideKeys, 1, nil)
		for line := range t.lines {
			copy(t.scores[line*keyBlock+whole:line*keyBlock+to], own[(line+1)*wideKeys-rest:(line+1)*wideKeys])
		}
	}
}

// weighFewPairs is weighBlock.
func (t *lineTask) weighFewPairs(pos, count int, partial bool) {
	piece := t.valuesAtOnce()
	var end int
	for at := 0; at < count; at = end {
		end = t.oneAhead(pos+at, pos+min(at+piece, count)) - pos
		if partial {
			t.eachPart(pos, at, end, count, func(row, rows, from, to int) {
				t.weighRowsOfPairs(row, rows, pos, from, to, min(to+1, end), nil)
			})
			continue
		}
		_, far := t.far(pos+at, pos+end)
		t.weighRowsOfPairs(0, t.M, pos, at, end, end, far)
	}
}

// weighRowsOfPairs adds weighted values as they are cached, the positions from..to-1 of a block. Values up to most exist.
func (t *lineTask) weighRowsOfPairs(row, rows, pos, from, to, most int, far []byte) {
	line, n := row*t.Heads, rows*t.Heads
	if from%2 == 1 {
		if from--; pos+from < t.first(0) {
			t.addPairs(line, n, from, 1, t.lonePair(pos+from+1), nil)
			from += 2
		}
	}
	if (to-from)%2 == 1 && to < most {
		to++
	}
	if k := (to - from) / 2; k > 0 {
		values := t.from.v16[(pos+from)*t.Dim : (pos+from+2*k)*t.Dim]
		t.addPairs(line, n, from, k, values, far)
	}
	if (to-from)%2 == 1 && to > from {
		t.addPairs(line, n, to-1, 1, t.lonePair(pos+to-1), nil)
	}
}

// addPairs adds k pairs of values, whose weights are those of the positions of a block from at on, to the sums of lines.
func (t *lineTask) addPairs(line, n, at, k int, values []uint16, far []byte) {
	rows := valueRows{pairs: values, ld: t.Dim}
	for column := 0; column < t.Dim; {
		width := wideColumns(n, t.Dim-column)
		first, stride := t.ahead(far, column/vecN, t.Dim/vecN, 1, k)
		stride *= width / vecN
		part := weightedLines{n, k, &t.scores[line*keyBlock+at/2], &t.sums[line*t.ld+column], 4 * keyBlock, 4 * t.ld}
		part.addWide(width, rows, column, prefetch{first: &first[0], stride: stride})
		column += width
	}
}
