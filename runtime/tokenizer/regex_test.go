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

func TestPatternsSplitLikeTheReference(t *testing.T) {
	var file [][2]json.RawMessage
	readJSONFile(t, "testdata/patterns.json", &file)
	texts, refused := 0, 0
	for _, entry := range file {
		var pattern string
		var cases [][2]json.RawMessage
		if err := json.Unmarshal(entry[0], &pattern); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(entry[1], &cases); err != nil {
			t.Fatal(err)
		}
		a, err := compile(pattern)
		if err != nil {
			if !strings.Contains(err.Error(), "nothing") && !strings.Contains(err.Error(), "no character") {
				t.Error(err)
			}
			refused++
			continue
		}
		for _, c := range cases {
			var text string
			var want []int
			if err := json.Unmarshal(c[0], &text); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(c[1], &want); err != nil {
				t.Fatal(err)
			}
			if got, err := pieceLengths(a, text); err != nil || !slices.Equal(got, want) {
				t.Errorf("%q on %q: got %v, %v, want %v", pattern, text, got, err, want)
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
	for _, pattern := range []string{`a+b|ab*`, `(?:ab|a)(?:c|bcd)*`, `a{2,3}?b?`, `[^ab]+|a.`, `(?i:ab)+c?|b`, `x*?y|x`, `(a|ab)(c|bcd)(d*)`} {
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

func TestPatternsThatAreRefused(t *testing.T) {
	for pattern, want := range map[string]string{
		`a*`: "no character at all", ``: "no character at all", `a|`: "no character at all", `(?=a)`: "no character at all", `$`: "no character at all",
		`(?<=a)b`: `kind "(?<="`, `(?<!a)b`: `kind "(?<!"`, `(?<n>a)`: `kind "(?<n"`, `(?#c)a`: `kind "(?#c"`, `(?x: a)`: `kind "(?x:"`,
		`\d(?=\d\d)`: "one character only", `a(?!bc)`: "one character only", `(?>ab|a)b`: "gives nothing back", `(?:ab)++`: "gives nothing back",
		`(a*)*`: "match nothing", `(?:a?){2}`: "match nothing", `(?!a)*b`: "match nothing", `(){1000}a`: "match nothing", `a(?:|b)+`: "match nothing",
		`^a`: "^ is not supported", `\bword`: `\b is not supported`, `\1`: `\1 is not supported`, `\Ga`: `\G is not supported`, `\R`: `\R is not supported`, `\X`: `\X is not supported`, `a\`: "nothing after",
		`(a`: "has no end", `a)`: "not begun", `[a`: "has no end", `[]`: "has no end", `[[:alpha:]]`: "[: :]", `[z-a]`: "range", `[a-\d]`: "range", `[a&&b]`: "without characters", `*a`: "nothing to repeat", `+`: "nothing to repeat",
		`\p{Nope}`: `property "Nope"`, `\pL`: "in braces", `\p{L`: "in braces", `\x{110000}`: "not a character", `\xe4`: "not a character", `\ud800`: "not a character", `\x{zz}`: "not a character", `\u12`: "want 4 digits",
		`a{2000}`: "at most 1000", `a{3,2}`: "at most 1000", `a{2}?`: "lazy", `(?:a{1000}){1000}`: "too long", `(?i:ss)`: `"ss" without regard`, `(?i:straße)`: "without regard", `(?i:f)`: "", `(?i:xfi)`: `"fi" without regard`, `(?i:[ä])`: "without regard",
		`a(?i)b`: `kind "(?i)"`, strings.Repeat("(", 100): "groups in each other", "a" + strings.Repeat("[", 100): "classes in each other", strings.Repeat("a", 9000): "9000 bytes",
		`(?:a|b)*a(?:a|b)(?:a|b)(?:a|b)(?:a|b)(?:a|b)(?:a|b)(?:a|b)(?:a|b)(?:a|b)(?:a|b)(?:a|b)(?:a|b)(?:a|b)(?:a|b)`: "too complex",
	} {
		_, err := compile(pattern)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.60q: got %v, want %q", pattern, err, want)
		}
	}
}

// A run that nothing can match after all is read once, not once from each of its characters; what
// cannot be helped is an error.
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
	if _, err := pieceLengths(a, strings.Repeat("a", 1<<16)); err == nil || !strings.Contains(err.Error(), "linear time") {
		t.Errorf("got %v, want a refusal", err)
	}
	// The failed attempts that are remembered must not hide a match that a later attempt finds.
	b, err := compile(`a*bc|ab?`)
	if err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`a*bc|ab?`)
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{strings.Repeat("a", 50), "a", "b", "bc", "x"}), 1, 12).Draw(t, "parts"), "")
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
		start, err := c.add(nodeAlt{nodeSet{s}, nodeSeq{nodeSet{set{{'a', 'a'}, {0x10ffff, 0x10ffff}}}, nodeSet{s}}}, c.emit(instruction{op: opMatch}))
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
