package tokenizer

import (
	"encoding/binary"
	"errors"
	"slices"
	"unicode/utf8"
)

// Bounds of an automaton: states, and work to build it. Patterns in use need 40 states and 10,000 steps.
const (
	maxStates = 1 << 12
	maxWork   = 1 << 21
)

// maxScan bounds how often a character is read while all matches in a text are found.
const maxScan = 256

// automaton finds, from a position, the match that a backtracking matcher would find: of the alternatives
// that match, the first. A state is the list of places in the program where a backtracking matcher could
// be, in the order in which it would try them; a match ends the list, since what comes after it would
// not be tried. Whether a place goes on depends on the next character or on the end of the text, so a
// match is known one character late.
type automaton struct {
	ascii  [utf8.RuneSelf]uint8
	pages  []uint16 // by character / 256: an index to blocks
	blocks [][256]uint8
	end    int // class of the end of the text
	stride int // classes
	next   []int32
}

// An entry of next is the state times two, plus one when a match ends before the character. State 0 is dead.

func newAutomaton(program []instruction, start int32) (*automaton, error) {
	a := &automaton{}
	sample, err := a.classify(program)
	if err != nil {
		return nil, err
	}
	work, round := 0, 0
	states := map[string]int32{"": 0}
	lists := [][]int32{nil, {start}}
	key := func(list []int32) string {
		out := make([]byte, 0, 4*len(list))
		for _, pc := range list {
			out = binary.LittleEndian.AppendUint32(out, uint32(pc))
		}
		return string(out)
	}
	states[key(lists[1])] = 1
	seen, listed := make([]int, len(program)), make([]int, len(program)) // in which round
	a.next = make([]int32, a.stride)                                     // dead stays dead
	for state := 1; state < len(lists); state++ {
		for class := range a.stride {
			var list []int32
			matched := false
			round++
			stack := make([]int32, 0, 16)
			for i := len(lists[state]) - 1; i >= 0; i-- {
				stack = append(stack, lists[state][i])
			}
			for len(stack) > 0 && !matched {
				pc := stack[len(stack)-1]
				stack = stack[:len(stack)-1]
				if work++; seen[pc] == round {
					continue
				}
				seen[pc] = round
				i := &program[pc]
				fits := func(chars set) bool { return class != a.end && chars.has(sample[class]) }
				switch i.op {
				case opMatch:
					matched = true
				case opSplit:
					stack = append(stack, i.y, i.x)
				case opLook:
					if fits(i.look.set) || class == a.end && i.look.end {
						stack = append(stack, i.x)
					}
				case opChar:
					if listed[i.x] != round && fits(i.set) {
						listed[i.x] = round
						list = append(list, i.x)
					}
				}
			}
			if work > maxWork {
				return nil, errors.New("it is too complex")
			}
			k := key(list)
			to, ok := states[k]
			if !ok {
				if to = int32(len(lists)); to == maxStates {
					return nil, errors.New("it is too complex")
				}
				states[k] = to
				lists = append(lists, list)
			}
			if to *= 2; matched {
				to++
			}
			a.next = append(a.next, to)
		}
	}
	return a, nil
}

