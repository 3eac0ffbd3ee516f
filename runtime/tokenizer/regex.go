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
	parser := &patternParser{in: pattern}
	tree, err := parser.alternatives(false)
	if err == nil && parser.at < len(parser.in) {
		err = parser.fail("a group ends that was not begun")
	}
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", pattern, err)
	}
	if nullable(tree) {
		return nil, fmt.Errorf("pattern %q: it can match no character at all, which is not supported", pattern)
	}
	c := &compiler{}
	start, err := c.add(tree, c.emit(instruction{op: opMatch}))
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
	var chars nodeSeq
	for _, char := range text {
		chars = append(chars, nodeSet{set{{char, char}}})
	}
	c := &compiler{}
	start, err := c.add(chars, c.emit(instruction{op: opMatch}))
	if err != nil {
		return nil, err
	}
	return newAutomaton(c.program, start)
}

func nullable(tree node) bool {
	switch n := tree.(type) {
	case nodeSet:
		return false
	case nodeSeq:
		return !slices.ContainsFunc(n, func(part node) bool { return !nullable(part) })
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
func (c *compiler) add(tree node, next int32) (int32, error) {
	if len(c.program) > maxProgram {
		return 0, fmt.Errorf("it is too long: more than %d states", maxProgram)
	}
	var err error
	switch n := tree.(type) {
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
	panic(fmt.Sprintf("BUG: pattern node %T", tree))
}

type patternParser struct {
	in    string
	at    int
	depth int
}

func (p *patternParser) fail(format string, args ...any) error {
	return fmt.Errorf("at byte %d: %s", p.at, fmt.Sprintf(format, args...))
}

func (p *patternParser) take(text string) bool {
	if strings.HasPrefix(p.in[p.at:], text) {
		p.at += len(text)
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
		branch, err := p.sequence(fold)
		if err != nil {
			return nil, err
		}
		out = append(out, branch)
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
		atom, err := p.piece(fold)
		if err != nil {
			return nil, err
		}
		if source := p.in[start:p.at]; fold && len(source) == 1 {
			letters += strings.ToLower(source)
			for _, pair := range folded {
				if strings.HasSuffix(letters, pair) {
					return nil, p.fail("%q without regard to case is not supported", pair)
				}
			}
		} else {
			letters = ""
		}
		out = append(out, atom)
	}
	return out, nil
}

// piece reads one atom with what repeats it.
func (p *patternParser) piece(fold bool) (node, error) {
	tree, err := p.atom(fold)
	for err == nil && p.at < len(p.in) {
		lo, hi := 0, -1
		braces := false
		switch char := p.in[p.at]; {
		case char == '*':
		case char == '+':
			lo = 1
		case char == '?':
			hi = 1
		case char == '{':
			if lo, hi, braces = p.braces(); !braces {
				return tree, nil // a character like any other
			}
		default:
			return tree, nil
		}
		if !braces {
			p.at++
		}
		if hi > 1000 || lo > 1000 || hi >= 0 && lo > hi {
			return nil, p.fail("repetition %d to %d, want at most 1000", lo, hi)
		}
		if nullable(tree) && hi != 1 {
			return nil, p.fail("repeating what may match nothing is not supported")
		}
		switch {
		case p.take("?"):
			if braces && lo == hi {
				return nil, p.fail("a lazy {n} is not supported")
			}
			tree = nodeLoop{tree, lo, hi, true}
		case !braces && p.take("+"): // after braces, + is a loop around the loop
			tree, err = p.possessive(tree, lo, hi)
		default:
			tree = nodeLoop{tree, lo, hi, false}
		}
	}
	return tree, err
}

// braces reads {n}, {n,}, {,m} or {n,m}.
func (p *patternParser) braces() (lo, hi int, ok bool) {
	body, _, found := strings.Cut(p.in[p.at+1:], "}")
	left, right, comma := strings.Cut(body, ",")
	number := func(digits string, none int) int {
		if digits == "" {
			return none
		}
		value, err := strconv.ParseUint(digits, 10, 16)
		if err != nil {
			ok = false
		}
		return int(value)
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
func (p *patternParser) possessive(body node, lo, hi int) (node, error) {
	one, ok := single(body)
	if !ok {
		return nil, p.fail("a loop that gives nothing back is supported for single characters only")
	}
	stop := nodeNext{look{one.negate(), true}}
	if hi < 0 {
		return nodeSeq{nodeLoop{body, lo, hi, false}, stop}, nil
	}
	if lo == hi {
		return nodeLoop{body, lo, hi, false}, nil
	}
	return nodeAlt{nodeLoop{body, hi, hi, false}, nodeSeq{nodeLoop{body, lo, hi - 1, false}, stop}}, nil
}

func (p *patternParser) atom(fold bool) (node, error) {
	switch char := p.in[p.at]; char {
	case '(':
		return p.group(fold)
	case '[':
		chars, err := p.class(fold)
		return nodeSet{chars}, err
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
		chars, single, err := p.escape("word")
		if err == nil && fold && single {
			chars, err = p.bothCases(chars)
		}
		return nodeSet{chars}, err
	}
	char, width := utf8.DecodeRuneInString(p.in[p.at:])
	p.at += width
	chars := set{{char, char}}
	if fold {
		var err error
		chars, err = p.bothCases(chars)
		return nodeSet{chars}, err
	}
	return nodeSet{chars}, nil
}

func (p *patternParser) group(fold bool) (node, error) {
	start := p.at
	kind := "("
	for _, prefix := range []string{"(?:", "(?i:", "(?-i:", "(?=", "(?!", "(?>", "("} {
		if p.take(prefix) {
			kind = prefix
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
	body, err := p.alternatives((fold || kind == "(?i:") && kind != "(?-i:")
	if err != nil {
		return nil, err
	}
	if !p.take(")") {
		return nil, p.fail("a group has no end")
	}
	switch kind {
	case "(?=", "(?!":
		chars, ok := single(body)
		if !ok {
			p.at = start
			return nil, p.fail("looking ahead is supported for one character only")
		}
		if kind == "(?!" {
			return nodeNext{look{chars.negate(), true}}, nil
		}
		return nodeNext{look{chars, false}}, nil
	case "(?>":
		if chars, ok := single(body); ok {
			return nodeSet{chars}, nil
		}
		if sequence, ok := body.(nodeSeq); ok && len(sequence) == 1 {
			if loop, ok := sequence[0].(nodeLoop); ok && !loop.lazy {
				if chars, ok := single(loop.body); ok {
					return p.possessive(nodeSet{chars}, loop.min, loop.max)
				}
			}
		}
		p.at = start
		return nil, p.fail("a group that gives nothing back is supported for a loop over single characters only")
	}
	return body, nil
}

// single is the set of a node that matches one character.
func single(tree node) (set, bool) {
	switch n := tree.(type) {
	case nodeSet:
		return n.set, true
	case nodeSeq:
		if len(n) == 1 {
			return single(n[0])
		}
	case nodeAlt:
		var all set
		for _, branch := range n {
			chars, ok := single(branch)
			if !ok {
				return nil, false
			}
			all = append(all, chars...)
		}
		return all.normal(), true
	}
	return nil, false
}

// escape reads what \ begins: a class, or a single character. word is the name of the set of \w.
func (p *patternParser) escape(word string) (chars set, single bool, err error) {
	p.at++
	if p.at == len(p.in) {
		return nil, false, p.fail("nothing after \\")
	}
	char, width := utf8.DecodeRuneInString(p.in[p.at:])
	p.at += width
	sets := unicodeTables().sets
	class := func(chars set, negated bool) (set, bool, error) {
		if negated {
			chars = chars.negate()
		}
		return chars, false, nil
	}
	one := func(char rune) (set, bool, error) { return set{{char, char}}, true, nil }
	switch char {
	case 's', 'S':
		return class(sets["space"], char == 'S')
	case 'd', 'D':
		return class(sets["Nd"], char == 'D')
	case 'w', 'W':
		return class(sets[word], char == 'W')
	case 'h', 'H':
		return class(set{{'0', '9'}, {'A', 'F'}, {'a', 'f'}}, char == 'H')
	case 'p', 'P':
		body, _, ok := strings.Cut(p.in[p.at:], "}")
		if !ok || !strings.HasPrefix(body, "{") {
			return nil, false, p.fail("want a name in braces after \\%c", char)
		}
		p.at += len(body) + 1
		name, not := strings.CutPrefix(body[1:], "^")
		chars, ok := property(name)
		if !ok {
			return nil, false, p.fail("the property %q is not supported", name)
		}
		return class(chars, not != (char == 'P'))
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
		if char == 'u' {
			size = 4
		}
		if char == 'x' && strings.HasPrefix(digits, "{") {
			body, _, ok := strings.Cut(digits[1:], "}")
			if !ok {
				return nil, false, p.fail("\\x{ without }")
			}
			digits, size = body, len(body)
			p.at += 2
		}
		if len(digits) < size {
			return nil, false, p.fail("want %d digits after \\%c", size, char)
		}
		code, err := strconv.ParseUint(digits[:size], 16, 32)
		if err != nil || !utf8.ValidRune(rune(code)) || char == 'x' && size == 2 && code > 0x7f {
			return nil, false, p.fail("%q after \\%c is not a character", digits[:size], char)
		}
		p.at += size
		return one(rune(code))
	}
	if char < utf8.RuneSelf && (unicode.IsLetter(char) || unicode.IsDigit(char)) {
		return nil, false, p.fail("\\%c is not supported", char)
	}
	return one(char)
}

// bothCases adds the other cases of the letters in s.
func (p *patternParser) bothCases(chars set) (set, error) {
	out := slices.Clone(chars)
	for _, run := range chars {
		if run.hi >= utf8.RuneSelf {
			return nil, p.fail("%q without regard to case is not supported", run.hi)
		}
		for char := run.lo; char <= run.hi; char++ {
			for other := unicode.SimpleFold(char); other != char; other = unicode.SimpleFold(other) {
				out = append(out, span{other, other})
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
		chars, single, err := p.classItem(fold)
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
			if !toSingle || to[0].lo < chars[0].lo {
				return nil, p.fail("a range that has no end or ends before it begins is not supported")
			}
			chars = set{{chars[0].lo, to[0].lo}}
		}
		if fold {
			if chars, err = p.bothCases(chars); err != nil {
				return nil, err
			}
		}
		part = append(part, chars...)
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

func (p *patternParser) classItem(fold bool) (chars set, single bool, err error) {
	switch {
	case strings.HasPrefix(p.in[p.at:], "[:"):
		return nil, false, p.fail("[: :] is not supported")
	case p.in[p.at] == '[':
		chars, err = p.class(fold)
		return chars, false, err
	case p.in[p.at] == '\\':
		return p.escape("word in class")
	}
	char, width := utf8.DecodeRuneInString(p.in[p.at:])
	p.at += width
	return set{{char, char}}, true, nil
}
