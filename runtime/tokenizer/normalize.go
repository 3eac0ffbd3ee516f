package tokenizer

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// maxNormalized bounds what a text may grow to.
const maxNormalized = 8 * maxText

// normalizer is a step that changes text before it is split.
type normalizer struct {
	apply   func(text string) (string, error)
	removes bool // what comes out may not begin with what became of the text's first character
}

// normalize takes all steps.
func (t *pipeline) normalize(text string) (out string, err error) {
	for _, step := range t.normalizers {
		if text, err = step.apply(text); err != nil {
			return "", err
		}
	}
	return text, nil
}

// errGrows is the error of a text that normalisation makes too long.
var errGrows = errors.New("the normalised text is too long")

const knownNormalizers = "NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence"

// newNormalizers reads a normalizer part as the steps it takes.
func newNormalizers(raw part, depth int) ([]normalizer, error) {
	var fields struct {
		Type        string `json:"type"`
		Normalizers []part `json:"normalizers"`
		Prepend     string `json:"prepend"`
		Pattern     part   `json:"pattern"`
		Content     string `json:"content"`
	}
	if raw.isNull() {
		return nil, nil
	}
	if err := raw.strict(&fields); err != nil {
		return nil, err
	}
	switch fields.Type {
	case "Sequence":
		return flatten(fields.Normalizers, depth, newNormalizers)
	case "NFC", "NFD", "NFKC", "NFKD":
		form := forms[fields.Type]
		return []normalizer{{apply: func(text string) (string, error) { return form.apply(text), nil }}}, nil
	case "Prepend":
		// Else a short file could make any text grow to a size that memory does not hold.
		if len(fields.Prepend) > maxAddedBytes {
			return nil, fmt.Errorf("prepend: %d bytes, want at most %d", len(fields.Prepend), maxAddedBytes)
		}
		return []normalizer{{apply: func(text string) (string, error) {
			// Nothing stands in front of an empty text, as in the reference.
			if text == "" {
				return text, nil
			}
			return fields.Prepend + text, nil
		}}}, nil
	case "Replace":
		replacer, err := newReplacer(fields.Pattern, fields.Content)
		if err != nil {
			return nil, err
		}
		// The reference says of what stands for several characters that it comes from the last of them.
		single := replacer.pattern == nil && utf8.RuneCountInString(replacer.text) == 1
		return []normalizer{{replacer.replace, replacer.content == "" || !single}}, nil
	}
	return nil, raw.unsupported(knownNormalizers)
}

// replacer puts content in place of each match of a pattern.
type replacer struct {
	text    string     // the pattern, if automaton is nil
	pattern *automaton // else
	content string
}

// newReplacer reads {"String": ..} or {"Regex": ..}.
func newReplacer(raw part, content string) (*replacer, error) {
	text, pattern, err := readPattern(raw)
	if err != nil {
		return nil, err
	}
	if len(content) > maxAddedBytes {
		return nil, fmt.Errorf("content: %d bytes, want at most %d", len(content), maxAddedBytes)
	}
	return &replacer{text, pattern, content}, nil
}

// readPattern reads {"String": ..} as text or {"Regex": ..} as pattern.
func readPattern(raw part) (text string, pattern *automaton, err error) {
	var fields struct {
		String *string `json:"String"`
		Regex  *string `json:"Regex"`
	}
	if err := raw.strict(&fields); err != nil {
		return "", nil, err
	}
	switch {
	case fields.Regex != nil && fields.String == nil:
		pattern, err = compile(*fields.Regex)
		return "", pattern, err
	case fields.String != nil && fields.Regex == nil:
		if size := len(*fields.String); size == 0 || size > maxPattern {
			return "", nil, fmt.Errorf("pattern of %d bytes, want 1 to %d", size, maxPattern)
		}
		return *fields.String, nil, nil
	}
	return "", nil, errors.New("want a pattern of type String or Regex")
}

