package kernel

import (
	"encoding/binary"
	"math"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/number"
)

// Attention by the method of FlashAttention: blocks of keyBlock positions, whose scores become weights
// by an online softmax, so that no more scores than those of one block are kept.
//
// A line is one query head of one row; lines of all rows and heads of a call lie behind each other, because they
// share keys and values. For each block the keys are turned into tiles [dim][16], or [dim][32] for 512 bits, once for
// all lines; then scores = q k^T tile by tile, softmax line by line, and sums += weights v by columns. Tiles of
// positions that no row attends to are left out, and so are the lines of rows that attend to none of a tile. The cost
// is that of the multiply-adds, 2*dim for each line and position, and about 8 instructions of softmax for each 8
// scores.
//
// A decode step has few lines, which share no tile often enough to pay for making it: keys are transposed in registers
// and multiplied at once, and values of float16 are widened as they are used.
//
// Sums run in the order of positions and blocks start at multiples of keyBlock. What is left out for one row and not
// for another is a weight of zero. So a row's bits depend neither on the rows computed with it nor on how a prompt was
// cut into chunks.

// tileKeys is the number of positions of a tile of keys with 256 bits, TileN that with 512; pieceKeys is the number of
// positions whose keys and values are prepared at a time.
const (
	tileKeys  = 16
	pieceKeys = 64
)

// tilePitch is the distance of two tiles in elements: a line more than a tile, because kernels read several side by
// side and caches find addresses slowly that are a power of two apart.
func tilePitch(dim, width int) int { return (dim + 1) * width }

// source is where keys and values of one head lie, as rows of Dim numbers of one of these types.
type source struct {
	k32, v32 []float32
	k16, v16 []uint16
	brain    bool    // those of 16 bits are bfloat16, not float16
	pairs    bool    // of brain, multiplied as pairs
	k8, v8   []uint8 // of Dim+cachedScale bytes, see StoreQ8
	codes    bool    // of 8 bits, multiplied as codes
}

// lineTask is a call of attention256: what does not change from block to block.
type lineTask struct {
	Attention
	lines, ld                    int       // ld is the pitch of a line of sums
	depth                        int       // numbers of a query and a key, or pairs of them, or words of four codes
	queries, scores, sums, state []float32 // of lines: [depth], [keyBlock], [ld], [4] as of softmaxLines256
	keys, wide                   []float32 // keys of a piece, in tiles, and values
	padded                       []uint16  // of pairs, rows of the cache with zeros behind them
	code                         codeTask
	scale, capScale, limit       float32
	from                         source
	tier                         tier
	width                        int       // positions of a tile: TileN for the kernels of matrix products, else tileKeys
	few                          bool      // keys are read as they are cached, without tiles
	lookAhead                              // of few
	fades                        []float32 // of few with 512 bits, state behind each of several blocks
	needed                       [2]neededRows
}

// attention computes groups of rows, each over all blocks, with tiles of width keys.
func (t tier) attention(width int, y, q Matrix[float32], scratch []float32, all Attention, from source) {
	if all.M == 0 {
		return
	}
	columns := all.Heads * all.Dim
	y.mustHold(all.M, columns)
	q.mustHold(all.M, columns)
	scratch = scratch[:AttentionScratch(all.Heads, all.Dim)]
	most := AttentionRows(all.Heads)
	for row := 0; row < all.M; row += most {
		task := t.newLineTask(width, scratch, all, row, min(most, all.M-row), from)
		task.takeQueries(q.From(row, 0))
		next := all.NextQueries
		if row+most < all.M {
			next = q.From(row+most, 0)
		}
		task.need(y.From(row, 0), next)
		if task.turned() {
			task.turnQueries()
		}
		if all.Rest.Count > 0 {
			task.beginWithRest()
		}
		for pos := task.start(); pos < task.context(); {
			if blocks := task.wholeBlocks(pos); blocks > 0 {
				task.takeBlocks(pos, blocks)
				pos += blocks * keyBlock
				continue
			}
			task.block(pos, min(keyBlock, task.context()-pos))
			pos += keyBlock
		}
		task.finish(y.From(row, 0))
	}
}

