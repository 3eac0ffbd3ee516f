package tokenizer

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// pieceLengths are the lengths in characters of the pieces of text, matches isolated.
func pieceLengths(a *automaton, text string) (out []int, err error) {
	err = a.regions(text, func(from, to int, _ bool) { out = append(out, utf8.RuneCountInString(text[from:to])) })
	return out, err
}

// patternCase is a text and the lengths of its pieces.
type patternCase struct {
	text string
	want []int
}

// UnmarshalJSON reads a list of both.
func (c *patternCase) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&c.text, &c.want})
}

// patternFile is what the reference makes of texts with a pattern.
type patternFile struct {
	pattern string
	cases   []patternCase
}

// UnmarshalJSON reads a list of the pattern and its cases.
func (f *patternFile) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&f.pattern, &f.cases})
}

// Patterns split texts into the pieces that the reference finds. Those that may match nothing are refused.
func TestPatternsSplitLikeTheReference(t *testing.T) {
	var file []patternFile
	readJSONFile(t, "testdata/patterns.json", &file)
	texts, refused := 0, 0
	for _, entry := range file {
		a, err := compile(entry.pattern)
		if err != nil {
			if !strings.Contains(err.Error(), "nothing") && !strings.Contains(err.Error(), "no character") {
				t.Error(err)
			}
			refused++
			continue
		}
		for _, c := range entry.cases {
			if got, err := pieceLengths(a, c.text); err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%q on %q: got %v, %v, want %v", entry.pattern, c.text, got, err, c.want)
			}
			texts++
		}
	}
	if texts < 1200 {
		t.Errorf("only %d texts, %d of %d patterns refused", texts, refused, len(file))
	}
}

// Where Go's own matcher takes the same pattern, it finds the same matches.
func TestPatternsMatchLikeGo(t *testing.T) {
	for _, pattern := range []string{
		`a+b|ab*`, `(?:ab|a)(?:c|bcd)*`, `a{2,3}?b?`, `[^ab]+|a.`, `(?i:ab)+c?|b`, `x*?y|x`, `(a|ab)(c|bcd)(d*)`,
	} {
		ours, err := compile(pattern)
		if err != nil {
			t.Fatal(err)
		}
		theirs := regexp.MustCompile("(?s:" + strings.ReplaceAll(pattern, ".", `[^\n]`) + ")")
		rapid.Check(t, func(t *rapid.T) {
			text := rapid.StringOfN(rapid.RuneFrom([]rune("abcdxyAB\né")), 0, 40, -1).Draw(t, "text")
			var got [][]int
			if err := ours.matches(text, func(from, to int) { got = append(got, []int{from, to}) }); err != nil {
				t.Fatal(err)
			}
			if want := theirs.FindAllStringIndex(text, -1); !slices.EqualFunc(got, want, slices.Equal) {
				t.Fatalf("%q on %q: got %v, want %v", pattern, text, got, want)
			}
		})
	}
}

