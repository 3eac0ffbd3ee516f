package diag

import (
	"sort"
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
	w := fold(word)
	best, bestDist := "", max(1, len(w)/3)+1
	for _, c := range sorted {
		if c == "" || len(c) > maxNearest {
			continue
		}
		if d := distance(w, fold(c)); d < bestDist {
			best, bestDist = c, d
		}
	}
	return best
}

// DidYouMean is the sentence of a hint: `did you mean "x"?` when candidates are near word or contain
// it, else the list of them ("want one of ..."), or "" when there are none.
func DidYouMean(word string, candidates []string) string {
	if n := Nearest(word, candidates); n != "" {
		return `did you mean "` + n + `"?`
	}
	sorted := append([]string(nil), candidates...)
	sort.Strings(sorted)
	if near := containing(word, sorted); len(near) > 0 {
		last := len(near) - 1
		if last == 0 {
			return `did you mean "` + near[0] + `"?`
		}
		return `did you mean "` + strings.Join(near[:last], `", "`) + `" or "` + near[last] + `"?`
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

// containing returns the candidates that word is a part of, none when it is too short to tell or
// when they are too many to help.
func containing(word string, candidates []string) []string {
	const shortest, most = 3, 4
	w := fold(word)
	if len(w) < shortest || len(w) > maxNearest {
		return nil
	}
	var out []string
	for _, c := range candidates {
		if strings.Contains(fold(c), w) {
			out = append(out, c)
		}
	}
	if len(out) > most {
		return nil
	}
	return out
}

func fold(s string) string {
	return strings.ReplaceAll(strings.ToLower(s), "-", "_")
}

// distance is the restricted Damerau-Levenshtein distance in bytes.
func distance(a, b string) int {
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}