// replace replaces all matches from left to right. The size is known before anything is made where the pattern is a
// text.
func (r *replacer) replace(text string) (string, error) {
	if r.pattern == nil {
		count := strings.Count(text, r.text)
		if count == 0 {
			return text, nil
		}
		if len(text)+count*(len(r.content)-len(r.text)) > maxNormalized {
			return "", errGrows
		}
		return strings.ReplaceAll(text, r.text, r.content), nil
	}
	var out strings.Builder
	last := 0
	err := r.pattern.matches(text, func(from, to int) {
		if out.Len() <= maxNormalized {
			out.WriteString(text[last:from])
			out.WriteString(r.content)
		}
		last = to
	})
	out.WriteString(text[last:])
	if err == nil && out.Len() > maxNormalized {
		err = errGrows
	}
	return out.String(), err
}

// form is a normalisation form of Unicode. (golang.org/x/text/unicode/norm is of another version of Unicode than the
// reference, and breaks runs of more than 30 marks.) compat takes apart what only looks different too, as ligatures;
// compose joins again what has a character of its own.
type form struct {
	compat, compose bool
	suspects        func() set // characters without which a text is in this form
}

// Hangul syllables are computed: https://www.unicode.org/versions/latest/core-spec/chapter-3/, section 3.12.
const (
	hangulS, hangulL, hangulV, hangulT = 0xac00, 0x1100, 0x1161, 0x11a7
	hangulNL, hangulNV, hangulNT       = 19, 21, 28
	hangulNS                           = hangulNL * hangulNV * hangulNT
)

// combining are the characters that do not begin one of their own, with their class; pairs are what composes.
var combining = sync.OnceValues(func() (class map[rune]uint8, pairs map[[2]rune]rune) {
	class, pairs = map[rune]uint8{}, map[[2]rune]rune{}
	sets := unicodeSets()
	nfd, _ := decompositions()
	for name, chars := range sets {
		digits, ok := strings.CutPrefix(name, "ccc")
		if !ok {
			continue
		}
		number, err := strconv.ParseUint(digits, 10, 8)
		if err != nil {
			panic("BUG: table " + name)
		}
		for char := range chars.all() {
			class[char] = uint8(number)
		}
	}
	// A composite is a shorter composite and a mark, or two characters; so the shorter come first.
	composites := slices.Collect(sets["compose"].all())
	slices.SortStableFunc(composites, func(left, right rune) int {
		return utf8.RuneCountInString(nfd[left]) - utf8.RuneCountInString(nfd[right])
	})
	for _, composite := range composites {
		parts := []rune(nfd[composite])
		first, last := parts[0], len(parts)-1
		for _, mark := range parts[1:last] {
			first = pairs[[2]rune{first, mark}]
		}
		pairs[[2]rune{first, parts[last]}] = composite
	}
	return class, pairs
})

// forms are the normalisation forms by name.
var forms = map[string]*form{
	"NFC": newForm(false, true), "NFD": newForm(false, false),
	"NFKC": newForm(true, true), "NFKD": newForm(true, false),
}

// newForm makes a form. Its tables take a while to make, and texts of ASCII need none.
func newForm(compat, compose bool) *form {
	out := &form{compat: compat, compose: compose}
	out.suspects = sync.OnceValue(out.findSuspects)
	return out
}

// findSuspects returns the characters that the form takes apart, reorders or may join to the character before.
func (f *form) findSuspects() set {
	// what decomposes and does not compose again, in either form, then Hangul by its ranges
	composable := unicodeSets()["compose"]
	nfd, nfkd := decompositions()
	class, pairs := combining()
	var out set
	add := func(char rune) { out = append(out, span{char, char}) }
	for char := range class {
		add(char)
	}
	for char := range nfd {
		if !f.compose || !composable.has(char) {
			add(char)
		}
	}
	if f.compat {
		for char := range nfkd {
			add(char)
		}
	}
	if f.compose {
		for pair := range pairs {
			add(pair[1])
		}
		vowels, tails := span{hangulV, hangulV + hangulNV - 1}, span{hangulT + 1, hangulT + hangulNT - 1}
		out = append(out, vowels, tails)
	} else {
		out = append(out, span{hangulS, hangulS + hangulNS - 1})
	}
	return out.normal()
}

