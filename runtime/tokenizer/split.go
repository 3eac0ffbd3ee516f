package tokenizer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// A splitter cuts a piece of text into smaller ones, which it yields from left to right. first says that the piece
// begins the text, since some splitters put a space only there.
type splitter func(piece string, first bool, yield func(piece string, first bool)) error

const knownSplitters = "ByteLevel, Digits, Metaspace, Punctuation, Sequence, Split, Whitespace, WhitespaceSplit"

// newSplitters reads a pre_tokenizer part as its steps. raw says that the words of the last step are bytes, which the
// model reads in the byte alphabet. Steps behind another ByteLevel are given text in that alphabet.
func newSplitters(source part, normalizers []normalizer) (steps []splitter, raw bool, err error) {
	found, err := readSplitters(source, 0)
	if err == nil {
		err = knowsBeginning(found, normalizers)
	}
	if err != nil {
		return nil, false, err
	}
	for i, step := range found {
		steps = append(steps, step.split)
		if !step.byteLevel {
			continue
		}
		if i == len(found)-1 {
			return steps, true, nil
		}
		steps = append(steps, func(piece string, first bool, yield func(string, bool)) error {
			yield(inAlphabet(piece), first)
			return nil
		})
	}
	return steps, false, nil
}

// A readSplitter is a step as it was read.
type readSplitter struct {
	split     splitter
	kind      string
	byteLevel bool // its pieces are turned into the byte alphabet
	onlyFirst bool // a Metaspace that puts its character only in front of the piece that begins the text
}

// knowsBeginning refuses a step that asks which piece begins the text, if that may be another piece than the first. To
// the reference, a piece begins the text if its first character comes from the first one of the text as it was given.
// No piece does if normalisation removed that character or joined it to others. Several do if normalisation made
// several characters of it and a step before split them.
func knowsBeginning(steps []readSplitter, normalizers []normalizer) error {
	at := slices.IndexFunc(steps, func(step readSplitter) bool { return step.onlyFirst })
	if at < 0 {
		return nil
	}
	const refusal = "prepend_scheme \"first\" of Metaspace is not supported %s; supported: as the first step, and a " +
		"normalizer that removes nothing, and replaces single characters"
	switch {
	case slices.ContainsFunc(normalizers, func(step normalizer) bool { return step.removes }):
		return fmt.Errorf(refusal, "behind a normalizer that may remove or join what the text begins with")
	case at > 0 && len(normalizers) > 0:
		return fmt.Errorf(refusal, "behind a normalizer and another step")
	}
	for i, step := range steps {
		if i > 0 && step.onlyFirst && slices.ContainsFunc(steps[:i], func(before readSplitter) bool {
			return before.byteLevel || before.kind == metaspaceKind
		}) {
			return fmt.Errorf(refusal, "behind another Metaspace or ByteLevel")
		}
	}
	return nil
}

// metaspaceKind is the type of the step that makes spaces visible.
const metaspaceKind = "Metaspace"

// splitterFields are those of all kinds of splitters.
type splitterFields struct {
	Type string `json:"type"`
	// of a Sequence
	PreTokenizers []part `json:"pretokenizers"`
	// of ByteLevel and Metaspace; nil where the file does not say
	AddPrefixSpace *bool `json:"add_prefix_space"`
	TrimOffsets    bool  `json:"trim_offsets"`
	UseRegex       *bool `json:"use_regex"`
	// of Split
	Pattern  part   `json:"pattern"`
	Behavior string `json:"behavior"`
	Invert   bool   `json:"invert"`
	// of Digits
	IndividualDigits *bool `json:"individual_digits"`
	// of Metaspace
	Replacement   string  `json:"replacement"`
	PrependScheme *string `json:"prepend_scheme"`
	Split         *bool   `json:"split"`
	// read and ignored: the reference writes it for itself
	StrRep *string `json:"str_rep"`
}

