package tokenizer

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The patterns of tokenizers are written for Oniguruma, which tries alternatives in order and backtracks.
// They are compiled here to an automaton that finds the same matches in one pass (see dfa.go). The one
// thing in them that is not regular is looking at the next character, and a condition on the next
// character is something an automaton can decide when it reads that character. Possessive loops over
// single characters are such conditions too: X++ is X+(?!X).
//
// Everything else is refused: what would need a look further ahead or behind, and what can match nothing.

// maxPattern bounds the length of a pattern in bytes, maxProgram the instructions it becomes.
const (
	maxPattern = 1 << 13
	maxProgram = 1 << 13
	maxNesting = 64
)

// node is a piece of a pattern.
type node any

type (
	nodeSet  struct{ set set }   // one character
	nodeNext struct{ next look } // nothing, if the next character fits
	nodeSeq  []node
	nodeAlt  []node
	nodeLoop struct {
		body     node
		min, max int // max -1: no bound
		lazy     bool
	}
)

// look is a condition on the next character: it is in set, or the text ends and end is true.
type look struct {
	set set
	end bool
}

type instruction struct {
	op   opcode
	set  set   // opChar
	look look  // opLook
	x, y int32 // where to go on, x preferred; opSplit only has y
}

type opcode uint8

const (
	opChar opcode = iota
	opLook
	opSplit
	opMatch
)

// compile translates a pattern.
func compile(pattern string) (*automaton, error) {
	if len(pattern) > maxPattern {
		return nil, fmt.Errorf("pattern of %d bytes, want at most %d", len(pattern), maxPattern)
	}
	p := &patternParser{in: pattern}
	n, err := p.alternatives(false)
	if err == nil && p.at < len(p.in) {
		err = p.fail("a group ends that was not begun")
	}
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", pattern, err)
	}
	if nullable(n) {
		return nil, fmt.Errorf("pattern %q: it can match no character at all, which is not supported", pattern)
	}
	c := &compiler{}
	start, err := c.add(n, c.emit(instruction{op: opMatch}))
	if err == nil {
		var a *automaton
		if a, err = newAutomaton(c.program, start); err == nil {
			return a, nil
		}
	}
	return nil, fmt.Errorf("pattern %q: %w", pattern, err)
}

// literal is the automaton of a text that stands for itself.
func literal(text string) (*automaton, error) {
	if text == "" {
		return nil, errors.New("an empty pattern is not supported")
	}
	if len(text) > maxPattern {
		return nil, fmt.Errorf("pattern of %d bytes, want at most %d", len(text), maxPattern)
	}
	var n nodeSeq
	for _, r := range text {
		n = append(n, nodeSet{set{{r, r}}})
	}
	c := &compiler{}
	start, err := c.add(n, c.emit(instruction{op: opMatch}))
	if err != nil {
		return nil, err
	}
	return newAutomaton(c.program, start)
}

func nullable(n node) bool {
	switch n := n.(type) {
	case nodeSet:
		return false
	case nodeSeq:
		return !slices.ContainsFunc(n, func(n node) bool { return !nullable(n) })
	case nodeAlt:
		return slices.ContainsFunc(n, nullable)
	case nodeLoop:
		return n.min == 0 || nullable(n.body)
	}
	return true
}

type compiler struct{ program []instruction }

func (c *compiler) emit(i instruction) int32 {
	c.program = append(c.program, i)
	return int32(len(c.program) - 1)
}

// add translates n so that it goes on at next, and returns where it begins.
func (c *compiler) add(n node, next int32) (int32, error) {
	if len(c.program) > maxProgram {
		return 0, fmt.Errorf("it is too long: more than %d states", maxProgram)
	}
	var err error
	switch n := n.(type) {
	case nodeSet:
		return c.emit(instruction{op: opChar, set: n.set, x: next}), nil
	case nodeNext:
		return c.emit(instruction{op: opLook, look: n.next, x: next}), nil
	case nodeSeq:
		for i := len(n) - 1; i >= 0 && err == nil; i-- {
			next, err = c.add(n[i], next)
		}
		return next, err
	case nodeAlt:
		out, err := c.add(n[len(n)-1], next)
		for i := len(n) - 2; i >= 0 && err == nil; i-- {
			var first int32
			first, err = c.add(n[i], next)
			out = c.emit(instruction{op: opSplit, x: first, y: out})
		}
		return out, err
	case nodeLoop:
		split := func(body, past int32) instruction {
			if n.lazy {
				body, past = past, body
			}
			return instruction{op: opSplit, x: body, y: past}
		}
		past := next
		if n.max < 0 {
			at := c.emit(instruction{op: opSplit})
			body, err := c.add(n.body, at)
			if err != nil {
				return 0, err
			}
			c.program[at] = split(body, past)
			next = at
		}
		for i := n.max; i > n.min && err == nil; i-- {
			var body int32
			if body, err = c.add(n.body, next); err == nil {
				next = c.emit(split(body, past))
			}
		}
		for i := 0; i < n.min && err == nil; i++ {
			next, err = c.add(n.body, next)
		}
		return next, err
	}
	panic(fmt.Sprintf("BUG: pattern node %T", n))
}