// takeQueries copies the queries of a task, in the form that its kernels take.
func (t *lineTask) takeQueries(q Matrix[float32]) {
	columns := t.Heads * t.Dim
	if t.from.pairs {
		t.pairQueries(q)
		return
	}
	if t.from.codes {
		t.codeQueries(q)
		return
	}
	for row := range t.M {
		copy(t.queries[row*columns:], q.row(row, columns))
	}
	if t.from.brain {
		vecRoundBF16(t.queries[:t.M*columns])
	}
	if t.from.k8 != nil {
		t.roundQueries()
	}
}

// roundQueries rounds queries as an 8-bit cache does, by way of rows as that has them.
func (t *lineTask) roundQueries() {
	const most = 64 // lines at a time
	pitch := t.Dim + cachedScale
	rows, scales := mem.Bytes(t.wide)[:most*pitch], t.scores[:most]
	for line := 0; line < t.lines; {
		count := min(most, t.lines-line)
		queries := t.queries[line*t.Dim:][:count*t.Dim]
		codes := Matrix[uint8]{rows, pitch}
		if bad := t.tier.quantRows(Quantised{Codes: codes, Scale: scales}, Rows(queries, t.Dim), count, t.Dim); bad >= 0 {
			count = bad + 1 // whose codes may be anything
			scales[bad] = float32(math.NaN())
		}
		for i, scale := range scales[:count] {
			binary.LittleEndian.PutUint32(rows[i*pitch+t.Dim:], math.Float32bits(scale))
		}
		widenQ8(queries, t.Dim, rows, 0, count, t.Dim)
		line += count
	}
}

// newLineTask divides scratch for rows of all from row on.
func (t tier) newLineTask(width int, scratch []float32, all Attention, row, rows int, from source) lineTask {
	task := lineTask{
		tier: t, width: width, Attention: all, from: from,
		lines: rows * all.Heads, ld: (all.Dim + vecN - 1) &^ (vecN - 1),
	}
	task.M, task.Pos = rows, all.Pos+row
	if task.few = task.isFew(); task.few {
		task.lookAhead = task.newLookAhead()
	}
	take := func(size int) (part []float32) {
		part, scratch = scratch[:size], scratch[size:]
		return part
	}
	task.depth = all.Dim
	switch {
	case from.pairs:
		task.depth = pairsOf(all.Dim)
	case from.codes:
		task.depth = all.Dim / quad
	}
	room := task.lines
	if task.turned() {
		room = mostFewLines
	}
	task.keys = take(pieceKeys / width * tilePitch(task.depth, width))
	switch {
	case from.pairs:
		task.takePairs(take)
	case from.codes:
		task.takeCodes(room, take)
	default:
		task.wide = take(keyBlock * task.ld)
	}
	blocks := 1
	if task.few && t.wide() {
		blocks = blocksTogether
	}
	task.scores, task.state = take(room*keyBlock*blocks), take(task.lines*4)
	task.fades = take(task.lines * 4 * blocks)
	task.queries, task.sums = take(room*task.depth), take(task.lines*task.ld)
	clear(task.queries[task.lines*task.depth:])
	task.scale = float32(all.Scale * math.Log2E)
	if all.Cap > 0 {
		task.scale, task.capScale, task.limit = math.Log2E, float32(all.Scale/all.Cap), float32(all.Cap)
	}
	clear(task.sums)
	for line := range task.lines {
		task.state[4*line], task.state[4*line+1] = float32(math.Inf(-1)), 0
	}
	return task
}

// beginWithRest has every line begin with the rest instead of nothing.
func (t *lineTask) beginWithRest() {
	for line := range t.lines {
		query := t.queries[line*t.depth : (line+1)*t.depth]
		switch {
		case t.from.pairs:
			query = t.wideQuery(query)
		case t.from.codes:
			query = t.floatQuery(line)
		}
		score := t.restScore(query)
		t.state[4*line], t.state[4*line+1] = score*math.Log2E, 1
		copy(t.sums[line*t.ld:], t.Rest.Value)
	}
}

// span is the part of the positions pos..pos+count-1 that a row attends to, relative to pos.
func (t *lineTask) span(row, pos, count int) (from, to int) {
	return max(t.first(row)-pos, 0), min(count, t.Pos+row+1-pos)
}

