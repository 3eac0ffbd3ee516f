package kernel

import "github.com/hetc/hetc/internal/mem"

// The kernels of few lines take keys in groups of keyGroup, and at most mostFewLines lines. Of float32 more than
// mostKeyLines lines stand side by side in vectors, and else keys do.
const (
	keyGroup     = 8
	wideGroups   = 4 // of those that kernels of 512 bits take at a time
	mostFewLines = 8
	mostKeyLines = 6

	mostNarrowLines = 12 // that the kernel of 16 columns of float32 values takes, also of many lines
)

// Few lines read a part of the cache, keys or values, in order. For kernels of 256 bits what is about farAhead bytes
// ahead in the same part is prefetched into the second-level cache, and what is nearAhead bytes ahead into the first.
const (
	farAhead  = 16 << 10
	nearAhead = 8 << 10
)

// onceAhead is how far ahead kernels of 512 bits prefetch, once, into the first-level cache: about as many bytes as a
// core keeps track of, fewer on Zen 4. It is twice as far where values pass several times for some of their columns.
func onceAhead() int {
	if zen4 {
		return 4 << 10
	}
	return 8 << 10
}

// isFew reports whether a task takes keys as they are cached. bfloat16 keys are, by kernels of pairs only. With 256 bits
// 8-bit keys take so many instructions that tiles of them are as fast for fewer than four lines.
func (t *lineTask) isFew() bool {
	if t.from.pairs {
		return t.width == tileKeys
	}
	if t.from.codes {
		return t.width == tileKeys && t.context() >= keyBlock // whole blocks only
	}
	least := 1
	if t.from.k8 != nil && !t.tier.wide() {
		least = 4
	}
	return t.width == tileKeys && !t.from.brain && least <= t.lines && t.lines <= mostFewLines && t.Dim%keyGroup == 0 &&
		t.context() >= keyGroup
}

// eight reports whether lines stand side by side in vectors of eight, those beyond the last one with any content.
func (t *lineTask) eight() bool { return t.lines > mostKeyLines && t.from.k32 != nil }

// turned reports whether the kernels of few lines take queries as columns, of eight lines.
func (t *lineTask) turned() bool { return t.few && (t.tier.wide() || t.eight()) }

// Parts of lineTask.keys, which few lines do not need for tiles: scores of a group of keys, and queries as columns.
const ownScores = 0

// ownQueries is where columns of queries begin.
func (t *lineTask) ownQueries() int {
	if t.from.pairs {
		return ownScores + mostFewLines*wideKeys
	}
	return ownScores + mostFewLines*keyGroup
}

// turnQueries makes the queries of eight lines columns of [Dim][tileKeys].
func (t *lineTask) turnQueries() {
	columns, depth := t.keys[t.ownQueries():], t.depth
	if t.from.codes {
		columns = t.code.columns
	}
	keysF32x16(&columns[0], &t.queries[:mostFewLines*depth][0], 4*depth, depth)
}

// wideKeys is the number of positions that kernels of 512 bits take at a time.
const wideKeys = wideGroups * keyGroup

// lookAhead is how far ahead few lines prefetch.
type lookAhead struct {
	row  int // bytes of a key or a value
	rows int // at most a block
	once bool
	// last is the position from which on what is rows ahead is the caller's next part instead of the task's, of which
	// less than wideKeys positions are left out.
	last int
}

func (t *lineTask) newLookAhead() lookAhead {
	row, _ := t.from.bytes(0, 1, t.Dim)
	out := lookAhead{row: len(row)}
	// Keys pass wideKeys at a time, side by side.
	const up = wideKeys - 1
	out.once = t.tier.wide()
	switch {
	case !out.once:
		out.rows = (farAhead/out.row + up) &^ up
	case t.from.pairs || t.passOnce():
		out.rows = (onceAhead()/out.row + up) &^ up
	default:
		out.rows = max(wideKeys, 2*onceAhead()/out.row&^up)
	}
	out.rows = min(keyBlock, out.rows)
	out.last = (t.context() - out.rows) &^ (wideKeys - 1)
	return out
}

// passOnce reports whether a kernel of 512 bits takes all columns of values.
func (t *lineTask) passOnce() bool { return wideColumns(t.lines, t.Dim) == t.Dim }

// oneAhead is the end of the first part of the positions from..to for which what is ahead is one piece of memory.
func (a *lookAhead) oneAhead(from, to int) int {
	if from < a.last {
		return min(to, a.last)
	}
	return to
}

// far is what is far ahead of the keys and values from..to, see oneAhead: behind the last of them what the caller reads
// next.
func (t *lineTask) far(from, to int) (k, v []byte) {
	a := &t.lookAhead
	if from < a.last {
		return t.stored(from+a.rows, min(to+a.rows, t.context()))
	}
	first, end := (from-a.last)*a.row, (to-a.last)*a.row
	if end > min(len(t.NextKeys), len(t.NextValues)) {
		return nil, nil
	}
	return t.NextKeys[first:end], t.NextValues[first:end]
}

