package kernel

import (
	"math"

	"github.com/hetc/hetc/internal/mem"
)

// Attention over a bfloat16 cache in tiles (see gen/amx_attention.go), by the method of FlashAttention, as in
// vec_lines_amd64.go: blocks of keyBlock positions, whose scores become weights by an online softmax.
//
// Lines, the query heads of all rows of a task, are divided into groups of 16. For each block the values become pairs of
// rows once for all groups; keys are multiplied as they are cached. Then each group goes through scores, softmax and
// sums. Few lines take several whole blocks at a time (see vec_tiles_few_amd64.go), with the same bits.
//
// Groups of which each line attends to all of a block pass together. Others take the strips of 16 positions, and the
// chunks of 32, that one of their lines attends to, and scores of other positions are masked. Nothing beyond the cache is
// read: what is left of a strip or chunk at its end is copied before, and so are keys of an odd number of numbers.

const (
	groupLines  = 16                     // lines of a tile
	stripKeys   = 16                     // positions of a tile of scores
	chunkKeys   = 32                     // positions of a tile of weights
	groupsBatch = 4                      // the most groups whose scores are kept at a time
	tileNumbers = tileK / 2              // numbers of bfloat16 in a row of a tile
	tileSize    = tileRows * tileNumbers // of them in a tile
	groupScores = keyBlock * groupLines  // of a block
	groupChunks = keyBlock / chunkKeys   // of a block
	tileColumns = 6                      // tiles of sums that a kernel keeps
	noScore     = -math.MaxFloat32       // less than every score, times what is finite
	groupWeight = groupChunks * tileSize // weights of a group
)

// tileTask is a part of a call of attentionTiles: what does not change from block to block.
type tileTask struct {
	Attention
	k, v          []uint16
	lines, groups int
	batch         int // groups whose scores are kept at a time
	depth         int // pairs of a query
	ld, columns   int // numbers of a line of sums, and the tiles that hold them
	steps, rest   int // whole tiles of a key, and 1 where numbers are left
	pitch         int // numbers of a group's queries
	even          int // numbers of a row of copied keys

	queries, weights, values, tail, lone []uint16
	scores, sums                         []float32
	rounded                              []float32 // queries, pairs of numbers
	// of lines, one behind the other: the largest scores, sums of weights, and what sums fade by
	tops, totals, fades []float32
	span                [2 * groupLines]int32

	scale, capScale, limit float32

	scoring, weighing, attending tileConfig
	width                        int // columns that are attended together, of whole blocks

	few fewTask
}

// attentionTiles is Set.AttentionBF16.
func attentionTiles(y, q Matrix[float32], k, v []uint16, scratch []float32, a Attention) {
	if a.M == 0 {
		return
	}
	columns := a.Heads * a.Dim
	y.mustHold(a.M, columns)
	q.mustHold(a.M, columns)
	_, _ = k[a.context()*a.Dim-1], v[a.context()*a.Dim-1]
	most := AttentionRows(a.Heads)
	for row := 0; row < a.M; row += most {
		task := newTileTask(scratch[:AttentionScratch(a.Heads, a.Dim)], a, row, min(most, a.M-row))
		task.k, task.v = k, v
		task.askFirst()
		task.begin(q.From(row, 0))
		task.attend()
		task.finish(y.From(row, 0))
	}
}

// attend takes all blocks into account.
func (t *tileTask) attend() {
	for pos := t.start(); pos < t.context(); {
		if blocks := t.wholeBlocks(pos); blocks > 0 {
			t.takeBlocks(pos, blocks)
			pos += blocks * keyBlock
			continue
		}
		t.block(pos, min(keyBlock, t.context()-pos))
		pos += keyBlock
	}
}

