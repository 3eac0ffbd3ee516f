package kernel

import "github.com/hetc/hetc/internal/mem"

// Steps of decode over long caches, with 512 bits. A core reads memory as fast as it can only while it always has some 64
// lines asked for, so its kernels shall follow each other without other work between them, and ask while they compute.
// Whole blocks therefore pass blocksTogether at a time: the scores of all, then the softmax of each, then their
// values. The softmax asks for some of the values ahead, and the kernels of values spread what is left of these over
// their steps. Each sum has the same terms in the same order as block by block.

// blocksTogether is the number of blocks that pass at a time.
const blocksTogether = 4

// mostAsked is how many bytes the softmax of a block asks for at most.
const mostAsked = 4 << 10

// wholeBlocks is the number of blocks from pos on that takeBlocks can take: all rows of few lines attend to all of
// their positions, uncapped.
func (t *lineTask) wholeBlocks(pos int) int {
	if !t.few || !t.once || t.Dim%vecN != 0 || t.limit > 0 || t.first(t.M-1) > pos {
		return 0
	}
	return min(blocksTogether, (t.Pos+1-pos)/keyBlock)
}

// blocksPart are positions from..to-1, counted from the first one of some blocks, and what their kernels ask for, each
// in one piece of memory.
type blocksPart struct {
	from, to     int
	keys, values []byte
}

// takeBlocks is block for several whole ones. The scores of a line lie behind each other.
func (t *lineTask) takeBlocks(pos, blocks int) {
	count := blocks * keyBlock
	var parts [2]blocksPart
	parts[0].to = t.oneAhead(pos, pos+count) - pos
	parts[1].from, parts[1].to = parts[0].to, count
	for i := range parts {
		part := &parts[i]
		if part.from < part.to {
			part.keys, part.values = t.far(pos+part.from, pos+part.to)
			t.scoreWide(t.scores[part.from:], count, pos+part.from, (part.to-part.from)/wideKeys, part.keys)
		}
	}
	asked := t.softenBlocks(pos, blocks, parts[0].values)
	parts[0].values = parts[0].values[asked:]
	for from := 0; from < count; from += keyBlock {
		if from > 0 || pos != t.start() || t.Rest.Count > 0 {
			fadeLines256(t.lines, &t.sums[0], 4*t.ld, t.ld, &t.fades[from/keyBlock*4*t.lines+2])
		}
		if t.from.codes {
			part := &parts[0]
			if from >= part.to {
				part = &parts[1]
			}
			t.weighWholeCodes(pos, from, count, part)
			continue
		}
		for i := range parts {
			t.weighWhole(pos, from, count, &parts[i])
		}
	}
}

// softenBlocks turns the scores of whole blocks into weights, and keeps what each fades the sums before it by. It asks
// for the first of the values ahead, and returns for how many bytes.
func (t *lineTask) softenBlocks(pos, blocks int, ahead []byte) (asked int) {
	times := t.lines * keyBlock / vecN // that a softmax asks
	stride := min(2*line, min(mostAsked, len(ahead)/blocks/4)/times)
	if stride == 0 {
		ahead = mem.Bytes(t.keys) // see ahead
	}
	ldx, state := 4*blocks*keyBlock, &t.state[0]
	for block := range blocks {
		scores, next := &t.scores[block*keyBlock], &ahead[asked]
		switch {
		case t.from.codes:
			t.softenCodes(pos+block*keyBlock, blocks*keyBlock, scores, next, stride)
		case t.from.pairs:
			softmaxPairsAsking512(t.lines, scores, ldx, keyBlock, t.scale, state, 0, next, stride)
		default:
			softmaxAsking512(t.lines, scores, ldx, keyBlock, t.scale, state, next, stride)
		}
		copy(t.fades[block*4*t.lines:], t.state)
		asked += stride * times
	}
	return asked
}

// weighWhole adds the weighted values of a part that are in the block whose scores begin at block, of count scores of
// each line.
func (t *lineTask) weighWhole(pos, block, count int, part *blocksPart) {
	from, to := max(part.from, block), min(part.to, block+keyBlock)
	for at := from; at < to; {
		end := min(at+t.valuesAtOnce(), to)
		values, steps, weights := t.values(pos+at, pos+end), end-at, at
		if t.from.pairs { // half as many, from the beginning of the block on
			steps, weights = steps/2, block+(at-block)/2
		}
		for column := 0; column < t.Dim; {
			width := wideColumns(t.lines, t.Dim-column)
			lines := weightedLines{t.lines, steps, &t.scores[weights], &t.sums[column], 4 * count, 4 * t.ld}
			lines.addWide(width, values, column, t.spread(part, at, end, column, width, steps))
			column += width
		}
		at = end
	}
}

// spread is what the call of a kernel asks for in a number of steps, which takes width columns of the values from..to-1
// of a part: its share of what the part is to ask for.
func (t *lineTask) spread(part *blocksPart, from, to, column, width, steps int) prefetch {
	if len(part.values) == 0 {
		return prefetch{first: &mem.Bytes(t.keys)[0]}
	}
	size, all := len(part.values), (part.to-part.from)*t.Dim
	begin := size * ((from-part.from)*t.Dim + (to-from)*column) / all
	return prefetch{first: &part.values[begin], stride: size * (to - from) * width / (all * steps)}
}