// readSplitters reads a part and, for a Sequence, those in it.
func readSplitters(raw part, depth int) ([]readSplitter, error) {
	if raw.isNull() {
		return nil, nil
	}
	var fields splitterFields
	if err := raw.strict(&fields); err != nil {
		return nil, err
	}
	var split splitter
	var err error
	switch fields.Type {
	case "Sequence":
		return flatten(fields.PreTokenizers, depth, readSplitters)
	// the one splitter that turns bytes into characters of the alphabet
	case "ByteLevel":
		if fields.AddPrefixSpace == nil {
			return nil, errors.New("ByteLevel does not say add_prefix_space")
		}
		useRegex := fields.UseRegex == nil || *fields.UseRegex
		return []readSplitter{{split: byteLevelSplitter(*fields.AddPrefixSpace, useRegex), byteLevel: true}}, nil
	case "Split":
		split, err = fields.patternSplitter()
	case "Digits":
		if fields.IndividualDigits == nil {
			return nil, errors.New("individual_digits of Digits is missing")
		}
		digits := contiguous
		if *fields.IndividualDigits {
			digits = isolated
		}
		split = cut(characters("numeric"), digits, false)
	case "Punctuation":
		if fields.Behavior == "" {
			fields.Behavior = "Isolated"
		}
		var how behavior
		how, err = readBehavior(fields.Behavior)
		split = cut(characters("punctuation"), how, false)
	case "WhitespaceSplit":
		split = cut(characters("space"), removed, false)
	case "Whitespace":
		split, err = wordSplitter()
	case metaspaceKind:
		split, err = fields.metaspaceSplitter()
	default:
		return nil, raw.unsupported(knownSplitters)
	}
	onlyFirst := fields.Type == metaspaceKind && fields.PrependScheme != nil && *fields.PrependScheme == "first"
	return []readSplitter{{split: split, kind: fields.Type, onlyFirst: onlyFirst}}, err
}

// patternSplitter splits by the matches of a text or of a regular expression.
func (f *splitterFields) patternSplitter() (splitter, error) {
	text, pattern, err := readPattern(f.Pattern)
	if err != nil {
		return nil, err
	}
	how, err := readBehavior(f.Behavior)
	if err != nil {
		return nil, err
	}
	if pattern != nil {
		return cut(pattern.regions, how, f.Invert), nil
	}
	return cut(occurrences(text), how, f.Invert), nil
}

// gpt2 is the pattern of ByteLevel.
const gpt2 = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// gpt2Words takes a while to make, and text that is only decoded does not need it.
var gpt2Words = sync.OnceValue(func() splitter {
	pattern, err := compile(gpt2)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return cut(pattern.regions, isolated, false)
})

// byteLevelSplitter puts a space before a piece that begins with none, and splits by the pattern of GPT-2.
func byteLevelSplitter(prefixSpace, useRegex bool) splitter {
	return func(piece string, first bool, yield func(string, bool)) error {
		if prefixSpace && piece[0] != ' ' {
			piece = " " + piece
		}
		if useRegex {
			return gpt2Words()(piece, first, yield)
		}
		yield(piece, first)
		return nil
	}
}

// wordSplitter splits by \w+|[^\w\s]+ and leaves out what does not match.
func wordSplitter() (splitter, error) {
	sets := unicodeSets()
	word := sets["boundary"]
	other := append(slices.Clone(word), sets["space"]...).normal().negate()
	pattern, err := build(nodeAlt{nodeLoop{nodeSet{word}, 1, -1, false}, nodeLoop{nodeSet{other}, 1, -1, false}})
	if err != nil {
		return nil, err
	}
	return cut(pattern.regions, removed, true), nil
}

