package kernel

import (
	"encoding/binary"

	"github.com/hetc/hetc/internal/mem"
)

// Few lines of attention in tiles, as a step of decode has them (see gen/amx_few.go). Whole blocks to which all lines
// attend pass several at a time. Sums have the same terms in the same order as block by block, so bits are the same.
//
// Meanwhile memory is asked for what the next blocks need, by all kernels, because it would be idle while one does not.

const (
	fewLines  = 8 // the most of a step
	fewBlocks = 4 // the most that pass together

	placeRows = 2 // places of keys, and of values, where a step asks memory
	firstAsks = 4 // how often a task asks before its kernels do
)

// fewTask is what a task of few lines has besides. Without blocks it has too many.
type fewTask struct {
	blocks  int // that pass together
	rows    int // lines rounded up to a power of two
	scoring tileConfig

	scores, fades []float32 // of blocks
	weights       []uint16
}

// takeFew takes what few lines need of scratch.
func (t *tileTask) takeFew(take func(int) []float32, words func(int) []uint16) {
	if t.lines > fewLines || t.limit > 0 || t.Dim%vecN != 0 {
		return
	}
	few := &t.few
	for few.rows = 1; few.rows < t.lines; few.rows *= 2 {
	}
	// More blocks at a time are fewer changes between tiles and vectors, and fewer blocks stay in nearer caches.
	numbers := fewBlocks * 32
	if few.rows <= 2 {
		numbers = fewBlocks * 64
	}
	few.blocks = min(fewBlocks, max(1, numbers/t.Dim))
	few.scores = take(few.blocks * keyBlock * few.rows)
	few.weights = words(few.blocks * keyBlock * few.rows)
	few.fades = take(fewBlocks * fewLines)
	few.scoring = t.scoring
	for _, tile := range []int{0, 1, 2, 3, 4, 6} {
		few.scoring.narrow(tile, 4*few.rows)
	}
}

// narrow changes the bytes of a tile's rows, if it has any.
func (c *tileConfig) narrow(tile, bytes int) {
	if c[48+tile] > 0 {
		binary.LittleEndian.PutUint16(c[16+2*tile:], uint16(bytes))
	}
}

// wholeBlocks is the number of blocks from pos on that takeBlocks can take.
func (t *tileTask) wholeBlocks(pos int) int {
	if t.few.blocks == 0 || t.first(t.M-1) > pos {
		return 0
	}
	return min(t.few.blocks, (t.Pos+1-pos)/keyBlock)
}

// blocksAhead is what memory is asked for: from next on lines times a line in each of four places.
type blocksAhead struct {
	next         []byte
	half, across int
	lines        int
}

// ahead is what comes behind the blocks before pos: the next ones of the same lines, or what the caller reads next.
// Less than a block is left out.
func (t *tileTask) ahead(pos int) blocksAhead {
	keys, values := t.NextKeys, t.NextValues
	if pos+keyBlock <= t.context() {
		keys, values = mem.Bytes(t.k[pos*t.Dim:]), mem.Bytes(t.v[pos*t.Dim:])
	}
	size := min(2*t.few.blocks*keyBlock*t.Dim, len(keys), len(values))
	lines := size / cacheLine / placeRows
	if lines == 0 {
		return blocksAhead{}
	}
	return blocksAhead{
		next: keys, half: lines * cacheLine, lines: lines,
		across: int(mem.Address(values) - mem.Address(keys)),
	}
}

// ask returns where a kernel of some steps begins to ask, and how often a step does, so that it has a share of all that
// is left. It moves on.
func (a *blocksAhead) ask(t *tileTask, steps, share, all int) (first *byte, asks int) {
	asks = min(a.lines/steps, (a.lines*share+all*steps/2)/(all*steps))
	if asks == 0 {
		return &mem.Bytes(t.scores)[0], 0
	}
	first = &a.next[0]
	a.skip(asks * steps)
	return first, asks
}

// skip leaves out what was asked for.
func (a *blocksAhead) skip(lines int) {
	a.next = a.next[lines*cacheLine:]
	a.lines -= lines
}

