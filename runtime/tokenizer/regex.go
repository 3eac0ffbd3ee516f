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

// instruction is one of a program for a backtracking matcher (Thompson's construction).
type instruction struct {
	op   opcode
	set  set   // opChar
	look look  // opLook
	x, y int32 // where to go on, x preferred; only opSplit has y
}

// opcode says what an instruction does: match a character of set, look at the next one, go on at x and else at y, or
// end.
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
	if err == nil && nullable(tree) {
		err = errors.New("it can match no character at all, which is not supported")
	}
	var out *automaton
	if err == nil {
		out, err = build(tree)
	}
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", pattern, err)
	}
	return out, nil
}

// build makes the automaton that matches a tree.
func build(tree node) (*automaton, error) {
	c := &compiler{}
	start, err := c.add(tree, c.emit(instruction{op: opMatch}))
	if err != nil {
		return nil, err
	}
	return newAutomaton(c.program, start)
}

// nullable reports whether a node can match the empty text.
func nullable(tree node) bool {
	switch tree := tree.(type) {
	case nodeSet:
		return false
	case nodeSeq:
		return !slices.ContainsFunc(tree, func(part node) bool { return !nullable(part) })
	case nodeAlt:
		return slices.ContainsFunc(tree, nullable)
	case nodeLoop:
		return tree.min == 0 || nullable(tree.body)
	}
	return true
}

// compiler translates a tree to a program, from its end to its beginning.
type compiler struct{ program []instruction }

// emit appends an instruction and returns its number.
func (c *compiler) emit(i instruction) int32 {
	c.program = append(c.program, i)
	return int32(len(c.program) - 1)
}

// add translates a tree so that it goes on at next, and returns where it begins.
func (c *compiler) add(tree node, next int32) (int32, error) {
	if len(c.program) > maxProgram {
		return 0, fmt.Errorf("it is too long: more than %d states", maxProgram)
	}
	var err error
	switch tree := tree.(type) {
	case nodeSet:
		return c.emit(instruction{op: opChar, set: tree.set, x: next}), nil
	case nodeNext:
		return c.emit(instruction{op: opLook, look: tree.next, x: next}), nil
	// from the last to the first, since each needs to know where it goes on
	case nodeSeq:
		for i := len(tree) - 1; i >= 0 && err == nil; i-- {
			next, err = c.add(tree[i], next)
		}
		return next, err
	// a chain of splits that prefers the earlier alternatives
	case nodeAlt:
		out, err := c.add(tree[len(tree)-1], next)
		for i := len(tree) - 2; i >= 0 && err == nil; i-- {
			var first int32
			first, err = c.add(tree[i], next)
			out = c.emit(instruction{op: opSplit, x: first, y: out})
		}
		return out, err
	case nodeLoop:
		return c.addLoop(tree, next)
	}
	panic(fmt.Sprintf("BUG: pattern node %T", tree))
}

// addLoop writes the body out min times. Where max bounds the loop, up to max times, and a split before each further
// body leads past them all; where nothing does, one body at the end leads back to its split.
func (c *compiler) addLoop(loop nodeLoop, next int32) (int32, error) {
	split := func(body, past int32) instruction {
		if loop.lazy {
			body, past = past, body
		}
		return instruction{op: opSplit, x: body, y: past}
	}
	// unbounded: the split is emitted first, so that the body can lead back to it
	past := next
	if loop.max < 0 {
		at := c.emit(instruction{op: opSplit})
		body, err := c.add(loop.body, at)
		if err != nil {
			return 0, err
		}
		c.program[at] = split(body, past)
		next = at
	}
	var err error
	// optional bodies from the last to the first, then those that must be there
	for i := loop.max; i > loop.min && err == nil; i-- {
		var body int32
		if body, err = c.add(loop.body, next); err == nil {
			next = c.emit(split(body, past))
		}
	}
	for i := 0; i < loop.min && err == nil; i++ {
		next, err = c.add(loop.body, next)
	}
	return next, err
}

// patternParser reads a pattern by recursive descent.
type patternParser struct {
	in    string
	at    int
	depth int
}

// fail returns an error at the current position.
func (p *patternParser) fail(format string, args ...any) error {
	return fmt.Errorf("at byte %d: %s", p.at, fmt.Sprintf(format, args...))
}

// take skips text where it is next.
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