// toNear is the distance from what is prefetched far ahead to what is nearAhead bytes ahead of current, 0 where nothing
// is to be prefetched, or only what is far ahead.
func (a *lookAhead) toNear(current, far []byte) int {
	if len(far) == 0 || a.once {
		return 0
	}
	return nearAhead + int(mem.Address(current)-mem.Address(far))
}

// scoreFew computes the scores of all lines for the positions of a block that one of them attends to.
func (t *lineTask) scoreFew(pos, count int) {
	from, _ := t.span(0, pos, count)
	_, to := t.span(t.M-1, pos, count)
	from &^= keyGroup - 1
	if from >= to {
		return
	}
	whole := to - (to-from)%keyGroup
	for at := from; at < whole; {
		end := t.oneAhead(pos+at, pos+whole) - pos
		far, _ := t.far(pos+at, pos+end)
		t.scoreGroups(t.scores[at:], keyBlock, pos+at, (end-at)/keyGroup, far)
		at = end
	}
	// What is left is less than a group. The group that ends with it is computed whole, and its last scores are taken.
	if rest := (to - from) % keyGroup; rest > 0 {
		own := t.keys[ownScores:][:mostFewLines*keyGroup]
		t.scoreGroups(own, keyGroup, pos+to-keyGroup, 1, nil)
		for line := range t.lines {
			copy(t.scores[line*keyBlock+to-rest:line*keyBlock+to], own[(line+1)*keyGroup-rest:])
		}
	}
}

// scoreGroups computes the scores of all lines for groups of keys from pos on, ld elements apart for each line.
func (t *lineTask) scoreGroups(scores []float32, ld, pos, groups int, far []byte) {
	current, _ := t.from.bytes(pos, pos+groups*keyGroup, t.Dim)
	near := t.toNear(current, far)
	if wide := groups / wideGroups; t.tier.wide() && wide > 0 && (t.from.k8 == nil || t.Dim%vecN == 0) {
		t.scoreWide(scores, ld, pos, wide, far)
		done := wide * wideKeys
		if groups -= wide * wideGroups; groups == 0 {
			return
		}
		scores, pos, far, near = scores[done:], pos+done, nil, 0
	}
	steps := groups * t.Dim / 8 // of the kernel, each of which prefetches once
	if t.from.k32 != nil {
		steps *= 2
	}
	if t.eight() {
		steps *= 2
	}
	first, stride := t.ahead(far, 0, 1, 1, steps)
	s, q, ldq, next := &scores[0], &t.queries[0], 4*t.Dim, &first[0]
	switch {
	case t.eight():
		keys := t.from.k32[pos*t.Dim : (pos+groups*keyGroup)*t.Dim]
		scoresEight256(groups*keyGroup, s, 4*ld, &t.keys[t.ownQueries()], &keys[0], t.Dim, next, near, stride)
	case t.from.k8 != nil:
		pitch := t.Dim + cachedScale
		keys := t.from.k8[pos*pitch : (pos+groups*keyGroup)*pitch]
		scoresFewQ8(t.lines, s, 4*ld, q, ldq, &keys[0], pitch, t.Dim, groups, next, near, stride)
	case t.from.k16 != nil:
		keys := t.from.k16[pos*t.Dim : (pos+groups*keyGroup)*t.Dim]
		scoresFewF16(t.lines, s, 4*ld, q, ldq, &keys[0], 2*t.Dim, t.Dim, groups, next, near, stride)
	default:
		keys := t.from.k32[pos*t.Dim : (pos+groups*keyGroup)*t.Dim]
		scoresFewF32(t.lines, s, 4*ld, q, ldq, &keys[0], 4*t.Dim, t.Dim, groups, next, near, stride)
	}
}

// scoreWide is scoreGroups with 512 bits, for turns of wideKeys keys.
func (t *lineTask) scoreWide(scores []float32, ld, pos, turns int, far []byte) {
	numbers := t.row // bytes of the numbers of a key
	if t.from.k8 != nil {
		numbers -= cachedScale
	}
	first, stride := t.ahead(far, 0, 1, 1, turns*numbers/4) // for 16 bytes of all keys a kernel asks four times
	s, q, end, next := &scores[0], &t.keys[t.ownQueries()], pos+turns*wideKeys, &first[0]
	switch {
	case t.from.codes:
		pitch := t.Dim + cachedScale
		keys := t.from.k8[pos*pitch : end*pitch]
		scoresWideCodes(t.lines, s, 4*ld, &t.code.columns[0], &keys[0], pitch, t.depth, turns, &t.code.starts[0], next, stride)
	case t.from.pairs:
		keys := t.from.k16[pos*t.Dim : end*t.Dim]
		scoresWideBF16(t.lines, s, 4*ld, q, &keys[0], 2*t.Dim, t.depth, turns, next, stride)
	case t.from.k8 != nil:
		pitch := t.Dim + cachedScale
		keys := t.from.k8[pos*pitch : end*pitch]
		scoresWideQ8(t.lines, s, 4*ld, q, &keys[0], pitch, t.Dim, turns, next, stride)
	case t.from.k16 != nil:
		keys := t.from.k16[pos*t.Dim : end*t.Dim]
		scoresWideF16(t.lines, s, 4*ld, q, &keys[0], 2*t.Dim, t.Dim, turns, next, stride)
	default:
		keys := t.from.k32[pos*t.Dim : end*t.Dim]
		scoresWideF32(t.lines, s, 4*ld, q, &keys[0], 4*t.Dim, t.Dim, turns, next, stride)
	}
}

