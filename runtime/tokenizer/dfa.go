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
// that match, the first. It is a deterministic automaton, made by subset construction. A state is the list of
// instructions where a backtracking matcher could be, in the order in which it would try them; a match ends the list,
// since what comes after it would not be tried. Whether an instruction goes on depends on the next character or on the
// end of the text, so a match is known one character late.
//
// Characters that no set of the program tells apart are one class, so that a state has a row of some twenty entries.
type automaton struct {
	ascii  [utf8.RuneSelf]uint8 // class by character
	pages  []uint16             // by character / 256: an index to blocks
	blocks [][256]uint8         // class by character % 256
	end    int                  // class of the end of the text
	stride int                  // number of classes
	// next is by state and class: the state that follows times two, plus one when a match ends before the character.
	// No match goes on from state 0, and one begins in state 1.
	next []int32
}

// errComplex is the error of patterns beyond the bounds, which exist so that no tokenizer.json takes long to read.
var errComplex = errors.New("it is too complex")

// newAutomaton makes the automaton of a program that begins at start.
func newAutomaton(program []instruction, start int32) (*automaton, error) {
	out := &automaton{}
	// the subset construction, breadth first: a state is the ordered list of instructions it stands
	// for
	sample, err := out.classify(program)
	if err != nil {
		return nil, err
	}
	states := &subsets{
		program: program, sample: sample, numbers: map[string]int32{},
		seen: make([]int, len(program)), listed: make([]int, len(program)),
	}
	states.number(nil)
	states.number([]int32{start})
	out.next = make([]int32, out.stride) // state 0 stays 0
	for state := 1; state < len(states.lists); state++ {
		for class := range out.stride {
			list, matched := states.follow(states.lists[state], class)
			to := 2 * states.number(list)
			if matched {
				to++
			}
			if states.work > maxWork || len(states.lists) > maxStates {
				return nil, errComplex
			}
			out.next = append(out.next, to)
		}
	}
	return out, nil
}

// subsets are the states of an automaton while it is made.
type subsets struct {
	program      []instruction
	sample       []rune // a character of each class
	numbers      map[string]int32
	lists        [][]int32 // instructions by state
	seen, listed []int     // by instruction: the last round in which it was met, and put into a list
	round, work  int
}

// number returns the state of a list.
func (s *subsets) number(list []int32) int32 {
	key := make([]byte, 0, 4*len(list))
	for _, at := range list {
		key = binary.LittleEndian.AppendUint32(key, uint32(at))
	}
	state, ok := s.numbers[string(key)]
	if !ok {
		state = int32(len(s.lists))
		s.numbers[string(key)] = state
		s.lists = append(s.lists, list)
	}
	return state
}

// follow returns where a matcher at one of the instructions of from can be after a character of the class, and whether
// it has matched before that character.
func (s *subsets) follow(from []int32, class int) (list []int32, matched bool) {
	s.round++
	fits := func(chars set) bool { return class < len(s.sample) && chars.has(s.sample[class]) }
	stack := slices.Clone(from) // the next one last
	slices.Reverse(stack)
	for len(stack) > 0 {
		at := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		s.work++
		if s.seen[at] == s.round {
			continue
		}
		s.seen[at] = s.round
		// instructions in order of preference; after a match those of less preference do not count
		switch step := &s.program[at]; step.op {
		case opMatch:
			return list, true
		case opSplit:
			stack = append(stack, step.y, step.x)
		case opLook:
			if fits(step.look.set) || class == len(s.sample) && step.look.end {
				stack = append(stack, step.x)
			}
		case opChar:
			if s.listed[step.x] != s.round && fits(step.set) {
				s.listed[step.x] = s.round
				list = append(list, step.x)
			}
		}
	}
	return list, false
}

