package tokenizer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// maxNormalized bounds what a text may grow to.
const maxNormalized = 8 * maxText

// normalizer changes text before it is split; nil leaves it alone.
type normalizer func(text string) (string, error)

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
		form := forms()[fields.Type]
		return []normalizer{func(text string) (string, error) { return form.apply(text), nil }}, nil
	case "Prepend":
		if len(fields.Prepend) > maxAddedBytes {
			return nil, fmt.Errorf("prepend: %d bytes, want at most %d", len(fields.Prepend), maxAddedBytes)
		}
		return []normalizer{func(text string) (string, error) {
			if text == "" {
				return text, nil
			}
			return fields.Prepend + text, nil
		}}, nil
	case "Replace":
		replacer, err := newReplacer(fields.Pattern, fields.Content)
		if err != nil {
			return nil, err
		}
		return []normalizer{replacer.replace}, nil
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

// form is a normalisation form of Unicode. (golang.org/x/text/unicode/norm is of another version of Unicode
// than the reference, and breaks runs of more than 30 marks.)
type form struct {
	compat, compose bool
	suspects        set // characters without which a text is in this form
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
	t := unicodeTables()
	nfd, _ := decompositions()
	for name, s := range t.sets {
		var k uint8
		if _, err := fmt.Sscanf(name, "ccc%d", &k); err != nil {
			continue
		}
		for _, x := range s {
			for r := x.lo; r <= x.hi; r++ {
				class[r] = k
			}
		}
	}
	// A composite is a shorter composite and a mark, or two characters; so the shorter come first.
	var composites []rune
	for _, x := range t.sets["compose"] {
		for r := x.lo; r <= x.hi; r++ {
			composites = append(composites, r)
		}
	}
	slices.SortStableFunc(composites, func(a, b rune) int {
		return utf8.RuneCountInString(nfd[a]) - utf8.RuneCountInString(nfd[b])
	})
	for _, c := range composites {
		all := []rune(nfd[c])
		first := all[0]
		for _, r := range all[1 : len(all)-1] {
			first = pairs[[2]rune{first, r}]
		}
		pairs[[2]rune{first, all[len(all)-1]}] = c
	}
	return class, pairs
})

var forms = sync.OnceValue(func() map[string]*form {
	t := unicodeTables()
	nfd, nfkd := decompositions()
	class, pairs := combining()
	out := map[string]*form{"NFC": {false, true, nil}, "NFD": {false, false, nil}, "NFKC": {true, true, nil}, "NFKD": {true, false, nil}}
	for _, f := range out {
		add := func(r rune) { f.suspects = append(f.suspects, span{r, r}) }
		for r := range class {
			add(r)
		}
		for r := range nfd {
			if !f.compose || !t.sets["compose"].has(r) {
				add(r)
			}
		}
		if f.compat {
			for r := range nfkd {
				add(r)
			}
		}
		if f.compose {
			for p := range pairs {
				add(p[1])
			}
			f.suspects = append(f.suspects, span{hangulV, hangulV + hangulNV - 1}, span{hangulT + 1, hangulT + hangulNT - 1})
		} else {
			f.suspects = append(f.suspects, span{hangulS, hangulS + hangulNS - 1})
		}
		f.suspects = f.suspects.normal()
	}
	return out
})

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

func (f *form) touches(text string) bool {
	low := f.suspects[0].lo
	for _, char := range text {
		if char >= low && f.suspects.has(char) {
			return true
		}
	}
	return false
}

// decompose takes characters apart and sorts each run of marks by class.
func (f *form) decompose(text string) []rune {
	nfd, nfkd := decompositions()
	class, _ := combining()
	out := make([]rune, 0, len(text))
	marks := 0 // at the end of out
	sortMarks := func() {
		slices.SortStableFunc(out[len(out)-marks:], func(left, right rune) int { return int(class[left]) - int(class[right]) })
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
		var parts string
		ok := false
		switch {
		case char < 0x80:
		case char >= hangulS && char < hangulS+hangulNS:
			i := char - hangulS
			add(hangulL + i/(hangulNV*hangulNT))
			add(hangulV + i%(hangulNV*hangulNT)/hangulNT)
			if i%hangulNT > 0 {
				add(hangulT + i%hangulNT)
			}
			continue
		case f.compat:
			if parts, ok = nfkd[char]; !ok {
				parts, ok = nfd[char]
			}
		default:
			parts, ok = nfd[char]
		}
		if !ok {
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

// compose joins each character that begins with the marks after it that nothing separates from it.
func compose(in []rune) []rune {
	class, pairs := combining()
	out := in[:0]
	starter := -1 // position in out
	last := 0     // class of the last character in out after the starter, -1: none
	for _, char := range in {
		order := int(class[char])
		if starter >= 0 && last < order || starter >= 0 && last == -1 {
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

func pair(pairs map[[2]rune]rune, left, right rune) (rune, bool) {
	if lead, vowel := left-hangulL, right-hangulV; lead >= 0 && lead < hangulNL && vowel >= 0 && vowel < hangulNV {
		return hangulS + (lead*hangulNV+vowel)*hangulNT, true
	}
	if syllable, tail := left-hangulS, right-hangulT; syllable >= 0 && syllable < hangulNS && syllable%hangulNT == 0 && tail > 0 && tail < hangulNT {
		return left + tail, true
	}
	composite, ok := pairs[[2]rune{left, right}]
	return composite, ok
}