// newTileTask divides scratch for rows of all from row on.
func newTileTask(scratch []float32, all Attention, row, rows int) tileTask {
	dim := all.Dim
	t := tileTask{
		Attention: all, lines: rows * all.Heads, depth: pairsOf(dim), ld: (dim + vecN - 1) &^ (vecN - 1),
		steps: dim / tileNumbers, rest: min(1, dim%tileNumbers), even: (dim + 1) &^ 1,
	}
	t.M, t.Pos = rows, all.Pos+row
	t.groups, t.columns = (t.lines+groupLines-1)/groupLines, t.ld/vecN
	t.pitch = (t.steps + t.rest) * tileSize

	scratch = aligned(scratch)
	take := func(size int) (part []float32) {
		part, scratch = scratch[:size], scratch[size:]
		return part
	}
	words := func(size int) []uint16 {
		part, _ := mem.View[uint16](mem.Bytes(take(size / 2))) // float32 numbers are aligned for those of 16 bits
		return part
	}
	t.queries, t.values = words(t.groups*t.pitch), words(groupChunks*t.columns*tileSize)
	room := t.groups * groupLines
	t.tops, t.totals, t.fades = take(room), take(room), take(room)
	t.sums, t.rounded = take(room*t.ld), take(room*t.depth)
	t.lone = words(chunkKeys * t.even)
	if t.even == dim {
		t.tail = words(stripKeys * dim)
	} else {
		t.tail = words(keyBlock * t.even)
	}

	t.batch = min(groupsBatch, t.groups, len(scratch)/(groupScores+groupWeight/2))
	t.scores, t.weights = take(t.batch*groupScores), words(t.batch*groupWeight)

	t.scale = float32(all.Scale * math.Log2E)
	if all.Cap > 0 {
		t.scale, t.capScale, t.limit = math.Log2E, float32(all.Scale/all.Cap), float32(all.Cap)
	}
	t.shape()
	t.takeFew(take, words)
	return t
}

// shape sets the configurations of tiles.
func (t *tileTask) shape() {
	pairs := (t.Dim%tileNumbers + 1) / 2
	rows := min(groupLines, t.lines)
	for tile := range 4 {
		t.scoring.set(tile, stripKeys, 4*groupLines)
	}
	t.scoring.set(4, tileRows, tileK)
	t.scoring.set(5, stripKeys, tileK)
	if pairs > 0 {
		t.scoring.set(6, pairs, tileK)
		t.scoring.set(7, stripKeys, 4*pairs)
	}
	t.attending = t.scoring
	most := tileColumns
	if pairs > 0 { // tiles are taken
		most = 4
	} else {
		t.attending.set(6, tileRows, tileK)
		t.attending.set(7, tileRows, tileK)
	}
	passes := (t.columns + most - 1) / most
	t.width = (t.columns + passes - 1) / passes
	for tile := range tileColumns {
		t.weighing.set(tile, rows, tileK)
	}
	t.weighing.set(6, rows, tileK)
	t.weighing.set(7, tileRows, tileK)
}

// begin turns queries, and has every line begin with the rest or with nothing.
func (t *tileTask) begin(q Matrix[float32]) {
	rounding := lineTask{
		Attention: t.Attention, lines: t.lines, depth: t.depth,
		queries: t.rounded, wide: t.sums,
	}
	rounding.pairQueries(q)
	clear(t.rounded[t.lines*t.depth:])
	for group := range t.groups {
		dst := mem.Bytes(t.queries[group*t.pitch : (group+1)*t.pitch])
		words, _ := mem.View[float32](dst)
		turnLines512(&words[0], &t.rounded[group*groupLines*t.depth], 4*t.depth, (t.Dim+1)/2)
	}

	clear(t.totals)
	for line := range t.tops {
		t.tops[line] = noScore
	}
	if t.Rest.Count > 0 {
		t.beginWithRest(&rounding)
	}
	clear(t.sums)
	for line := 0; line < t.lines && t.Rest.Count > 0; line++ {
		for column, value := range t.Rest.Value {
			t.sums[line*t.ld+t.place(column)] = value
		}
	}
}

// beginWithRest sets the state of lines whose first score is that of the rest.
func (t *tileTask) beginWithRest(rounding *lineTask) {
	for line := range t.lines {
		query := rounding.wideQuery(t.rounded[line*t.depth : (line+1)*t.depth])
		t.tops[line], t.totals[line] = t.restScore(query)*math.Log2E, 1
	}
}