// askFirst asks for the first lines of what the kernels of the first blocks will ask for, while the task begins.
func (t *tileTask) askFirst() {
	pos := t.start()
	blocks := t.wholeBlocks(pos)
	if blocks == 0 {
		return
	}
	if ahead := t.ahead(pos + blocks*keyBlock); ahead.lines > firstAsks {
		askPlaces(&ahead.next[0], ahead.half, ahead.across, firstAsks)
	}
}

// How long a tile of keys, a vector of scores, and making or multiplying a tile of values take, about.
const (
	scoreTime   = 3
	softmaxTime = 1
	valueTime   = 2
)

// takeBlocks is block for several whole ones.
func (t *tileTask) takeBlocks(pos, blocks int) {
	few := &t.few
	ahead := t.ahead(pos + blocks*keyBlock)
	if pos == t.start() && ahead.lines > firstAsks {
		ahead.skip(firstAsks)
	}
	tiles, vectors := keyBlock/stripKeys*(t.steps+t.rest), keyBlock/vecN*few.rows
	vectors += vectors / 8 // those that the largest scores are searched in
	values := 2 * groupChunks * t.columns
	softening := softmaxTime * vectors
	left := softening + valueTime*values // of each block

	next, asks := ahead.ask(t, blocks*tiles, scoreTime*tiles, scoreTime*tiles+left)
	scoreFewAMX(&few.scoring[0], &t.queries[0], &t.k[pos*t.Dim], 2*t.Dim, 2*stripKeys*t.Dim,
		blocks*keyBlock/stripKeys/4, t.steps, t.rest, &few.scores[0], 4*few.rows, next, ahead.half, ahead.across, asks)
	for block := range blocks {
		next, asks := ahead.ask(t, vectors, softening, blocks*left-block*softening)
		softmaxFew512(few.rows, &few.scores[block*keyBlock*few.rows], t.scale, &t.tops[0], 4*len(t.tops),
			&few.fades[block*fewLines], &few.weights[block*keyBlock*few.rows], next, ahead.half, ahead.across, asks)
	}
	for from := 0; from < blocks; {
		if from > 0 || pos > t.start() || t.Rest.Count > 0 { // else nothing is summed up yet
			fadeTiles512(t.lines, &t.sums[0], 4*t.ld, t.ld, &few.fades[from*fewLines])
		}
		end := from + 1
		for end < blocks && few.keeps(end, t.lines) {
			end++
		}
		t.weighBlocks(pos, from, end, blocks, &ahead)
		from = end
	}
}

// keeps reports whether sums before a block do not fade.
func (f *fewTask) keeps(block, lines int) bool {
	for _, fade := range f.fades[block*fewLines:][:lines] {
		if fade != 1 {
			return false
		}
	}
	return true
}

// weighBlocks adds the weighted values of the blocks from..end-1 of some.
func (t *tileTask) weighBlocks(pos, from, end, blocks int, ahead *blocksAhead) {
	few := &t.few
	chunks := (end - from) * groupChunks
	left := (blocks - from) * groupChunks * t.columns // tiles of values
	for column := 0; column < t.columns; {
		width := t.columnsTogether(t.columns - column)
		next, asks := ahead.ask(t, 2*chunks*width, chunks*width, left)
		weighFewAMX(&t.weighing[0], &few.weights[from*keyBlock*few.rows], 2*chunkKeys*few.rows,
			&t.v[(pos+from*keyBlock)*t.Dim+column*vecN], 2*t.Dim, chunks, width/2, width%2, width, &t.values[0],
			&t.sums[column*vecN], 4*t.ld, next, ahead.half, ahead.across, asks)
		column += width
		left -= chunks * width
	}
}

// columnsTogether is how many of left tiles of columns pass together, two of which are interleaved.
func (t *tileTask) columnsTogether(left int) int {
	switch {
	case left <= tileColumns:
		return left
	case left <= 8:
		return 4
	}
	return tileColumns
}