// A pattern that is malformed, or means what this matcher does not have, is refused with what it is.
func TestPatternsThatAreRefused(t *testing.T) {
	unlikeOnes := strings.Repeat(`(?:a|b)`, 14)
	for want, patterns := range map[string][]string{
		"no character at all":   {`a*`, ``, `a|`, `(?=a)`, `$`},
		`kind "(?<="`:           {`(?<=a)b`},
		`kind "(?<!"`:           {`(?<!a)b`},
		`kind "(?<n"`:           {`(?<n>a)`},
		`kind "(?#c"`:           {`(?#c)a`},
		`kind "(?x:"`:           {`(?x: a)`},
		`kind "(?i)"`:           {`a(?i)b`},
		"one character only":    {`\d(?=\d\d)`, `a(?!bc)`},
		"gives nothing back":    {`(?>ab|a)b`, `(?:ab)++`},
		"match nothing":         {`(a*)*`, `(?:a?){2}`, `(?!a)*b`, `(){1000}a`, `a(?:|b)+`},
		"^ is not supported":    {`^a`},
		`\b is not supported`:   {`\bword`},
		`\1 is not supported`:   {`\1`},
		`\G is not supported`:   {`\Ga`},
		`\R is not supported`:   {`\R`},
		`\X is not supported`:   {`\X`},
		"nothing after":         {`a\`},
		"has no end":            {`(a`, `[a`, `[]`},
		"not begun":             {`a)`},
		"[: :]":                 {`[[:alpha:]]`},
		"range":                 {`[z-a]`, `[a-\d]`},
		"without characters":    {`[a&&b]`},
		"nothing to repeat":     {`*a`, `+`},
		`property "Nope"`:       {`\p{Nope}`},
		"in braces":             {`\pL`, `\p{L`},
		"not a character":       {`\x{110000}`, `\xe4`, `\ud800`, `\x{zz}`},
		"want 4 digits":         {`\u12`},
		"at most 1000":          {`a{2000}`, `a{3,2}`},
		"lazy":                  {`a{2}?`},
		"too long":              {`(?:a{1000}){1000}`},
		`"ss" without regard`:   {`(?i:ss)`},
		`"fi" without regard`:   {`(?i:xfi)`},
		"without regard":        {`(?i:straße)`, `(?i:[ä])`},
		"groups in each other":  {strings.Repeat("(", 100)},
		"classes in each other": {"a" + strings.Repeat("[", 100)},
		"9000 bytes":            {strings.Repeat("a", 9000)},
		"too complex":           {`(?:a|b)*a` + unlikeOnes},
	} {
		for _, pattern := range patterns {
			if _, err := compile(pattern); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%.60q: got %v, want %q", pattern, err, want)
			}
		}
	}
	if _, err := compile(`(?i:f)`); err != nil { // one letter of "fi"
		t.Error(err)
	}
}

// A run that nothing can match after all is read once, not once from each of its characters. What cannot be done in
// linear time is an error.
func TestPatternsTakeLinearTime(t *testing.T) {
	a, err := compile(`\s+$|\s*x`)
	if err != nil {
		t.Fatal(err)
	}
	n := 1 << 20
	text := strings.Repeat(" ", n) + "y" + strings.Repeat(" ", n) + "x" + strings.Repeat(" ", n)
	if got, err := pieceLengths(a, text); err != nil || !slices.Equal(got, []int{n + 1, n + 1, n}) {
		t.Errorf("got %v, %v", got, err)
	}

	if a, err = compile(`a*b|a`); err != nil {
		t.Fatal(err)
	}
	if got, err := pieceLengths(a, strings.Repeat("a", 200)+"b"); err != nil || !slices.Equal(got, []int{201}) {
		t.Errorf("got %v, %v", got, err)
	}

	_, err = pieceLengths(a, strings.Repeat("a", 1<<16))
	if err == nil || !strings.Contains(err.Error(), "linear time") {
		t.Errorf("got %v, want a refusal", err)
	}
}

// The failed attempts that are remembered do not hide a match that a later attempt finds.
func TestFailedAttemptsHideNothing(t *testing.T) {
	b, err := compile(`a*bc|ab?`)
	if err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`a*bc|ab?`)
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.SampledFrom([]string{strings.Repeat("a", 50), "a", "b", "bc", "x"})
		text := strings.Join(rapid.SliceOfN(part, 1, 12).Draw(t, "parts"), "")
		var got [][]int
		if err := b.matches(text, func(from, to int) { got = append(got, []int{from, to}) }); err != nil {
			t.Fatal(err)
		}
		if !slices.EqualFunc(got, want.FindAllStringIndex(text, -1), slices.Equal) {
			t.Fatalf("%q: got %v", text, got)
		}
	})
}

// What an automaton takes for a character of a class is one, for all characters.
func TestClassesOfCharacters(t *testing.T) {
	for _, name := range []string{"L", "Lu", "N", "P", "Han", "word", "space", "Cn"} {
		s := unicodeSets()[name]
		c := &compiler{}
		others := nodeSet{set{{'a', 'a'}, {0x10ffff, 0x10ffff}}}
		one := nodeAlt{nodeSet{s}, nodeSeq{others, nodeSet{s}}}
		start, err := c.add(one, c.emit(instruction{op: opMatch}))
		if err != nil {
			t.Fatal(err)
		}
		a, err := newAutomaton(c.program, start)
		if err != nil {
			t.Fatal(err)
		}
		for r := rune(0); r <= utf8.MaxRune; r++ {
			if text := string(r); utf8.ValidRune(r) && (a.mustMatch(text, 0) == len(text)) != s.has(r) {
				t.Fatalf("%s: %U: got %t", name, r, !s.has(r))
			}
		}
	}
}
