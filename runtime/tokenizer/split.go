package tokenizer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// splitter cuts a piece of text into smaller ones. first says that the piece begins the text.
type splitter func(piece string, first bool, yield func(piece string, first bool)) error

const knownSplitters = "ByteLevel, Digits, Metaspace, Punctuation, Sequence, Split, Whitespace, WhitespaceSplit"

// newSplitters reads a pre_tokenizer part as the steps it takes. raw says that the last step leaves words as
// they are, and that their bytes are to be read in the byte alphabet.
func newSplitters(p part) (steps []splitter, raw bool, err error) {
	found, err := readSplitters(p, 0)
	if err != nil {
		return nil, false, err
	}
	for i, step := range found {
		steps = append(steps, step.split)
		if step.byteLevel && i == len(found)-1 {
			raw = true
		} else if step.byteLevel {
			steps = append(steps, func(piece string, first bool, yield func(string, bool)) error {
				yield(inAlphabet(piece), first)
				return nil
			})
		}
	}
	return steps, raw, nil
}

// readSplitter is a step; byteLevel says that its pieces go over to the byte alphabet.
type readSplitter struct {
	split     splitter
	byteLevel bool
}

// gpt2 is the pattern of ByteLevel.
const gpt2 = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

func readSplitters(raw part, depth int) ([]readSplitter, error) {
	if raw.isNull() {
		return nil, nil
	}
	one := func(split splitter) ([]readSplitter, error) { return []readSplitter{{split, false}}, nil }
	var fields struct {
		Type             string  `json:"type"`
		PreTokenizers    []part  `json:"pretokenizers"`
		AddPrefixSpace   *bool   `json:"add_prefix_space"`
		TrimOffsets      bool    `json:"trim_offsets"`
		UseRegex         *bool   `json:"use_regex"`
		Pattern          part    `json:"pattern"`
		Behavior         string  `json:"behavior"`
		Invert           bool    `json:"invert"`
		IndividualDigits *bool   `json:"individual_digits"`
		Replacement      string  `json:"replacement"`
		PrependScheme    *string `json:"prepend_scheme"`
		Split            *bool   `json:"split"`
		StrRep           *string `json:"str_rep"`
	}
	if err := raw.strict(&fields); err != nil {
		return nil, err
	}
	of := func(name string) set { return unicodeTables().sets[name] } // made when somebody needs one
	switch fields.Type {
	case "Sequence":
		return flatten(fields.PreTokenizers, depth, readSplitters)
	case "ByteLevel":
		if fields.AddPrefixSpace == nil {
			return nil, errors.New("ByteLevel does not say add_prefix_space")
		}
		return []readSplitter{{byteLevelSplitter(*fields.AddPrefixSpace, fields.UseRegex == nil || *fields.UseRegex), true}}, nil
	case "Split":
		text, pattern, err := readPattern(fields.Pattern)
		if err != nil {
			return nil, err
		}
		behavior, err := readBehavior(fields.Behavior)
		if err != nil {
			return nil, err
		}
		find := pattern.regions
		if pattern == nil {
			find = func(s string, yield func(from, to int, match bool)) error {
				at := 0
				for {
					offset := strings.Index(s[at:], text)
					if offset < 0 {
						break
					}
					if offset > 0 {
						yield(at, at+offset, false)
					}
					yield(at+offset, at+offset+len(text), true)
					at += offset + len(text)
				}
				if at < len(s) {
					yield(at, len(s), false)
				}
				return nil
			}
		}
		return one(cut(find, behavior, fields.Invert))
	case "Digits":
		if fields.IndividualDigits == nil {
			return nil, errors.New("Digits does not say individual_digits")
		}
		if *fields.IndividualDigits {
			return one(cut(characters(of("numeric")), isolated, false))
		}
		return one(cut(characters(of("numeric")), contiguous, false))
	case "Punctuation":
		if fields.Behavior == "" {
			fields.Behavior = "Isolated"
		}
		behavior, err := readBehavior(fields.Behavior)
		if err != nil {
			return nil, err
		}
		return one(cut(characters(of("punctuation")), behavior, false))
	case "WhitespaceSplit":
		return one(cut(characters(of("space")), removed, false))
	case "Whitespace": // \w+|[^\w\s]+ , what does not match is left out
		word := of("boundary")
		other := append(slices.Clone(word), of("space")...).normal().negate()
		c := &compiler{}
		start, err := c.add(nodeAlt{nodeLoop{nodeSet{word}, 1, -1, false}, nodeLoop{nodeSet{other}, 1, -1, false}}, c.emit(instruction{op: opMatch}))
		if err != nil {
			return nil, err
		}
		words, err := newAutomaton(c.program, start)
		return []readSplitter{{cut(words.regions, removed, true), false}}, err
	case "Metaspace":
		scheme := "always"
		if fields.PrependScheme != nil {
			scheme = *fields.PrependScheme
		}
		if fields.AddPrefixSpace != nil && !*fields.AddPrefixSpace && scheme != "never" {
			return nil, fmt.Errorf("add_prefix_space is false, but prepend_scheme is %q", clip(scheme))
		}
		split, err := metaspaceSplitter(fields.Replacement, scheme, fields.Split == nil || *fields.Split)
		return []readSplitter{{split, false}}, err
	}
	return nil, raw.unsupported(knownSplitters)
}