// sequence reads pieces up to the next | or the end of the group.
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
		// several quantifiers may follow each other
		low, high, braces, ok := p.quantifier()
		if !ok {
			return tree, nil
		}
		if high > 1000 || low > 1000 || high >= 0 && low > high {
			return nil, p.fail("repetition %d to %d, want at most 1000", low, high)
		}
		if nullable(tree) && high != 1 {
			return nil, p.fail("repeating what may match nothing is not supported")
		}
		switch {
		case p.take("?"):
			if braces && low == high {
				return nil, p.fail("a lazy {n} is not supported")
			}
			tree = nodeLoop{tree, low, high, true}
		case !braces && p.take("+"): // after braces, + is a loop around the loop
			tree, err = p.possessive(tree, low, high)
		default:
			tree = nodeLoop{tree, low, high, false}
		}
	}
	return tree, err
}

// quantifier reads *, +, ? or a number in braces, if that comes next; high -1 is no bound.
func (p *patternParser) quantifier() (low, high int, braces, ok bool) {
	switch {
	case p.take("*"):
		return 0, -1, false, true
	case p.take("+"):
		return 1, -1, false, true
	case p.take("?"):
		return 0, 1, false, true
	case p.in[p.at] == '{': // or a character like any other
		low, high, ok = p.braces()
		return low, high, true, ok
	}
	return 0, 0, false, false
}

// braces reads {n}, {n,}, {,m} or {n,m}.
func (p *patternParser) braces() (low, high int, ok bool) {
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
	low, high = number(left, 0), number(right, -1)
	if !comma {
		high = low
	}
	if ok {
		p.at += len(body) + 2
	}
	return low, high, ok
}

// possessive returns a loop that gives nothing back: if it may stop early, no further character fits. For single
// characters that is a condition on the next character: X++ is X+(?!X). With an upper bound, it has reached the bound
// or met the condition.
func (p *patternParser) possessive(body node, low, high int) (node, error) {
	one, ok := single(body)
	if !ok {
		return nil, p.fail("a loop that gives nothing back is supported for single characters only")
	}
	stop := nodeNext{look{one.negate(), true}}
	if high < 0 {
		return nodeSeq{nodeLoop{body, low, high, false}, stop}, nil
	}
	if low == high {
		return nodeLoop{body, low, high, false}, nil
	}
	return nodeAlt{nodeLoop{body, high, high, false}, nodeSeq{nodeLoop{body, low, high - 1, false}, stop}}, nil
}

// atom reads a character, a class, a condition or a group.
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
	if !fold {
		return nodeSet{set{{char, char}}}, nil
	}
	chars, err := p.bothCases(set{{char, char}})
	return nodeSet{chars}, err
}

// groupKinds are what a group can begin with, the shortest last.
var groupKinds = []string{"(?:", "(?i:", "(?-i:", "(?=", "(?!", "(?>", "("}

// group reads a group of any kind. Nothing asks for what a group matched, so all groups that only group are alike.
func (p *patternParser) group(fold bool) (node, error) {
	start := p.at
	// the last kind is a plain bracket, so one always fits
	kind := groupKinds[slices.IndexFunc(groupKinds, p.take)]
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
	// negated, the end of the text fits too
	case "(?=", "(?!":
		chars, ok := single(body)
		switch {
		case !ok:
			p.at = start
			return nil, p.fail("looking ahead is supported for one character only")
		case kind == "(?!":
			return nodeNext{look{chars.negate(), true}}, nil
		}
		return nodeNext{look{chars, false}}, nil
	case "(?>":
		return p.atomic(body, start)
	}
	return body, nil
}

// atomic returns a group that gives nothing back, which began at start.
func (p *patternParser) atomic(body node, start int) (node, error) {
	if chars, ok := single(body); ok {
		return nodeSet{chars}, nil
	}
	if parts, ok := body.(nodeSeq); ok && len(parts) == 1 {
		if loop, ok := parts[0].(nodeLoop); ok && !loop.lazy {
			if chars, ok := single(loop.body); ok {
				return p.possessive(nodeSet{chars}, loop.min, loop.max)
			}
		}
	}
	p.at = start
	return nil, p.fail("a group that gives nothing back is supported for a loop over single characters only")
}