type patternParser struct {
	in    string
	at    int
	depth int
}

func (p *patternParser) fail(format string, args ...any) error {
	return fmt.Errorf("at byte %d: %s", p.at, fmt.Sprintf(format, args...))
}

func (p *patternParser) take(s string) bool {
	if strings.HasPrefix(p.in[p.at:], s) {
		p.at += len(s)
		return true
	}
	return false
}

// alternatives reads up to the end of the group or pattern. fold: letters stand for both cases.
func (p *patternParser) alternatives(fold bool) (node, error) {
	if p.depth++; p.depth > maxNesting {
		return nil, p.fail("more than %d groups in each other", maxNesting)
	}
	defer func() { p.depth-- }()
	// Further on it would reach across |, unlike in other dialects.
	fold = p.take("(?i)") || fold
	var out nodeAlt
	for {
		n, err := p.sequence(fold)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
		if !p.take("|") {
			break
		}
	}
	if len(out) == 1 {
		return out[0], nil
	}
	return out, nil
}

// folded are pairs of letters that one character stands for when case is ignored ("ß" is "ss").
var folded = []string{"ss", "st", "ff", "fi", "fl"}

func (p *patternParser) sequence(fold bool) (node, error) {
	out := nodeSeq{}
	var letters string // the literal just read, where case is ignored
	for p.at < len(p.in) && p.in[p.at] != '|' && p.in[p.at] != ')' {
		start := p.at
		n, err := p.piece(fold)
		if err != nil {
			return nil, err
		}
		if s := p.in[start:p.at]; fold && len(s) == 1 {
			letters += strings.ToLower(s)
			for _, pair := range folded {
				if strings.HasSuffix(letters, pair) {
					return nil, p.fail("%q without regard to case is not supported", pair)
				}
			}
		} else {
			letters = ""
		}
		out = append(out, n)
	}
	return out, nil
}

// piece reads one atom with what repeats it.
func (p *patternParser) piece(fold bool) (node, error) {
	n, err := p.atom(fold)
	for err == nil && p.at < len(p.in) {
		lo, hi := 0, -1
		braces := false
		switch c := p.in[p.at]; {
		case c == '*':
		case c == '+':
			lo = 1
		case c == '?':
			hi = 1
		case c == '{':
			if lo, hi, braces = p.braces(); !braces {
				return n, nil // a character like any other
			}
		default:
			return n, nil
		}
		if !braces {
			p.at++
		}
		if hi > 1000 || lo > 1000 || hi >= 0 && lo > hi {
			return nil, p.fail("repetition %d to %d, want at most 1000", lo, hi)
		}
		if nullable(n) && hi != 1 {
			return nil, p.fail("repeating what may match nothing is not supported")
		}
		switch {
		case p.take("?"):
			if braces && lo == hi {
				return nil, p.fail("a lazy {n} is not supported")
			}
			n = nodeLoop{n, lo, hi, true}
		case !braces && p.take("+"): // after braces, + is a loop around the loop
			n, err = p.possessive(n, lo, hi)
		default:
			n = nodeLoop{n, lo, hi, false}
		}
	}
	return n, err
}

// braces reads {n}, {n,}, {,m} or {n,m}.
func (p *patternParser) braces() (lo, hi int, ok bool) {
	body, _, found := strings.Cut(p.in[p.at+1:], "}")
	left, right, comma := strings.Cut(body, ",")
	number := func(s string, none int) int {
		if s == "" {
			return none
		}
		v, err := strconv.ParseUint(s, 10, 16)
		if err != nil {
			ok = false
		}
		return int(v)
	}
	ok = found && (left != "" || comma && right != "")
	lo, hi = number(left, 0), number(right, -1)
	if !comma {
		hi = lo
	}
	if ok {
		p.at += len(body) + 2
	}
	return lo, hi, ok
}