// block takes the positions pos..pos+count-1 into account. Keys and values pass in pieces that stay in the first-level
// cache; each piece is prefetched while the one before it is computed with.
func (t *lineTask) block(pos, count int) {
	if t.from.pairs {
		t.blockOfPairs(pos, count)
		return
	}
	if t.from.codes {
		t.blockOfCodes(pos, count)
		return
	}
	if t.few {
		t.scoreFew(pos, count)
		t.weighBlock(pos, count, t.soften(pos, count))
		return
	}
	for at := 0; at < count; at += pieceKeys {
		end := min(at+pieceKeys, count)
		t.tiles(pos+at, pos+end)
		next, _ := t.stored(pos+end, pos+min(end+pieceKeys, count))
		switch {
		case t.width == TileN: // whose kernels prefetch beside scores only
			_, next = t.stored(pos+at, pos+end)
		case end == count:
			_, next = t.stored(pos, pos+min(pieceKeys, count))
		}
		t.score(pos, at, end, next)
	}
	t.weighBlock(pos, count, t.soften(pos, count))
}

// weighBlock adds the values of a block, whose scores have become weights. Where it is partial a row does not attend to
// all of the block.
func (t *lineTask) weighBlock(pos, count int, partial bool) {
	piece := t.valuesAtOnce()
	var end int
	for at := 0; at < count; at = end {
		end = min(at+piece, count)
		near := 0
		_, next := t.stored(pos+end, pos+min(end+pieceKeys, count))
		switch {
		case t.few:
			end = t.oneAhead(pos+at, pos+end) - pos
			_, current := t.from.bytes(pos+at, pos+end, t.Dim)
			_, next = t.far(pos+at, pos+end)
			near = t.toNear(current, next)
		case end == count:
			next, _ = t.stored(pos+end, min(pos+end+pieceKeys, t.context()))
		}
		values := t.values(pos+at, pos+end)
		if !partial {
			t.weigh(0, t.M, at, end, values, next, near)
			continue
		}
		// Neighbouring rows attend to nearly the same positions. Their lines shall fill whole groups.
		each := t.rowsTogether()
		for row := 0; row < t.M; row += each {
			rows := min(each, t.M-row)
			from, _ := t.span(row, pos, count)
			_, to := t.span(row+rows-1, pos, count)
			if from, to = max(from, at), min(to, end); from < to {
				t.weigh(row, rows, from, to, values.from(from-at), nil, 0)
			}
		}
	}
}

// valuesAtOnce is how many values pass before the next ones: all of a block where they stay in the cache, because
// kernels take few columns, or pass only once.
func (t *lineTask) valuesAtOnce() int {
	if t.width == TileN || t.few && t.tier.wide() && t.passOnce() {
		return keyBlock
	}
	return pieceKeys
}

// rowsTogether is the least number of rows whose lines nearly fill calls of a kernel.
func (t *lineTask) rowsTogether() int {
	most := maxLines
	if t.width == TileN {
		most = t.tier.mostF32()
	}
	for rows := 1; ; rows++ {
		lines := rows * t.Heads
		if room := (lines + most - 1) / most * most; 8*lines >= 7*room {
			return rows
		}
	}
}

// prefetchLines is the number of lines up to which reading memory may take longer than the multiply-adds.
const prefetchLines = 24

// stored is what is to be prefetched of the cache, nil where that is not worth it.
func (t *lineTask) stored(from, to int) (k, v []byte) {
	if t.lines > prefetchLines || from >= to {
		return nil, nil
	}
	return t.from.bytes(from, to, t.Dim)
}

// maxLines is the number of lines that the kernels multiply at a time.
const maxLines = 6

// ahead divides what is to be prefetched among calls: it returns where the part of a call begins for n lines of steps
// steps each, and the bytes of a step. Where nothing is to be prefetched it returns memory in use, because asking for
// an address that is not mapped takes long.
func (t *lineTask) ahead(next []byte, call, calls, n, steps int) (first []byte, stride int) {
	if len(next) == 0 {
		return mem.Bytes(t.keys), 0
	}
	part := len(next) / calls
	return next[call*part:], part / (steps * ((n + maxLines - 1) / maxLines))
}

