package tokenizer

import (
	_ "embed"
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

// set is characters as spans in order, with a gap between neighbours.
type set []span

// tables are the sets of unicodeData.
type tables struct{ sets map[string]set }

// eachTable calls one of the functions for each table of unicodeData.
func eachTable(spans func(name string, chars set), texts func(name string, text map[rune]string)) {
	data := unicodeData
	number := func() int {
		value, shift := 0, 0
		for i := 0; ; i++ {
			value |= int(data[i]&0x7f) << shift
			if shift += 7; data[i] < 0x80 {
				data = data[i+1:]
				return value
			}
		}
	}
	for len(data) > 0 {
		name := data[1 : 1+data[0]]
		data = data[1+data[0]:]
		entries, next := number(), 0
		if name == "NFD" || name == "NFKD" {
			var table map[rune]string
			if texts != nil {
				table = make(map[rune]string, entries)
			}
			for range entries {
				char := next + number()
				size := number()
				if table != nil {
					table[rune(char)] = data[:size]
				}
				data, next = data[size:], char+1
			}
			if table != nil {
				texts(name, table)
			}
			continue
		}
		var chars set
		if spans != nil {
			chars = make(set, 0, entries)
		}
		for range entries {
			lo := next + number()
			hi := lo + number()
			if next = hi + 1; spans != nil {
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

var unicodeTables = sync.OnceValue(func() *tables {
	t := &tables{sets: map[string]set{}}
	eachTable(func(name string, s set) { t.sets[name] = s }, nil)
	for _, group := range []string{"L", "M", "N", "P", "S", "Z", "C"} {
		var all set
		for name, s := range t.sets {
			if len(name) == 2 && name[:1] == group {
				all = append(all, s...)
			}
		}
		t.sets[group] = all.normal()
	}
	// Neither surrogates nor what is not assigned occurs in a table.
	var assigned set
	for _, group := range []string{"L", "M", "N", "P", "S", "Z", "C"} {
		assigned = append(assigned, t.sets[group]...)
	}
	t.sets["Cn"] = assigned.normal().negate()
	t.sets["C"] = append(slices.Clone(t.sets["C"]), t.sets["Cn"]...).normal()
	// In brackets, \w has no superscripts and fractions of Latin-1, to the reference.
	t.sets["word in class"] = t.sets["word"].and(set{{0xb2, 0xb3}, {0xb9, 0xb9}, {0xbc, 0xbe}}.negate())
	t.sets["space"] = set{{'\t', '\r'}, {' ', ' '}, {0x85, 0x85}, {0xa0, 0xa0}, {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}}
	return t
})

// propertyNames are the long names of general categories.
var propertyNames = map[string]string{
	"letter": "L", "uppercaseletter": "Lu", "lowercaseletter": "Ll", "titlecaseletter": "Lt", "modifierletter": "Lm", "otherletter": "Lo",
	"mark": "M", "nonspacingmark": "Mn", "spacingmark": "Mc", "enclosingmark": "Me", "number": "N", "decimalnumber": "Nd", "letternumber": "Nl", "othernumber": "No",
	"punctuation": "P", "connectorpunctuation": "Pc", "dashpunctuation": "Pd", "openpunctuation": "Ps", "closepunctuation": "Pe", "initialpunctuation": "Pi",
	"finalpunctuation": "Pf", "otherpunctuation": "Po", "symbol": "S", "mathsymbol": "Sm", "currencysymbol": "Sc", "modifiersymbol": "Sk", "othersymbol": "So",
	"separator": "Z", "spaceseparator": "Zs", "lineseparator": "Zl", "paragraphseparator": "Zp", "other": "C", "control": "Cc", "format": "Cf", "privateuse": "Co", "unassigned": "Cn",
}

// property is the set of \p{name}: a general category or a script.
func property(name string) (set, bool) {
	key := strings.ToLower(strings.NewReplacer(" ", "", "_", "", "-", "").Replace(name))
	if short, ok := propertyNames[key]; ok {
		key = short
	}
	if key != "" {
		key = strings.ToUpper(key[:1]) + key[1:]
	}
	chars, ok := unicodeTables().sets[key]
	return chars, ok
}

func (s set) has(char rune) bool {
	i := sort.Search(len(s), func(i int) bool { return s[i].hi >= char })
	return i < len(s) && s[i].lo <= char
}

// normal sorts s and joins spans that touch.
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

// isSpace is the property White_Space.
func isSpace(char rune) bool {
	if char < 0x80 {
		return char == ' ' || '\t' <= char && char <= '\r'
	}
	return unicodeTables().sets["space"].has(char)
}
