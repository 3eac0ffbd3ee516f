package tokenizer

import (
	_ "embed"
	"iter"
	"slices"
	"sort"
	"strings"
	"sync"
	"unicode/utf8"
)

// What the reference holds every character to be. It comes from the reference itself, not from package
// unicode, because the two follow different versions of Unicode, and the reference several at once: see
// testdata/unicode.py for the format and for how it is made.
//
//go:embed unicode.bin
var unicodeData string

// span is the characters lo to hi, both included.
type span struct{ lo, hi rune }

// set is characters as spans in order, with a gap between neighbours. Sets are shared: clone one
// before changing it.
type set []span

// tableReader reads unicodeData.
type tableReader struct{ data string }

// number reads a number of seven bits a byte, the lowest first.
func (r *tableReader) number() int {
	value, shift := 0, 0
	for i := 0; ; i++ {
		value |= int(r.data[i]&0x7f) << shift
		if shift += 7; r.data[i] < 0x80 {
			r.data = r.data[i+1:]
			return value
		}
	}
}

// take takes bytes as they are.
func (r *tableReader) take(size int) string {
	out := r.data[:size]
	r.data = r.data[size:]
	return out
}

// eachTable calls one of the functions for each table of unicodeData. Tables of a kind whose function is nil are
// skipped.
func eachTable(spans func(name string, chars set), texts func(name string, table map[rune]string)) {
	reader := &tableReader{unicodeData}
	for reader.data != "" {
		// a table: length and name, number of entries, entries as differences to the one before
		name := reader.take(int(reader.take(1)[0]))
		entries, next := reader.number(), 0
		if name == "NFD" || name == "NFKD" {
			table := map[rune]string{}
			for range entries {
				char := next + reader.number()
				text := reader.take(reader.number())
				next = char + 1
				if texts != nil {
					table[rune(char)] = text
				}
			}
			if texts != nil {
				texts(name, table)
			}
			continue
		}
		var chars set
		for range entries {
			lo := next + reader.number()
			hi := lo + reader.number()
			next = hi + 1
			if spans != nil {
				chars = append(chars, span{rune(lo), rune(hi)})
			}
		}
		if spans != nil {
			spans(name, chars)
		}
	}
}

// decompositions are full ones, without Hangul syllables; nfkd has those that differ from nfd.
var decompositions = sync.OnceValues(func() (nfd, nfkd map[rune]string) {
	eachTable(nil, func(name string, text map[rune]string) {
		if name == "NFD" {
			nfd = text
		} else {
			nfkd = text
		}
	})
	return nfd, nfkd
})

// unicodeSets are the sets of unicodeData by name, and those that follow from them.
var unicodeSets = sync.OnceValue(func() map[string]set {
	sets := map[string]set{}
	eachTable(func(name string, chars set) { sets[name] = chars }, nil)
	var assigned set
	for _, group := range []string{"L", "M", "N", "P", "S", "Z", "C"} {
		var all set
		for name, chars := range sets {
			if len(name) == 2 && name[:1] == group {
				all = append(all, chars...)
			}
		}
		sets[group] = all.normal()
		assigned = append(assigned, sets[group]...)
	}
	// Neither surrogates nor what is not assigned occurs in a table.
	sets["Cn"] = assigned.normal().negate()
	sets["C"] = append(slices.Clone(sets["C"]), sets["Cn"]...).normal()
	// In brackets, \w has no superscripts and fractions of Latin-1, to the reference.
	sets["word in class"] = sets["word"].and(set{{0xb2, 0xb3}, {0xb9, 0xb9}, {0xbc, 0xbe}}.negate())
	sets["space"] = set{
		{'\t', '\r'}, {' ', ' '}, {0x85, 0x85}, {0xa0, 0xa0}, {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
		{0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
	}
	return sets
})

// propertyNames are the long names of general categories.
var propertyNames = map[string]string{
	"letter": "L", "uppercaseletter": "Lu", "lowercaseletter": "Ll", "titlecaseletter": "Lt", "modifierletter": "Lm",
	"otherletter": "Lo",
	"mark":        "M", "nonspacingmark": "Mn", "spacingmark": "Mc", "enclosingmark": "Me",
	"number": "N", "decimalnumber": "Nd", "letternumber": "Nl", "othernumber": "No",
	"punctuation": "P", "connectorpunctuation": "Pc", "dashpunctuation": "Pd", "openpunctuation": "Ps",
	"closepunctuation": "Pe", "initialpunctuation": "Pi", "finalpunctuation": "Pf", "otherpunctuation": "Po",
	"symbol": "S", "mathsymbol": "Sm", "currencysymbol": "Sc", "modifiersymbol": "Sk", "othersymbol": "So",
	"separator": "Z", "spaceseparator": "Zs", "lineseparator": "Zl", "paragraphseparator": "Zp",
	"other": "C", "control": "Cc", "format": "Cf", "privateuse": "Co", "unassigned": "Cn",
}

// property returns the set of \p{name}: a general category or a script.
func property(name string) (set, bool) {
	key := strings.ToLower(strings.NewReplacer(" ", "", "_", "", "-", "").Replace(name))
	if short, ok := propertyNames[key]; ok {
		key = short
	}
	if key != "" {
		key = strings.ToUpper(key[:1]) + key[1:]
	}
	chars, ok := unicodeSets()[key]
	return chars, ok
}

// all returns the characters of s, in order.
func (s set) all() iter.Seq[rune] {
	return func(yield func(rune) bool) {
		for _, run := range s {
			for char := run.lo; char <= run.hi; char++ {
				if !yield(char) {
					return
				}
			}
		}
	}
}

// has reports whether a character is in the set, by binary search.
func (s set) has(char rune) bool {
	i := sort.Search(len(s), func(i int) bool { return s[i].hi >= char })
	return i < len(s) && s[i].lo <= char
}

// normal sorts s and joins spans that touch, in place.
func (s set) normal() set {
	slices.SortFunc(s, func(left, right span) int { return int(left.lo - right.lo) })
	out := s[:0]
	for _, run := range s {
		if last := len(out); last > 0 && run.lo <= out[last-1].hi+1 {
			out[last-1].hi = max(out[last-1].hi, run.hi)
			continue
		}
		out = append(out, run)
	}
	return out
}

// negate returns the set of all other characters.
func (s set) negate() set {
	out := set{}
	next := rune(0)
	for _, run := range s {
		if run.lo > next {
			out = append(out, span{next, run.lo - 1})
		}
		next = run.hi + 1
	}
	if next <= utf8.MaxRune {
		out = append(out, span{next, utf8.MaxRune})
	}
	return out
}

// and returns the set of what both have.
func (s set) and(other set) set {
	out := set{}
	for i, j := 0, 0; i < len(s) && j < len(other); {
		if lo, hi := max(s[i].lo, other[j].lo), min(s[i].hi, other[j].hi); lo <= hi {
			out = append(out, span{lo, hi})
		}
		if s[i].hi < other[j].hi {
			i++
		} else {
			j++
		}
	}
	return out
}

// isSpace reports whether a character has the property White_Space.
func isSpace(char rune) bool {
	if char < 0x80 {
		return char == ' ' || '\t' <= char && char <= '\r'
	}
	return unicodeSets()["space"].has(char)
}