// score computes the scores of positions from..to-1 of the block at pos, whose keys are in tiles, of all lines that
// attend to one of a tile's.
func (t *lineTask) score(pos, from, to int, next []byte) {
	calls := (to - from + t.width - 1) / t.width
	for call := 0; call < calls; {
		// Few lines take several tiles side by side, so that enough sums run at a time.
		tiles := 1
		switch left := calls - call; {
		case t.width == TileN:
		case t.lines == 1 && left >= 4:
			tiles = 4
		case t.lines <= 3 && left >= 2:
			tiles = 2
		}
		at := from + call*t.width
		// Rows from low on are at the first position or after it, and rows from high on have left the last.
		low, high := max(0, pos+at-t.Pos), t.M
		if t.Window > 0 {
			high = min(high, pos+at+tiles*t.width-1+t.Window-t.Pos)
		}
		if n, line := (high-low)*t.Heads, low*t.Heads; n > 0 {
			first, stride := t.ahead(next, call, calls, n, t.Dim)
			out, queries := &t.scores[line*keyBlock+at], &t.queries[line*t.Dim]
			keys := &t.keys[call*tilePitch(t.Dim, t.width)]
			switch {
			case t.width == TileN:
				// Rows before middle attend to no more than the first half of the tile.
				middle := min(high, max(low, pos+at+TileN/2-t.Pos))
				if t.tier.wide() {
					t.scoreHalf(line, middle*t.Heads, at, keys)
					line, n = middle*t.Heads, (high-middle)*t.Heads
				}
				distance := int(mem.Address(first) - mem.Address(mem.Bytes(t.keys[call*tilePitch(t.Dim, t.width):])))
				for done := 0; done < n; {
					t.askNeeded()
					count := share(n-done, t.tier.mostF32())
					out, queries := &t.scores[(line+done)*keyBlock+at], &t.queries[(line+done)*t.Dim]
					if t.tier.wide() {
						f32Rows512(count, out, 4*keyBlock, queries, 4*t.Dim, t.Dim, keys, distance, 2*stride, 0, 0)
					} else {
						f32Rows256(count, out, 4*keyBlock, queries, 4*t.Dim, t.Dim, keys, distance, 2*stride, 0)
					}
					done += count
				}
			case tiles == 4:
				scores256x64(n, out, 4*keyBlock, queries, 4*t.Dim, t.Dim, keys, &first[0], 4*stride)
			case tiles == 2:
				scores256x32(n, out, 4*keyBlock, queries, 4*t.Dim, t.Dim, keys, &first[0], 2*stride)
			default:
				scores256(n, out, 4*keyBlock, queries, 4*t.Dim, t.Dim, keys, &first[0], stride)
			}
		}
		call += tiles
	}
}

// scoreHalf computes the scores of lines first..last-1 for the first half of a tile, the positions of a block from at
// on.
func (t *lineTask) scoreHalf(first, last, at int, keys *float32) {
	for first < last {
		count := share(last-first, mostNarrowLines)
		for line := first; line < first+count; line++ {
			clear(t.scores[line*keyBlock+at : line*keyBlock+at+TileN/2])
		}
		valuesWideF32x16(count, &t.scores[first*keyBlock+at], 4*keyBlock, &t.queries[first*t.Dim], 4*t.Dim, t.Dim, keys,
			4*TileN, &mem.Bytes(t.keys)[0], 0)
		first += count
	}
}

// soften turns scores into weights, and fades what lines have summed up. It reports whether a row does not attend to
// all of the block; then weights of other positions are zero.
func (t *lineTask) soften(pos, count int) (partial bool) {
	first, _ := t.span(t.M-1, pos, count)
	_, last := t.span(0, pos, count)
	partial = first > 0 || last < count
	for row := 0; row < t.M; {
		low, high := t.used(row, pos, count)
		end := row + 1
		for end < t.M {
			if l, h := t.used(end, pos, count); l != low || h != high {
				break
			}
			end++
		}
		t.softenRows(row, end, low, high, pos, count)
		row = end
	}
	return partial
}