// metaspaceSplitter puts the replacement in place of spaces, and in front as prepend_scheme says.
func (f *splitterFields) metaspaceSplitter() (splitter, error) {
	// older files have add_prefix_space instead of prepend_scheme
	scheme, replacement := "always", f.Replacement
	if f.PrependScheme != nil {
		scheme = *f.PrependScheme
	}
	if f.AddPrefixSpace != nil && !*f.AddPrefixSpace && scheme != "never" {
		return nil, fmt.Errorf("add_prefix_space is false, but prepend_scheme is %q", clip(scheme))
	}
	if utf8.RuneCountInString(replacement) != 1 {
		return nil, fmt.Errorf("replacement %q, want one character", clip(replacement))
	}
	if !slices.Contains([]string{"always", "first", "never"}, scheme) {
		return nil, fmt.Errorf("prepend_scheme %q, want always, first or never", clip(scheme))
	}
	words := cut(occurrences(replacement), mergedWithNext, false)
	return func(piece string, first bool, yield func(string, bool)) error {
		piece = strings.ReplaceAll(piece, " ", replacement)
		prepend := scheme == "always" || scheme == "first" && first
		if prepend && !strings.HasPrefix(piece, replacement) {
			piece = replacement + piece
		}
		if f.Split == nil || *f.Split {
			return words(piece, first, yield)
		}
		yield(piece, first)
		return nil
	}, nil
}

// A behavior says what becomes of the matches and of the text between them.
type behavior int

const (
	isolated           behavior = iota // each a piece
	removed                            // matches are left out
	mergedWithPrevious                 // a match belongs to what is before it
	mergedWithNext
	contiguous // neighbours of one kind are one piece
)

// readBehavior reads the name of a behavior.
func readBehavior(name string) (behavior, error) {
	names := []string{"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"}
	i := slices.Index(names, name)
	if i < 0 {
		return 0, fmt.Errorf("behavior %q, want one of %s", clip(name), strings.Join(names, ", "))
	}
	return behavior(i), nil
}

// regions divides a text into matches and other pieces, which it yields from left to right without a gap.
type regions func(text string, yield func(from, to int, match bool)) error

// withRest makes regions of a search for matches: it yields the text between them, too.
func withRest(search func(text string, yield func(from, to int)) error) regions {
	return func(text string, yield func(from, to int, match bool)) error {
		last := 0
		err := search(text, func(from, to int) {
			if from > last {
				yield(last, from, false)
			}
			yield(from, to, true)
			last = to
		})
		if last < len(text) {
			yield(last, len(text), false)
		}
		return err
	}
}

// regions yields the matches of a and the text between them.
func (a *automaton) regions(text string, yield func(from, to int, match bool)) error {
	return withRest(a.matches)(text, yield)
}

// occurrences returns the regions whose matches are those of a part.
func occurrences(part string) regions {
	return withRest(func(text string, yield func(from, to int)) error {
		for at := 0; ; at += len(part) {
			offset := strings.Index(text[at:], part)
			if offset < 0 {
				return nil
			}
			at += offset
			yield(at, at+len(part))
		}
	})
}

// characters returns the regions whose matches are single characters of a set.
func characters(name string) regions {
	chars := unicodeSets()[name]
	return withRest(func(text string, yield func(from, to int)) error {
		for i, char := range text {
			if chars.has(char) {
				yield(i, i+utf8.RuneLen(char))
			}
		}
		return nil
	})
}

// cut makes a splitter of regions. invert exchanges matches and the rest. The first two behaviors decide for each
// region alone. The others join neighbours, so they hold a piece back until the region after it is known.
func cut(find regions, how behavior, invert bool) splitter {
	if how == isolated || how == removed {
		return func(piece string, first bool, yield func(string, bool)) error {
			return find(piece, func(from, to int, match bool) {
				if how == isolated || match == invert {
					yield(piece[from:to], first && from == 0)
				}
			})
		}
	}
	// joined says whether a region belongs to the piece of the one before.
	joined := map[behavior]func(before, match bool) bool{
		contiguous:         func(before, match bool) bool { return match == before },
		mergedWithPrevious: func(before, match bool) bool { return match && !before },
		mergedWithNext:     func(before, match bool) bool { return before && !match },
	}[how]
	return func(piece string, first bool, yield func(string, bool)) error {
		// A piece is held back until it is known where it ends.
		start, before, any := 0, false, false
		err := find(piece, func(from, _ int, match bool) {
			match = match != invert
			if any && !joined(before, match) {
				yield(piece[start:from], first && start == 0)
				start = from
			}
			before, any = match, true
		})
		if any {
			yield(piece[start:], first && start == 0)
		}
		return err
	}
}