// apply brings a text into the form: it decomposes all characters, orders the marks, and composes again where the form
// says so (Unicode Standard Annex 15). Most texts are in the form already, which one look at each character shows.
func (f *form) apply(text string) string {
	if !f.touches(text) {
		return text
	}
	out := f.decompose(text)
	if f.compose {
		out = compose(out)
	}
	return string(out)
}

// touches reports whether a text has characters that may have to change.
func (f *form) touches(text string) bool {
	// no form changes ASCII
	beyond := strings.IndexFunc(text, func(char rune) bool { return char >= utf8.RuneSelf })
	if beyond < 0 {
		return false
	}
	suspects := f.suspects()
	for _, char := range text[beyond:] {
		if char >= suspects[0].lo && suspects.has(char) {
			return true
		}
	}
	return false
}

// decompose takes characters apart and sorts each run of marks by class.
func (f *form) decompose(text string) []rune {
	class, _ := combining()
	out := make([]rune, 0, len(text))
	marks := 0 // at the end of out
	// a stable sort: marks of one class keep their order
	sortMarks := func() {
		slices.SortStableFunc(out[len(out)-marks:], func(left, right rune) int {
			return int(class[left]) - int(class[right])
		})
		marks = 0
	}
	add := func(char rune) {
		if char < 0x300 || class[char] == 0 {
			sortMarks()
			out = append(out, char)
			return
		}
		out = append(out, char)
		marks++
	}
	for _, char := range text {
		parts := f.parts(char)
		if parts == "" {
			add(char)
			continue
		}
		for _, part := range parts {
			add(part)
		}
	}
	sortMarks()
	return out
}

// parts returns what a character is taken apart to, "" if nothing.
func (f *form) parts(char rune) string {
	nfd, nfkd := decompositions()
	switch {
	case char < 0x80:
		return ""
	case char >= hangulS && char < hangulS+hangulNS:
		i := char - hangulS
		parts := []rune{hangulL + i/(hangulNV*hangulNT), hangulV + i%(hangulNV*hangulNT)/hangulNT, hangulT + i%hangulNT}
		if i%hangulNT == 0 {
			parts = parts[:2]
		}
		return string(parts)
	case f.compat && nfkd[char] != "":
		return nfkd[char]
	}
	return nfd[char]
}

// compose joins each character that begins with the marks after it that nothing separates from it. A mark is separated
// by another one whose class is not lower than its own: the two would be seen in this order. last is what decides that.
func compose(in []rune) []rune {
	class, pairs := combining()
	out := in[:0]
	starter := -1 // position in out
	last := 0     // class of the last character in out after the starter, -1: none
	for _, char := range in {
		order := int(class[char])
		if starter >= 0 && (last < order || last == -1) {
			if composite, ok := pair(pairs, out[starter], char); ok {
				out[starter] = composite
				continue
			}
		}
		if order == 0 {
			starter, last = len(out), -1
		} else {
			last = order
		}
		out = append(out, char)
	}
	return out
}

// pair returns what two characters compose to, false if they do not.
func pair(pairs map[[2]rune]rune, left, right rune) (rune, bool) {
	lead, vowel := left-hangulL, right-hangulV
	if lead >= 0 && lead < hangulNL && vowel >= 0 && vowel < hangulNV {
		return hangulS + (lead*hangulNV+vowel)*hangulNT, true
	}
	syllable, tail := left-hangulS, right-hangulT
	if syllable >= 0 && syllable < hangulNS && syllable%hangulNT == 0 && tail > 0 && tail < hangulNT {
		return left + tail, true
	}
	composite, ok := pairs[[2]rune{left, right}]
	return composite, ok
}