// used is the span of a row in whole vectors, empty where it attends to nothing.
func (t *lineTask) used(row, pos, count int) (low, high int) {
	from, to := t.span(row, pos, count)
	if from >= to {
		return 0, 0
	}
	return from &^ (vecN - 1), (to + vecN - 1) &^ (vecN - 1)
}

// softenRows is soften for rows row..end-1, of which each attends to a part of the positions low..high-1.
func (t *lineTask) softenRows(row, end, low, high, pos, count int) {
	first, last := row*t.Heads, end*t.Heads
	for ; row < end; row++ {
		t.maskRow(row, low, high, pos, count)
	}
	if low == high {
		return
	}
	scores, state := &t.scores[first*keyBlock+low], &t.state[4*first]
	switch n := high - low; {
	case t.from.pairs:
		softmaxPairs512(last-first, scores, 4*keyBlock, n, t.scale, state, 2*low)
		t.clearAround(first, last, low, high)
	case t.from.codes:
		softmaxCodes512(last-first, scores, 4*keyBlock, n, t.scale, state, 2*low, &t.code.valueScales[low])
		t.clearAround(first, last, low, high)
	case t.tier.wide():
		softmaxLines512(last-first, scores, 4*keyBlock, n, t.scale, state)
	default:
		softmaxLines256(last-first, scores, 4*keyBlock, n, t.scale, state)
	}
	if t.from.brain && !t.from.pairs {
		t.roundWeights(first, last, low, high)
	}
	if pos == t.start() && t.Rest.Count == 0 {
		return // nothing is summed up yet
	}
	fadeLines256(last-first, &t.sums[first*t.ld], 4*t.ld, t.ld, &t.state[4*first+2])
}

// roundWeights rounds weights of lines to bfloat16.
func (t *lineTask) roundWeights(first, last, low, high int) {
	for line := first; line < last; line++ {
		vecRoundBF16(t.scores[line*keyBlock+low : line*keyBlock+high])
	}
}

// mostBehind is the most that is overwritten behind what a row attends to.
const mostBehind = vecN + maxRows

// Scores around those that a row attends to: what is in a vector with them counts nothing in its softmax, and beyond it
// are weights of nothing, because values are weighed with those of at most maxRows rows (see rowsTogether), whose spans
// begin and end as many positions apart.
var beforeSpan, behindSpan = func() (before [maxRows + vecN]float32, behind [vecN + mostBehind]float32) {
	for i := range vecN {
		before[maxRows+i], behind[i] = float32(math.Inf(-1)), float32(math.Inf(-1))
	}
	return before, behind
}()

// maskRow overwrites scores of a row that attends to a part of the positions low..high-1, and caps the others.
func (t *lineTask) maskRow(row, low, high, pos, count int) {
	from, to := t.span(row, pos, count)
	least, most := max(0, low-maxRows), min(high+maxRows, keyBlock)
	if t.limit == 0 && least == from && to == most {
		return
	}
	for line := row * t.Heads; line < (row+1)*t.Heads; line++ {
		scores := t.scores[line*keyBlock : (line+1)*keyBlock]
		if low == high {
			clear(scores)
			continue
		}
		if t.limit > 0 {
			capScores(scores[low:high], t.capScale, t.limit)
		}
		copy(scores[least:from], beforeSpan[maxRows-(low-least):])
		if behind := behindSpan[vecN-(high-to):]; to+mostBehind <= keyBlock {
			*(*[mostBehind]float32)(scores[to:]) = *(*[mostBehind]float32)(behind) // more than needed, without a call
		} else {
			copy(scores[to:most], behind)
		}
	}
}