// gpt2Words takes a while to make, and text that is only decoded does not need it.
var gpt2Words = sync.OnceValue(func() splitter {
	a, err := compile(gpt2)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return cut(a.regions, isolated, false)
})

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

// metaspaceSplitter puts replacement in place of spaces, and in front as scheme says.
func metaspaceSplitter(replacement, scheme string, split bool) (splitter, error) {
	if utf8.RuneCountInString(replacement) != 1 {
		return nil, fmt.Errorf("replacement %q, want one character", clip(replacement))
	}
	if !slices.Contains([]string{"always", "first", "never"}, scheme) {
		return nil, fmt.Errorf("prepend_scheme %q, want always, first or never", clip(scheme))
	}
	matches, err := literal(replacement)
	if err != nil {
		return nil, err
	}
	words := cut(matches.regions, mergedWithNext, false)
	return func(piece string, first bool, yield func(string, bool)) error {
		piece = strings.ReplaceAll(piece, " ", replacement)
		if (scheme == "always" || scheme == "first" && first) && !strings.HasPrefix(piece, replacement) {
			piece = replacement + piece
		}
		if split {
			return words(piece, first, yield)
		}
		yield(piece, first)
		return nil
	}, nil
}

// behavior is what becomes of the matches and of what is between them.
type behavior int

const (
	isolated           behavior = iota // each a piece
	removed                            // matches are left out
	mergedWithPrevious                 // a match belongs to what is before it
	mergedWithNext
	contiguous // neighbours of one kind are one piece
)

func readBehavior(name string) (behavior, error) {
	names := []string{"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"}
	i := slices.Index(names, name)
	if i < 0 {
		return 0, fmt.Errorf("behavior %q, want one of %s", clip(name), strings.Join(names, ", "))
	}
	return behavior(i), nil
}

// regions divides a text, which it yields from left to right without a gap, into matches and other pieces.
type regions func(text string, yield func(from, to int, match bool)) error

// regions are the matches of a, and what is between them.
func (a *automaton) regions(text string, yield func(from, to int, match bool)) error {
	last := 0
	err := a.matches(text, func(from, to int) {
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

// characters are the regions whose matches are single characters of s.
func characters(chars set) regions {
	return func(text string, yield func(from, to int, match bool)) error {
		last := 0
		for i, char := range text {
			if !chars.has(char) {
				continue
			}
			if i > last {
				yield(last, i, false)
			}
			last = i + utf8.RuneLen(char)
			yield(i, last, true)
		}
		if last < len(text) {
			yield(last, len(text), false)
		}
		return nil
	}
}

// cut makes a splitter of regions; invert exchanges matches and the rest.
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
	return func(piece string, first bool, yield func(string, bool)) error {
		// A piece is held back until it is known where it ends. before: what the region before was.
		start, before, any := 0, false, false
		err := find(piece, func(from, to int, match bool) {
			match = match != invert
			joined := false
			switch how {
			case contiguous:
				joined = match == before
			case mergedWithPrevious:
				joined = match && !before
			case mergedWithNext:
				joined = before && !match
			}
			if any && !joined {
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