// wideColumns is how many of left columns a kernel of 512 bits takes for n lines; fewer than a vector are left to one
// of 256.
func wideColumns(n, left int) int {
	switch {
	case left >= 64 && n <= 6:
		return 64
	case left >= 32:
		return 32
	case left >= 16:
		return 16
	}
	return left
}

// weightedLines are the weights of k values, or pairs of them, in each of some lines, and the sums to which the weighted
// values are added. ldx and ldy are their strides in bytes.
type weightedLines struct {
	lines, k      int
	weights, sums *float32
	ldx, ldy      int
}

// prefetch is where a kernel of few lines begins to prefetch, how far behind that it does so once more, and by how many
// bytes it moves on.
type prefetch struct {
	first        *byte
	near, stride int
}

// addWide is add with 512 bits, for 16, 32 or 64 columns.
func (l weightedLines) addWide(width int, values valueRows, column int, ahead prefetch) {
	n, k, x, y, ldx, ldy := l.lines, l.k, l.weights, l.sums, l.ldx, l.ldy
	first, stride := ahead.first, ahead.stride
	if values.pairs != nil {
		v, ldv := &values.pairs[column], 2*values.ld
		switch width {
		case 64:
			valuesWideBF16x64(n, y, ldy, x, ldx, k, v, ldv, first, stride)
		case 32:
			valuesWideBF16x32(n, y, ldy, x, ldx, k, v, ldv, first, stride)
		default:
			valuesWideBF16x16(n, y, ldy, x, ldx, k, v, ldv, first, stride)
		}
		return
	}
	if values.codes != nil {
		v, ldv, scale := &values.codes[column], values.ld, values.ld-cachedScale-column
		switch width {
		case 64:
			valuesWideQ8x64(n, y, ldy, x, ldx, k, v, ldv, scale, first, stride)
		case 32:
			valuesWideQ8x32(n, y, ldy, x, ldx, k, v, ldv, scale, first, stride)
		default:
			valuesWideQ8x16(n, y, ldy, x, ldx, k, v, ldv, scale, first, stride)
		}
		return
	}
	if values.half != nil {
		v, ldv := &values.half[column], 2*values.ld
		switch width {
		case 64:
			valuesWideF16x64(n, y, ldy, x, ldx, k, v, ldv, first, stride)
		case 32:
			valuesWideF16x32(n, y, ldy, x, ldx, k, v, ldv, first, stride)
		default:
			valuesWideF16x16(n, y, ldy, x, ldx, k, v, ldv, first, stride)
		}
		return
	}
	v, ldv := &values.wide[column], 4*values.ld
	switch width {
	case 64:
		valuesWideF32x64(n, y, ldy, x, ldx, k, v, ldv, first, stride)
	case 32:
		valuesWideF32x32(n, y, ldy, x, ldx, k, v, ldv, first, stride)
	default:
		valuesWideF32x16(n, y, ldy, x, ldx, k, v, ldv, first, stride)
	}
}

// add calls the kernel of few lines for width columns of values, float32 or float16, from column on.
func (l weightedLines) add(width int, values valueRows, column int, ahead prefetch) {
	n, k, x, y, ldx, ldy := l.lines, l.k, l.weights, l.sums, l.ldx, l.ldy
	first, near, stride := ahead.first, ahead.near, ahead.stride
	if values.half != nil {
		v, ldv := &values.half[column], 2*values.ld
		switch width {
		case 64:
			valuesFewF16x64(n, y, ldy, x, ldx, k, v, ldv, first, near, stride)
		case 32:
			valuesFewF16x32(n, y, ldy, x, ldx, k, v, ldv, first, near, stride)
		case 24:
			valuesFewF16x24(n, y, ldy, x, ldx, k, v, ldv, first, near, stride)
		case 16:
			valuesFewF16(n, y, ldy, x, ldx, k, v, ldv, first, near, stride)
		default:
			valuesFewF16x8(n, y, ldy, x, ldx, k, v, ldv, first, near, stride)
		}
		return
	}
	v, ldv := &values.wide[column], 4*values.ld
	switch width {
	case 64:
		valuesFewF32x64(n, y, ldy, x, ldx, k, v, ldv, first, near, stride)
	case 32:
		valuesFewF32x32(n, y, ldy, x, ldx, k, v, ldv, first, near, stride)
	case 24:
		valuesFewF32x24(n, y, ldy, x, ldx, k, v, ldv, first, near, stride)
	case 16:
		valuesFewF32(n, y, ldy, x, ldx, k, v, ldv, first, near, stride)
	default:
		valuesFewF32x8(n, y, ldy, x, ldx, k, v, ldv, first, near, stride)
	}
}