// weigh adds values, the rows of positions from..to-1 of a block, weighted to the sums of rows from row on.
func (t *lineTask) weigh(row, rows, from, to int, values valueRows, next []byte, near int) {
	line, n, k, columns := row*t.Heads, rows*t.Heads, to-from, (t.Dim+7)&^7
	weights, sums := Rows(t.scores, keyBlock).From(line, from), Rows(t.sums, t.ld).From(line, 0)
	for column := 0; column < columns; {
		left := columns - column
		if t.width == TileN && (left >= TileN || t.tier.wide() && left >= vecN) {
			column += t.weighTile(n, k, sums.From(0, column), weights, Rows(values.wide[column:], values.ld), left)
			continue
		}
		width := t.columnsAtOnce(n, left)
		wide, times := t.few && t.tier.wide() && width > keyGroup, n
		if wide {
			times = 1 // all lines take one turn
		}
		first, stride := t.ahead(next, column/8, columns/8, times, k)
		stride *= width / 8
		y, x := sums.at(0, column), weights.at(0, 0)
		if t.few {
			part := weightedLines{n, k, x, y, 4 * keyBlock, 4 * t.ld}
			if ahead := (prefetch{&first[0], near, stride}); wide {
				part.addWide(width, values, column, ahead)
			} else {
				part.add(width, values, column, ahead)
			}
			column += width
			continue
		}
		v, ld := &values.wide[column], values.ld
		switch width {
		case 64:
			values256x64(n, y, 4*t.ld, x, 4*keyBlock, k, v, 4*ld, &first[0], stride)
		case 32:
			values256x32(n, y, 4*t.ld, x, 4*keyBlock, k, v, 4*ld, &first[0], stride)
		case 16:
			values256(n, y, 4*t.ld, x, 4*keyBlock, k, v, 4*ld, &first[0], stride)
		default:
			values256x8(n, y, 4*t.ld, x, 4*keyBlock, k, v, 4*ld, &first[0], stride)
		}
		column += width
	}
}

// columnsAtOnce is how many of left columns of values a kernel adds to the sums of n lines.
func (t *lineTask) columnsAtOnce(n, left int) int {
	switch {
	case t.few && t.tier.wide():
		return wideColumns(n, left)
	case n == 1 && left >= 64:
		return 64
	case n <= 3 && left >= 32:
		return 32
	case t.few && (n == 4 || n > maxLines) && left >= 24:
		return 24
	}
	return min(16, left)
}

// weighTile adds TileN columns of k values, or vecN where fewer are left, to the sums of n lines, as many at a time as
// a kernel has registers for. It returns the number of columns.
func (t *lineTask) weighTile(n, k int, sums, weights, values Matrix[float32], left int) int {
	if left >= TileN {
		for done := 0; done < n; {
			count := share(n-done, t.tier.mostF32())
			t.tier.addF32(count, sums.From(done, 0), weights.From(done, 0), k, values)
			done += count
		}
		return TileN
	}
	for done := 0; done < n; {
		count := share(n-done, mostNarrowLines)
		part := weightedLines{count, k, weights.at(done, 0), sums.at(done, 0), 4 * keyBlock, 4 * t.ld}
		part.addWide(vecN, valueRows{wide: values.Data, ld: values.Stride}, 0, prefetch{first: &mem.Bytes(t.keys)[0]})
		done += count
	}
	return vecN
}

// finish divides by the sums of the weights.
func (t *lineTask) finish(y Matrix[float32]) {
	for line := range t.lines {
		t.state[4*line+3] = 1 / t.state[4*line+1]
	}
	fadeLines256(t.lines, &t.sums[0], 4*t.ld, t.ld, &t.state[3])
	for row := range t.M {
		out, sums := y.row(row, t.Heads*t.Dim), t.sums[row*t.Heads*t.ld:]
		if t.ld == t.Dim {
			copy(out, sums)
			continue
		}
		for head := range t.Heads {
			copy(out[head*t.Dim:(head+1)*t.Dim], sums[head*t.ld:])
		}
	}
}

// tiles writes keys from..to as tiles [Dim][width]; columns beyond to may become anything. Those of a cache that no
// kernel turns are widened before.
func (t *lineTask) tiles(from, to int) {
	s, dim, width, pos := &t.from, t.Dim, t.width, from
	column := func(pos int) []float32 {
		index := pos - from
		return t.keys[index/width*tilePitch(dim, width):][index%width : width*dim]
	}
	if width == TileN && t.tier.wide() && dim%t.turnedNumbers() == 0 && !s.brain {
		for ; pos+vecN <= to; pos += vecN {
			s.turnSixteen(column(pos), pos, dim)
		}
	}
	if s.k8 == nil && !s.brain || s.k8 != nil && width == tileKeys && dim%keyGroup == 0 {
		for ; pos+keyGroup <= to; pos += keyGroup {
			s.turnEight(column(pos), width, pos, dim)
		}
	}
	for ; pos < to; pos += keyGroup {
		s.widenKeys(t.wide, pos, min(pos+keyGroup, to), dim)
		(&source{k32: t.wide[:keyGroup*dim]}).turnEight(column(pos), width, 0, dim)
	}
}