// possessive is a loop that gives nothing back: if it may stop early, no further character fits.
func (p *patternParser) possessive(n node, lo, hi int) (node, error) {
	one, ok := single(n)
	if !ok {
		return nil, p.fail("a loop that gives nothing back is supported for single characters only")
	}
	stop := nodeNext{look{one.negate(), true}}
	if hi < 0 {
		return nodeSeq{nodeLoop{n, lo, hi, false}, stop}, nil
	}
	if lo == hi {
		return nodeLoop{n, lo, hi, false}, nil
	}
	return nodeAlt{nodeLoop{n, hi, hi, false}, nodeSeq{nodeLoop{n, lo, hi - 1, false}, stop}}, nil
}

func (p *patternParser) atom(fold bool) (node, error) {
	switch c := p.in[p.at]; c {
	case '(':
		return p.group(fold)
	case '[':
		s, err := p.class(fold)
		return nodeSet{s}, err
	case '.':
		p.at++
		return nodeSet{set{{'\n', '\n'}}.negate()}, nil
	case '$': // before a line break too
		p.at++
		return nodeNext{look{set{{'\n', '\n'}}, true}}, nil
	case '^':
		return nil, p.fail("^ is not supported")
	case '*', '+', '?':
		return nil, p.fail("nothing to repeat")
	case '\\':
		if p.take(`\z`) {
			return nodeNext{look{nil, true}}, nil
		}
		s, single, err := p.escape("word")
		if err == nil && fold && single {
			s, err = p.bothCases(s)
		}
		return nodeSet{s}, err
	}
	r, n := utf8.DecodeRuneInString(p.in[p.at:])
	p.at += n
	s := set{{r, r}}
	if fold {
		var err error
		s, err = p.bothCases(s)
		return nodeSet{s}, err
	}
	return nodeSet{s}, nil
}

func (p *patternParser) group(fold bool) (node, error) {
	start := p.at
	kind := "("
	for _, k := range []string{"(?:", "(?i:", "(?-i:", "(?=", "(?!", "(?>", "("} {
		if p.take(k) {
			kind = k
			break
		}
	}
	if kind == "(" && p.at < len(p.in) && p.in[p.at] == '?' {
		end := min(len(p.in), start+4)
		for !utf8.ValidString(p.in[start:end]) {
			end--
		}
		p.at = start
		return nil, p.fail("a group of kind %q is not supported", p.in[start:end])
	}
	n, err := p.alternatives((fold || kind == "(?i:") && kind != "(?-i:")
	if err != nil {
		return nil, err
	}
	if !p.take(")") {
		return nil, p.fail("a group has no end")
	}
	switch kind {
	case "(?=", "(?!":
		s, ok := single(n)
		if !ok {
			p.at = start
			return nil, p.fail("looking ahead is supported for one character only")
		}
		if kind == "(?!" {
			return nodeNext{look{s.negate(), true}}, nil
		}
		return nodeNext{look{s, false}}, nil
	case "(?>":
		if s, ok := single(n); ok {
			return nodeSet{s}, nil
		}
		if q, ok := n.(nodeSeq); ok && len(q) == 1 {
			if l, ok := q[0].(nodeLoop); ok && !l.lazy {
				if s, ok := single(l.body); ok {
					return p.possessive(nodeSet{s}, l.min, l.max)
				}
			}
		}
		p.at = start
		return nil, p.fail("a group that gives nothing back is supported for a loop over single characters only")
	}
	return n, nil
}

// single is the set of a node that matches one character.
func single(n node) (set, bool) {
	switch n := n.(type) {
	case nodeSet:
		return n.set, true
	case nodeSeq:
		if len(n) == 1 {
			return single(n[0])
		}
	case nodeAlt:
		var all set
		for _, a := range n {
			s, ok := single(a)
			if !ok {
				return nil, false
			}
			all = append(all, s...)
		}
		return all.normal(), true
	}
	return nil, false
}