// place is where the sum of a column lies in a line of sums: pairTiles512 takes columns by fours.
func (t *tileTask) place(column int) int {
	if first := column &^ (TileN - 1); t.ld-first >= TileN {
		return first + column/4%2*vecN + column%TileN/8*4 + column%4
	}
	return column
}

// block takes the positions pos..pos+count-1 into account.
func (t *tileTask) block(pos, count int) {
	keys, pitch, whole := t.k[pos*t.Dim:(pos+count)*t.Dim], t.Dim, count/stripKeys
	if t.even != t.Dim {
		copyRows(t.tail, t.even, keys, t.Dim)
		keys, pitch, whole = t.tail, t.even, (count+stripKeys-1)/stripKeys
	} else if whole*stripKeys < count {
		copyRows(t.tail, t.even, keys[whole*stripKeys*t.Dim:], t.Dim)
	}
	block := tileBlock{tileTask: t, keys: keys, keyPitch: pitch, whole: whole, pos: pos, count: count}
	block.lookAhead()
	block.pairValues(pos, count)
	for group := 0; group < t.groups; group += t.batch {
		block.take(group, min(t.batch, t.groups-group))
	}
}

// copyRows copies rows of dim numbers to rows of ld numbers. What is left of dst becomes zero.
func copyRows(dst []uint16, ld int, rows []uint16, dim int) {
	clear(dst)
	for at := 0; at < len(rows); at += dim {
		copy(dst[at/dim*ld:], rows[at:at+dim])
	}
}

// pairValues makes pairs of the values of a block that a row attends to. Others in their chunks are zero.
func (b *tileBlock) pairValues(pos, count int) {
	t := b.tileTask
	first := max(t.first(0)-pos, 0)
	pitch := t.columns * tileSize
	pair := func(chunk, chunks int, rows []uint16) {
		next, stride := t.ask(b.nextValues[:len(b.nextValues)/4], 8*chunks*(t.Dim/TileN), cacheLine)
		pairTiles512(&t.values[chunk*pitch], &rows[0], 2*t.Dim, chunks, 2*pitch, t.Dim/TileN, t.Dim%TileN, next, stride)
	}
	chunk, last := (first+chunkKeys-1)/chunkKeys, count/chunkKeys
	if first%chunkKeys > 0 {
		t.pairPart(pos, chunk-1, first, min(count, chunk*chunkKeys), pair)
	}
	if chunk < last {
		pair(chunk, last-chunk, t.v[(pos+chunk*chunkKeys)*t.Dim:])
	}
	if last*chunkKeys < count && last >= chunk {
		t.pairPart(pos, last, last*chunkKeys, count, pair)
	}
}

// pairPart is pairValues for the positions from..to-1 of one chunk of a block.
func (t *tileTask) pairPart(pos, chunk, from, to int, pair func(chunk, chunks int, rows []uint16)) {
	rows := t.lone[:chunkKeys*t.Dim]
	clear(rows)
	copy(rows[(from-chunk*chunkKeys)*t.Dim:], t.v[(pos+from)*t.Dim:(pos+to)*t.Dim])
	pair(chunk, 1, rows)
}

// tileBlock is a block of positions: rows of keyPitch numbers of its keys, of which whole strips can be read.
type tileBlock struct {
	*tileTask
	keys            []uint16
	keyPitch, whole int
	pos, count      int

	nextKeys, nextValues []byte // what comes behind the block, as it is cached
}

// lookAhead finds out what comes behind the block: of few lines, whose kernels ask memory for it.
func (b *tileBlock) lookAhead() {
	if b.groups > 1 {
		return
	}
	bytes := 2 * keyBlock * b.Dim
	if at := (b.pos + b.count) * b.Dim; b.pos+b.count < b.context() {
		b.nextKeys, b.nextValues = mem.Bytes(b.k[at:]), mem.Bytes(b.v[at:])
	} else {
		b.nextKeys, b.nextValues = b.NextKeys, b.NextValues
	}
	b.nextKeys, b.nextValues = b.nextKeys[:min(bytes, len(b.nextKeys))], b.nextValues[:min(bytes, len(b.nextValues))]
}