// turnedNumbers is the number that the numbers of a key must be a multiple of for turnSixteen.
func (t *lineTask) turnedNumbers() int {
	if t.from.k8 != nil {
		return vecN
	}
	return keyGroup
}

// turnSixteen writes sixteen keys as columns of a tile of TileN.
func (s *source) turnSixteen(dst []float32, pos, dim int) {
	switch {
	case s.k8 != nil:
		pitch := dim + cachedScale
		turnWideQ8(&dst[0], &s.k8[pos*pitch], pitch, dim)
	case s.k16 != nil:
		turnWideF16(&dst[0], &s.k16[pos*dim], 2*dim, dim)
	default:
		turnWideF32(&dst[0], &s.k32[pos*dim], 4*dim, dim)
	}
}

// turnEight writes eight keys as columns of a tile: as many of their numbers as are a multiple of eight by a kernel,
// and the others one by one.
func (s *source) turnEight(dst []float32, width, pos, dim int) {
	whole := dim &^ (keyGroup - 1)
	switch {
	case whole == 0:
	case s.k8 != nil:
		pitch := dim + cachedScale
		keysQ8x16(&dst[0], &s.k8[pos*pitch], pitch, dim)
	case s.k16 != nil && width == TileN:
		transposeF16(&dst[0], &s.k16[pos*dim], 2*dim, whole)
	case s.k16 != nil:
		keysF16x16(&dst[0], &s.k16[pos*dim], 2*dim, whole)
	case width == TileN:
		transposeF32(&dst[0], &s.k32[pos*dim], 4*dim, whole)
	default:
		keysF32x16(&dst[0], &s.k32[pos*dim], 4*dim, whole)
	}
	for place := whole; place < dim; place++ {
		for i := range keyGroup {
			at := (pos+i)*dim + place
			if s.k16 != nil {
				dst[place*width+i] = number.HalfToFloat(s.k16[at])
			} else {
				dst[place*width+i] = s.k32[at]
			}
		}
	}
}

// widen converts numbers of 16 bits to float32.
func (s *source) widen(dst []float32, src []uint16) {
	if s.brain {
		vecFromBF16(dst, src)
	} else {
		vecFromF16(dst, src)
	}
}

// widenKeys writes keys from..to as rows of dim numbers.
func (s *source) widenKeys(dst []float32, from, to, dim int) {
	switch dst = dst[:(to-from)*dim]; {
	case s.k8 != nil:
		widenQ8(dst, dim, s.k8, from, to, dim)
	case s.k16 != nil:
		s.widen(dst, s.k16[from*dim:to*dim])
	default:
		copy(dst, s.k32[from*dim:to*dim])
	}
}

// valueRows are rows of values, ld numbers apart: those of wide, half, pairs or codes, whichever is not nil. Codes are
// rows as StoreQ8 makes them, and pairs are bfloat16, two rows for each pair of weights.
type valueRows struct {
	wide  []float32
	half  []uint16
	pairs []uint16
	codes []uint8
	ld    int
}

// from leaves rows out.
func (v valueRows) from(row int) valueRows {
	switch from := row * v.ld; {
	case v.codes != nil:
		v.codes = v.codes[from:]
	case v.half != nil:
		v.half = v.half[from:]
	default:
		v.wide = v.wide[from:]
	}
	return v
}