// single returns the set of a node that matches one character.
func single(tree node) (set, bool) {
	switch tree := tree.(type) {
	case nodeSet:
		return tree.set, true
	case nodeSeq:
		if len(tree) == 1 {
			return single(tree[0])
		}
	case nodeAlt:
		var all set
		for _, branch := range tree {
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

// escapedChars are the letters that stand for a single character after a backslash.
var escapedChars = map[rune]rune{
	'a': '\a', 'e': 0x1b, 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', 'v': '\v',
}

// escape reads what \ begins: a class, or a single character. word is the name of the set of \w.
func (p *patternParser) escape(word string) (chars set, single bool, err error) {
	p.at++
	if p.at == len(p.in) {
		return nil, false, p.fail("nothing after \\")
	}
	letter, width := utf8.DecodeRuneInString(p.in[p.at:])
	p.at += width
	// The letter of a class in upper case stands for all other characters; it is negated at the end.
	sets := unicodeSets()
	switch letter {
	case 's', 'S':
		chars = sets["space"]
	case 'd', 'D':
		chars = sets["Nd"]
	case 'w', 'W':
		chars = sets[word]
	case 'h', 'H':
		chars = set{{'0', '9'}, {'A', 'F'}, {'a', 'f'}}
	case 'p', 'P':
		chars, err = p.property(letter)
	case 'x', 'u':
		char, err := p.hexadecimal(letter)
		return set{{char, char}}, true, err
	default:
		char, known := escapedChars[letter]
		// A letter or digit after a backslash that is not known has a meaning, which must not be guessed; anything else
		// stands for itself.
		if !known && letter < utf8.RuneSelf && (unicode.IsLetter(letter) || unicode.IsDigit(letter)) {
			return nil, false, p.fail("\\%c is not supported", letter)
		}
		if !known {
			char = letter
		}
		return set{{char, char}}, true, nil
	}
	if err == nil && unicode.IsUpper(letter) {
		chars = chars.negate()
	}
	return chars, false, err
}

// property reads {name} or, negated, {^name}.
func (p *patternParser) property(letter rune) (set, error) {
	body, _, ok := strings.Cut(p.in[p.at:], "}")
	if !ok || !strings.HasPrefix(body, "{") {
		return nil, p.fail("want a name in braces after \\%c", letter)
	}
	p.at += len(body) + 1
	name, negated := strings.CutPrefix(body[1:], "^")
	chars, ok := property(name)
	if !ok {
		return nil, p.fail("the property %q is not supported", name)
	}
	if negated {
		chars = chars.negate()
	}
	return chars, nil
}

// hexadecimal reads the digits after \u, or after \x, where braces may hold any number of them.
func (p *patternParser) hexadecimal(letter rune) (rune, error) {
	// \x takes a byte of ASCII, since others would be halves of characters
	digits, size, most := p.in[p.at:], 2, uint64(0x7f)
	if letter == 'u' {
		size, most = 4, utf8.MaxRune
	}
	if letter == 'x' && strings.HasPrefix(digits, "{") {
		body, _, ok := strings.Cut(digits[1:], "}")
		if !ok {
			return 0, p.fail("\\x{ without }")
		}
		digits, size, most = body, len(body), utf8.MaxRune
		if size == 2 {
			most = 0x7f
		}
		p.at += 2
	}
	if len(digits) < size {
		return 0, p.fail("want %d digits after \\%c", size, letter)
	}
	code, err := strconv.ParseUint(digits[:size], 16, 32)
	if err != nil || code > most || !utf8.ValidRune(rune(code)) {
		return 0, p.fail("%q after \\%c is not a character", digits[:size], letter)
	}
	p.at += size
	return rune(code), nil
}

// bothCases adds the other cases of letters. It refuses letters beyond ASCII, which may be several letters in another
// case.
func (p *patternParser) bothCases(chars set) (set, error) {
	out := slices.Clone(chars)
	if i := slices.IndexFunc(chars, func(run span) bool { return run.hi >= utf8.RuneSelf }); i >= 0 {
		return nil, p.fail("%q without regard to case is not supported", chars[i].hi)
	}
	for char := range chars.all() {
		for other := unicode.SimpleFold(char); other != char; other = unicode.SimpleFold(other) {
			out = append(out, span{other, other})
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
	// all is what the sides of && before have in common; part is the side that is being read
	negated := p.take("^")
	var all, part set
	intersect := false
	for first := true; ; first = false {
		if p.at == len(p.in) {
			return nil, p.fail("a class has no end")
		}
		if !first && p.take("]") {
			break
		}
		if p.take("&&") {
			all, intersect = meet(all, part, intersect), true
			part = nil
			continue
		}
		chars, err := p.classRange(fold)
		if err != nil {
			return nil, err
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

// classRange reads an item of a class, or two with a hyphen between them.
func (p *patternParser) classRange(fold bool) (set, error) {
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
		return p.bothCases(chars)
	}
	return chars, nil
}

// meet is part, or what it has in common with all.
func meet(all, part set, intersect bool) set {
	part = slices.Clone(part).normal()
	if intersect {
		return all.and(part)
	}
	return part
}

// classItem reads a character, an escape or a class in a class.
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