// ask divides what is to be prefetched among the steps of a kernel, of which each can ask for most bytes. Where there is
// nothing it returns memory in use, because asking for an address that is not mapped takes long.
func (t *tileTask) ask(next []byte, steps, most int) (first *byte, stride int) {
	if len(next) == 0 || steps == 0 {
		return &mem.Bytes(t.scores)[0], 0
	}
	return &next[0], min(most, (len(next)+steps-1)/steps)
}

// askedBytes is what a tile asks for.
const askedBytes = 8 * cacheLine

// take takes a batch of groups through the block.
func (b *tileBlock) take(first, groups int) {
	for at := 0; at < groups; {
		from, to, whole := b.needs(first + at)
		end := at + 1
		for ; end < groups; end++ {
			low, high, also := b.needs(first + end)
			if also != whole || !also && (b.Heads < groupedHeads || from >= to || low >= high) {
				break
			}
			to = max(to, high)
		}
		if from < to {
			b.groupsTogether(first, at, end, from, to, whole)
		}
		at = end
	}
}

// rowsOf returns the first and the last row of a group.
func (t *tileTask) rowsOf(group int) (first, last int) {
	return group * groupLines / t.Heads, (min((group+1)*groupLines, t.lines) - 1) / t.Heads
}

// needs returns the positions of the block that a line of a group attends to, and whether each line attends to all of a
// whole block.
func (b *tileBlock) needs(group int) (from, to int, whole bool) {
	low, high := b.rowsOf(group)
	from, to = max(b.first(low)-b.pos, 0), min(b.count, b.Pos+high+1-b.pos)
	return from, to, b.first(high) <= b.pos && b.Pos+low+1 >= b.pos+keyBlock
}

// groupedHeads is the number of heads from which on groups of lines attend to so nearly the same positions that fewer
// calls are worth more than fewer tiles.
const groupedHeads = 4

// groupsTogether takes the groups at..end-1 of a batch, which attend to all positions of the block or, unless whole is
// set, to some of from..to-1.
func (b *tileBlock) groupsTogether(first, at, end, from, to int, whole bool) {
	if whole && b.limit == 0 {
		b.attend(first+at, end-at)
		return
	}
	low, high := from/chunkKeys, (to+chunkKeys-1)/chunkKeys
	b.score(first, at, end, low*chunkKeys/stripKeys, (to+stripKeys-1)/stripKeys)
	for group := at; group < end; group++ {
		scores := b.scores[group*groupScores+low*chunkKeys*groupLines : group*groupScores+high*chunkKeys*groupLines]
		if b.limit > 0 {
			capScores(scores, b.capScale, b.limit)
		}
		if !whole {
			b.mask(first+group, scores, low*chunkKeys)
		}
		line := (first + group) * groupLines
		softmaxTiles512(&scores[0], high-low, b.scale, &b.tops[line], 4*len(b.tops),
			&b.weights[group*groupWeight+low*tileSize])
		if b.pos > b.start() || b.Rest.Count > 0 { // else nothing is summed up yet
			fadeTiles512(min(groupLines, b.lines-line), &b.sums[line*b.ld], 4*b.ld, b.ld, &b.fades[line])
		}
	}
	b.weigh(first, at, end, low, high)
}