// values returns the values from..to in the form that kernels take: few lines take 16 bits as they are cached, and 8
// bits where no columns are left to a kernel of 256 bits.
func (t *lineTask) values(from, to int) valueRows {
	if t.from.pairs {
		return valueRows{pairs: t.from.v16[from*t.Dim : to*t.Dim], ld: t.Dim}
	}
	if t.few && t.from.k16 != nil {
		return valueRows{half: t.from.v16[from*t.Dim : to*t.Dim], ld: t.Dim}
	}
	if pitch := t.Dim + cachedScale; t.few && t.from.k8 != nil && t.tier.wide() && t.Dim%vecN == 0 {
		return valueRows{codes: t.from.v8[from*pitch : to*pitch], ld: pitch}
	}
	wide, ld := t.from.values(t.wide, from, to, t.Dim)
	return valueRows{wide: wide, ld: ld}
}

// values returns the values from..to as rows of ld numbers, of which those beyond dim are zero up to a multiple of 8.
// It may write them to wide.
func (s *source) values(wide []float32, from, to, dim int) (rows []float32, ld int) {
	ld = (dim + 7) &^ 7
	if s.k8 != nil {
		widenQ8(wide, ld, s.v8, from, to, dim)
		return wide, ld
	}
	if ld == dim && s.k16 == nil {
		return s.v32[from*dim : to*dim], dim
	}
	if ld == dim {
		s.widen(wide[:(to-from)*dim], s.v16[from*dim:to*dim])
		return wide, dim
	}
	for pos := from; pos < to; pos++ {
		row := wide[(pos-from)*ld : (pos-from+1)*ld]
		if s.k16 != nil {
			s.widen(row[:dim], s.v16[pos*dim:(pos+1)*dim])
		} else {
			copy(row, s.v32[pos*dim:(pos+1)*dim])
		}
		clear(row[dim:])
	}
	return wide, ld
}

// widenQ8 widens rows from..to of an 8-bit cache to rows of ld numbers, those beyond dim zero.
func widenQ8(dst []float32, ld int, rows []uint8, from, to, dim int) {
	pitch := dim + cachedScale
	if rows = rows[from*pitch : to*pitch]; dim%8 == 0 && ld == dim {
		fromQ8x256(&dst[:(to-from)*dim][0], &rows[0], dim, to-from)
		return
	}
	for i := range to - from {
		row := dst[i*ld : (i+1)*ld]
		fromQ8(row[:dim], rows[i*pitch:])
		clear(row[dim:])
	}
}

// bytes returns keys and values from..to as they are stored.
func (s *source) bytes(from, to, dim int) (k, v []byte) {
	if s.k8 != nil {
		pitch := dim + cachedScale
		return s.k8[from*pitch : to*pitch], s.v8[from*pitch : to*pitch]
	}
	if s.k16 != nil {
		return mem.Bytes(s.k16[from*dim : to*dim]), mem.Bytes(s.v16[from*dim : to*dim])
	}
	return mem.Bytes(s.k32[from*dim : to*dim]), mem.Bytes(s.v32[from*dim : to*dim])
}

// attentionF32 is Set.AttentionF32.
func (t tier) attentionF32(y, q Matrix[float32], k, v []float32, scratch []float32, a Attention) {
	t.attention(t.keysWidth(a), y, q, scratch, a, source{k32: k, v32: v})
}

// attentionF16 is Set.AttentionF16.
func (t tier) attentionF16(y, q Matrix[float32], k, v []uint16, scratch []float32, a Attention) {
	t.attention(t.keysWidth(a), y, q, scratch, a, source{k16: k, v16: v})
}

// attentionBF16 is Set.AttentionBF16, by the kernels of float32.
func (t tier) attentionBF16(y, q Matrix[float32], k, v []uint16, scratch []float32, a Attention) {
	t.attention(t.keysWidth(a), y, q, scratch, a, source{k16: k, v16: v, brain: true})
}

// attentionQ8 is Set.AttentionQ8.
func (t tier) attentionQ8(y, q Matrix[float32], k, v []uint8, scratch []float32, a Attention) {
	from := source{k8: k, v8: v, codes: t == avx512vnni && a.Dim%vecN == 0 && a.Dim <= mostCodes}
	t.attention(t.keysWidth(a), y, q, scratch, a, from)
}

// keysWidth is the number of positions of a tile of keys for the lines of a call. Those of few lines, where there are
// tiles at all, are the narrow ones.
func (t tier) keysWidth(a Attention) int {
	if t.wide() && a.M*a.Heads > mostFewLines {
		return TileN
	}
	return tileKeys
}