// escape reads what \ begins: a class, or a single character. word is the name of the set of \w.
func (p *patternParser) escape(word string) (s set, single bool, err error) {
	p.at++
	if p.at == len(p.in) {
		return nil, false, p.fail("nothing after \\")
	}
	r, n := utf8.DecodeRuneInString(p.in[p.at:])
	p.at += n
	sets := unicodeTables().sets
	class := func(s set, negated bool) (set, bool, error) {
		if negated {
			s = s.negate()
		}
		return s, false, nil
	}
	one := func(r rune) (set, bool, error) { return set{{r, r}}, true, nil }
	switch r {
	case 's', 'S':
		return class(sets["space"], r == 'S')
	case 'd', 'D':
		return class(sets["Nd"], r == 'D')
	case 'w', 'W':
		return class(sets[word], r == 'W')
	case 'h', 'H':
		return class(set{{'0', '9'}, {'A', 'F'}, {'a', 'f'}}, r == 'H')
	case 'p', 'P':
		body, _, ok := strings.Cut(p.in[p.at:], "}")
		if !ok || !strings.HasPrefix(body, "{") {
			return nil, false, p.fail("want a name in braces after \\%c", r)
		}
		p.at += len(body) + 1
		name, not := strings.CutPrefix(body[1:], "^")
		s, ok := property(name)
		if !ok {
			return nil, false, p.fail("the property %q is not supported", name)
		}
		return class(s, not != (r == 'P'))
	case 'n':
		return one('\n')
	case 'r':
		return one('\r')
	case 't':
		return one('\t')
	case 'f':
		return one('\f')
	case 'v':
		return one('\v')
	case 'a':
		return one('\a')
	case 'e':
		return one(0x1b)
	case 'x', 'u':
		digits, size := p.in[p.at:], 2
		if r == 'u' {
			size = 4
		}
		if r == 'x' && strings.HasPrefix(digits, "{") {
			body, _, ok := strings.Cut(digits[1:], "}")
			if !ok {
				return nil, false, p.fail("\\x{ without }")
			}
			digits, size = body, len(body)
			p.at += 2
		}
		if len(digits) < size {
			return nil, false, p.fail("want %d digits after \\%c", size, r)
		}
		v, err := strconv.ParseUint(digits[:size], 16, 32)
		if err != nil || !utf8.ValidRune(rune(v)) || r == 'x' && size == 2 && v > 0x7f {
			return nil, false, p.fail("%q after \\%c is not a character", digits[:size], r)
		}
		p.at += size
		return one(rune(v))
	}
	if r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r)) {
		return nil, false, p.fail("\\%c is not supported", r)
	}
	return one(r)
}

// bothCases adds the other cases of the letters in s.
func (p *patternParser) bothCases(s set) (set, error) {
	out := slices.Clone(s)
	for _, x := range s {
		if x.hi >= utf8.RuneSelf {
			return nil, p.fail("%q without regard to case is not supported", x.hi)
		}
		for r := x.lo; r <= x.hi; r++ {
			for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
				out = append(out, span{f, f})
			}
		}
	}
	return out.normal(), nil
}

// class reads a class in brackets; classes may stand in each other, and && keeps what both sides have.
func (p *patternParser) class(fold bool) (set, error) {
	if p.depth++; p.depth > maxNesting {
		return nil, p.fail("more than %d classes in each other", maxNesting)
	}
	defer func() { p.depth-- }()
	p.at++
	negated := p.take("^")
	var all, part set
	intersect := false
	for first := true; ; first = false {
		if p.at == len(p.in) {
			return nil, p.fail("a class has no end")
		}
		if p.in[p.at] == ']' && !first {
			p.at++
			break
		}
		if p.take("&&") {
			all, intersect = meet(all, part, intersect), true
			part = nil
			continue
		}
		s, single, err := p.classItem(fold)
		if err != nil {
			return nil, err
		}
		// A hyphen between two single characters is a range, elsewhere itself.
		if rest := p.in[p.at:]; single && len(rest) > 1 && rest[0] == '-' && rest[1] != ']' && rest[1] != '[' {
			p.at++
			to, toSingle, err := p.classItem(fold)
			if err != nil {
				return nil, err
			}
			if !toSingle || to[0].lo < s[0].lo {
				return nil, p.fail("a range that has no end or ends before it begins is not supported")
			}
			s = set{{s[0].lo, to[0].lo}}
		}
		if fold {
			if s, err = p.bothCases(s); err != nil {
				return nil, err
			}
		}
		part = append(part, s...)
	}
	all = meet(all, part, intersect)
	if negated {
		all = all.negate()
	}
	if len(all) == 0 {
		return nil, p.fail("a class without characters is not supported")
	}
	return all, nil
}

// meet is part, or what it has in common with all.
func meet(all, part set, intersect bool) set {
	part = slices.Clone(part).normal()
	if intersect {
		return all.and(part)
	}
	return part
}

func (p *patternParser) classItem(fold bool) (s set, single bool, err error) {
	switch {
	case strings.HasPrefix(p.in[p.at:], "[:"):
		return nil, false, p.fail("[: :] is not supported")
	case p.in[p.at] == '[':
		s, err = p.class(fold)
		return s, false, err
	case p.in[p.at] == '\\':
		return p.escape("word in class")
	}
	r, n := utf8.DecodeRuneInString(p.in[p.at:])
	p.at += n
	return set{{r, r}}, true, nil
}
