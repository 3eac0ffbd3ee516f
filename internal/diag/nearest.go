package diag

import (
	"sort"
	"strconv"
	"strings"
)

// maxNearest bounds the words Nearest compares, since its cost is the product of their lengths.
const maxNearest = 128

// Nearest returns the candidate a reader most likely meant by word, or "" when none is close:
// at most one edit (insertion, deletion, substitution, swap of neighbours) per three characters,
// ignoring case and taking '-' and '_' as equal. Ties go to the alphabetically first.
func Nearest(word string, candidates []string) string {
	if word == "" || len(word) > maxNearest {
		return ""
	}
	sorted := append([]string(nil), candidates...)
	sort.Strings(sorted)
	folded := fold(word)
	best, bestDist := "", max(1, len(folded)/3)+1
	for _, candidate := range sorted {
		if candidate == "" || len(candidate) > maxNearest {
			continue
		}
		if far := distance(folded, fold(candidate)); far < bestDist {
			best, bestDist = candidate, far
		}
	}
	return best
}

// DidYouMean returns the sentence of a hint: `did you mean "x"?` when candidates are near word or contain
// it, else the list of them ("want one of ..."), or "" when there are none.
func DidYouMean(word string, candidates []string) string {
	if nearest := Nearest(word, candidates); nearest != "" {
		return `did you mean "` + nearest + `"?`
	}
	sorted := append([]string(nil), candidates...)
	sort.Strings(sorted)
	if near := containing(word, sorted); len(near) > 0 {
		return "did you mean " + OneOf(near) + "?"
	}
	if len(sorted) == 0 {
		return ""
	}
	const most = 24
	if len(sorted) > most {
		sorted = append(sorted[:most:most], "...")
	}
	return "want one of " + strings.Join(sorted, ", ")
}

// OneOf returns the words that an error wants, quoted, as a sentence lists them: `"a", "b" or "c"`. Empty ones, which
// stand for what may be left out, are not listed.
func OneOf[Word ~string](words []Word) string {
	var quoted []string
	for _, word := range words {
		if word != "" {
			quoted = append(quoted, strconv.Quote(string(word)))
		}
	}
	last := len(quoted) - 1
	if last < 1 {
		return strings.Join(quoted, "")
	}
	return strings.Join(quoted[:last], ", ") + " or " + quoted[last]
}

// containing returns the candidates that word is a part of, none when it is too short to tell or
// when they are too many to help.
func containing(word string, candidates []string) []string {
	const shortest, most = 3, 4
	folded := fold(word)
	if len(folded) < shortest || len(folded) > maxNearest {
		return nil
	}
	var out []string
	for _, candidate := range candidates {
		if strings.Contains(fold(candidate), folded) {
			out = append(out, candidate)
		}
	}
	if len(out) > most {
		return nil
	}
	return out
}

// fold makes words equal that differ in case, or in having - for _.
func fold(text string) string {
	return strings.ReplaceAll(strings.ToLower(text), "-", "_")
}

// distance returns the restricted Damerau-Levenshtein distance in bytes.
func distance(left, right string) int {
	prev2, prev, cur := make([]int, len(right)+1), make([]int, len(right)+1), make([]int, len(right)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(left); i++ {
		cur[0] = i
		for j := 1; j <= len(right); j++ {
			cost := 1
			if left[i-1] == right[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && left[i-1] == right[j-2] && left[i-2] == right[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(right)]
}