// classify numbers the classes of characters that the program tells apart; sample has one of each.
func (a *automaton) classify(program []instruction) (sample []rune, err error) {
	sets, cuts, err := boundaries(program)
	if err != nil {
		return nil, err
	}
	// two characters are of one class when they are in the same sets
	classes := map[string]uint8{}
	classOf := make([]uint8, len(cuts)-1)
	next := make([]int, len(sets)) // the first span of each set that does not end before the cut
	for i, low := range cuts[:len(cuts)-1] {
		signature := make([]byte, (len(sets)+7)/8) // a bit for each set that has the characters
		for j, chars := range sets {
			for next[j] < len(chars) && chars[next[j]].hi < low {
				next[j]++
			}
			if next[j] < len(chars) && chars[next[j]].lo <= low {
				signature[j/8] |= 1 << (j % 8)
			}
		}
		class, ok := classes[string(signature)]
		if !ok {
			if len(classes) == 255 {
				return nil, errComplex
			}
			class = uint8(len(classes))
			classes[string(signature)] = class
			sample = append(sample, low)
		}
		classOf[i] = class
	}
	a.fillPages(cuts, classOf)
	a.end, a.stride = len(sample), len(sample)+1
	return sample, nil
}

// boundaries returns the different sets of a program, and in order all characters where membership may change:
// the first of a span, and the first after one.
func boundaries(program []instruction) (sets []set, cuts []rune, err error) {
	cuts = []rune{0, utf8.MaxRune + 1}
	known := map[*span]bool{} // a loop that was written out has the same set many times
	for _, i := range program {
		for _, chars := range []set{i.set, i.look.set} {
			if len(chars) == 0 || known[&chars[0]] {
				continue
			}
			known[&chars[0]] = true
			if slices.ContainsFunc(sets, func(other set) bool { return slices.Equal(other, chars) }) {
				continue
			}
			if len(sets) == 1024 {
				return nil, nil, errComplex
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
		return nil, nil, errComplex
	}
	return sets, cuts, nil
}

// fillPages writes the class of each character; classOf is by interval between cuts. Equal blocks are stored once.
func (a *automaton) fillPages(cuts []rune, classOf []uint8) {
	blocks := map[[256]uint8]uint16{}
	uniform := map[uint8]uint16{} // blocks of one class, which most are
	interval := 0
	// a table of two levels: the block of a page of 256 characters, and the class in it
	for page := rune(0); page <= utf8.MaxRune; page += 256 {
		for cuts[interval+1] <= page {
			interval++
		}
		first, whole := classOf[interval], cuts[interval+1] >= page+256
		if number, ok := uniform[first]; ok && whole {
			a.pages = append(a.pages, number)
			continue
		}
		var block [256]uint8
		for char := page; char < page+256; char++ {
			if cuts[interval+1] == char {
				interval++
			}
			block[char-page] = classOf[interval]
		}
		number, ok := blocks[block]
		if !ok {
			number = uint16(len(a.blocks))
			blocks[block] = number
			a.blocks = append(a.blocks, block)
		}
		if whole {
			uniform[first] = number
		}
		a.pages = append(a.pages, number)
	}
	copy(a.ascii[:], a.blocks[a.pages[0]][:])
}

// class returns the class of the first character of a text, and its length in bytes.
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
		// inside the kept trail: stop where it shows that the attempt fails
		if at < trailAt+len(trail) {
			end, read = a.match(text, at, trail[at-trailAt:])
		} else {
			end, read = a.match(text, at, nil)
			if end < 0 && read > at+32 {
				trail, trailAt = slices.Grow(trail[:0], read-at+1)[:read-at+1], at
				clear(trail)
				a.match(text, at, trail)
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

// match returns the end of the match that begins at text[at], or -1, and how far it read. It stops with what it has
// where trail already has the state it is in, and otherwise writes its states there.
func (a *automaton) match(text string, at int, trail []int32) (end, read int) {
	end = -1
	state := int32(1)
	for i := at; ; {
		if i-at < len(trail) {
			if trail[i-at] == state {
				return end, i
			}
			trail[i-at] = state
		}
		// behind the text is a class of its own, for conditions at the end
		class, size := a.end, 1
		if i < len(text) {
			class, size = a.class(text[i:])
		}
		// the lowest bit says that the state matched before this character
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