// classify numbers the classes of characters that the program tells apart; sample has one of each.
func (a *automaton) classify(program []instruction) (sample []rune, err error) {
	// Where a span begins or ends, membership may change.
	cuts := []rune{0, utf8.MaxRune + 1}
	var sets []set
	known := map[*span]bool{} // a loop that was written out has the same set many times
	for _, i := range program {
		for _, chars := range []set{i.set, i.look.set} {
			if len(chars) == 0 || known[&chars[0]] {
				continue
			}
			if known[&chars[0]] = true; slices.ContainsFunc(sets, func(other set) bool { return slices.Equal(other, chars) }) {
				continue
			}
			if len(sets) == 1024 {
				return nil, errors.New("it is too complex")
			}
			sets = append(sets, chars)
			for _, run := range chars {
				cuts = append(cuts, run.lo, run.hi+1)
			}
		}
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	if len(cuts)*len(sets) > maxWork {
		return nil, errors.New("it is too complex")
	}
	classes := map[string]uint8{}
	of := make([]uint8, len(cuts)-1)
	at := make([]int, len(sets)) // the first span of each set that does not end before the cut
	for i, lo := range cuts[:len(cuts)-1] {
		signature := make([]byte, (len(sets)+7)/8)
		for j, chars := range sets {
			for at[j] < len(chars) && chars[at[j]].hi < lo {
				at[j]++
			}
			if at[j] < len(chars) && chars[at[j]].lo <= lo {
				signature[j/8] |= 1 << (j % 8)
			}
		}
		class, ok := classes[string(signature)]
		if !ok {
			if len(classes) == 255 {
				return nil, errors.New("it is too complex")
			}
			class = uint8(len(classes))
			classes[string(signature)] = class
			sample = append(sample, lo)
		}
		of[i] = class
	}
	blocks := map[[256]uint8]uint16{}
	uniform := map[uint8]uint16{} // blocks of one class, which most are
	i := 0                        // the cut before r
	for page := rune(0); page <= utf8.MaxRune; page += 256 {
		if cuts[i+1] >= page+256 {
			if block, ok := uniform[of[i]]; ok {
				a.pages = append(a.pages, block)
				if cuts[i+1] == page+256 {
					i++
				}
				continue
			}
		}
		var block [256]uint8
		same := true
		for char := page; char < page+256; char++ {
			if cuts[i+1] == char {
				i++
			}
			block[char-page] = of[i]
			same = same && of[i] == block[0]
		}
		number, ok := blocks[block]
		if !ok {
			number = uint16(len(a.blocks))
			blocks[block] = number
			a.blocks = append(a.blocks, block)
		}
		if same {
			uniform[block[0]] = number
		}
		a.pages = append(a.pages, number)
		if i+1 < len(cuts)-1 && cuts[i+1] == page+256 {
			i++
		}
	}
	for char := range rune(utf8.RuneSelf) {
		a.ascii[char] = a.blocks[a.pages[0]][char]
	}
	a.end = len(sample)
	a.stride = len(sample) + 1
	return sample, nil
}

// match returns the end of the match that begins at text[at], or -1, and how far it read.
func (a *automaton) match(text string, at int) (end, read int) {
	end = -1
	state := int32(1)
	for i := at; ; {
		class, size := a.end, 1
		if i < len(text) {
			class, size = a.class(text[i:])
		}
		next := a.next[int(state)*a.stride+class]
		if next&1 != 0 {
			end = i
		}
		if state = next >> 1; state == 0 || i >= len(text) {
			return end, i
		}
		i += size
	}
}

func (a *automaton) class(text string) (class, size int) {
	if text[0] < utf8.RuneSelf {
		return int(a.ascii[text[0]]), 1
	}
	char, size := utf8.DecodeRuneInString(text)
	return int(a.blocks[a.pages[char>>8]][char&0xff]), size
}

// matches finds the matches in text from left to right and gives the bytes from and to of each. A
// text on which they would take more than linear time is an error.
//
// Where nothing begins, the next position is tried, which a pattern like \s+$ makes quadratic in the length of
// a run. So the states of an attempt that read far and failed are kept: a later attempt that comes
// to the same state at the same place fails as well.
func (a *automaton) matches(text string, yield func(from, to int)) error {
	var trail []int32 // states of the last failed attempt before the characters from trailAt on
	trailAt, work := 0, 0
	for at := 0; at < len(text); {
		if work > maxScan*(len(text)+1024) {
			return errors.New("the splitting pattern takes more than linear time on this text")
		}
		var end, read int
		if at < trailAt+len(trail) {
			end, read = a.retrace(text, at, trail[at-trailAt:])
		} else {
			end, read = a.match(text, at)
			if end < 0 && read > at+32 {
				trail, trailAt = slices.Grow(trail[:0], read-at+1)[:read-at+1], at
				clear(trail)
				a.retrace(text, at, trail)
			}
		}
		work += read - at
		if end < 0 {
			_, size := utf8.DecodeRuneInString(text[at:])
			at += size
			continue
		}
		yield(at, end)
		at = end
	}
	return nil
}

// retrace is match that gives up, or stops with what it has, where trail has the state it is in, and
// writes its states to trail when it fails.
func (a *automaton) retrace(text string, at int, trail []int32) (end, read int) {
	end = -1
	state := int32(1)
	for i := at; ; {
		if i-at < len(trail) {
			if trail[i-at] == state {
				return end, i
			}
			trail[i-at] = state
		}
		class, size := a.end, 1
		if i < len(text) {
			class, size = a.class(text[i:])
		}
		next := a.next[int(state)*a.stride+class]
		if next&1 != 0 {
			end = i
		}
		if state = next >> 1; state == 0 || i >= len(text) {
			return end, i
		}
		i += size
	}
}