// attend takes groups that attend to all of a whole block through it.
func (b *tileBlock) attend(first, groups int) {
	line := first * groupLines
	queries, keys, scores, top := &b.queries[first*b.pitch], &b.keys[0], &b.scores[0], &b.tops[line]
	if len(b.nextKeys) == 0 {
		attendTilesAMX(&b.attending[0], groups, queries, 2*b.pitch, keys, 2*b.keyPitch, 2*stripKeys*b.keyPitch, b.steps,
			b.rest, scores, b.scale, top, 4*len(b.tops), &b.weights[0], &b.values[0], 2*b.columns*tileSize, b.columns,
			b.width, &b.sums[line*b.ld], 4*b.ld)
		return
	}
	half := len(b.nextKeys) / 2
	nextK, strideK := b.ask(b.nextKeys[:half], (b.steps+b.rest)*keyBlock/stripKeys, askedBytes)
	_, strideV := b.ask(b.nextKeys[half:], groupChunks*b.columns, askedBytes)
	nextV, strideS := b.ask(b.nextValues[len(b.nextValues)/4:], keyBlock/4, 2*askedBytes)
	attendAskingAMX(&b.attending[0], groups, queries, 2*b.pitch, keys, 2*b.keyPitch, 2*stripKeys*b.keyPitch, b.steps,
		b.rest, scores, b.scale, top, 4*len(b.tops), &b.weights[0], &b.values[0], 2*b.columns*tileSize, b.columns,
		b.width, &b.sums[line*b.ld], 4*b.ld, nextK, strideK, strideV, nextV, strideS)
}

// score computes scores of the groups at..end-1 of a batch and of strips from..to-1.
func (b *tileBlock) score(first, at, end, from, to int) {
	multiply := func(keys []uint16, ld, from, strips int) {
		if strips <= 0 {
			return
		}
		scoreTilesAMX(&b.scoring[0], end-at, &b.queries[(first+at)*b.pitch], 2*b.pitch, &keys[0], 2*ld, 2*stripKeys*ld,
			strips, b.steps, b.rest, &b.scores[at*groupScores+from*stripKeys*groupLines],
			4*(groupScores-strips*stripKeys*groupLines))
	}
	if whole := min(to, b.whole); from < whole {
		multiply(b.keys[from*stripKeys*b.keyPitch:], b.keyPitch, from, whole-from)
	}
	if to > b.whole {
		multiply(b.tail, b.even, b.whole, to-b.whole)
	}
}

// mask overwrites scores of a group's lines of positions, from first of the block on, that they do not attend to.
func (b *tileBlock) mask(group int, scores []float32, first int) {
	span := &b.span
	clear(span[:])
	end := len(scores) / groupLines
	from, to := 0, keyBlock // all lines attend to these
	for i := range min(groupLines, b.lines-group*groupLines) {
		row := (group*groupLines + i) / b.Heads
		low, high := b.first(row)-b.pos, min(b.count, b.Pos+row+1-b.pos)
		span[i], span[groupLines+i] = int32(low), int32(high)
		from, to = max(from, low), min(to, high)
	}
	from, to = from-first, to-first
	if from >= to {
		from, to = end, end
	}
	if from > 0 {
		maskLines512(&scores[0], first, from, &span[0])
	}
	if to < end {
		maskLines512(&scores[to*groupLines], first+to, end-to, &span[0])
	}
}

// weigh adds the values of chunks from..to-1 to the sums of the groups at..end-1 of a batch.
func (b *tileBlock) weigh(first, at, end, from, to int) {
	passes := (b.columns + tileColumns - 1) / tileColumns
	width := (b.columns + passes - 1) / passes
	for column := 0; column < b.columns; column += width {
		weighTilesAMX(&b.weighing[0], end-at, &b.weights[at*groupWeight+from*tileSize],
			&b.values[(from*b.columns+column)*tileSize], 2*b.columns*tileSize, to-from, min(width, b.columns-column),
			&b.sums[(first+at)*groupLines*b.ld+column*vecN], 4*b.ld)
	}
}

// finish divides by the sums of the weights.
func (t *tileTask) finish(y Matrix[float32]) {
	for row := range t.M {
		line := row * t.Heads
		finishTiles512(t.Heads, &y.row(row, t.Heads*t.Dim)[0], 4*t.Dim, &t.sums[line*t.ld], 4*t.ld, &t.totals[line],
			t.Dim/TileN, t.Dim%TileN)
	}
}
