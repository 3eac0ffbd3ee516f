package bundle

import (
	"cmp"
	"strconv"
	"strings"
)

// isVersion reports whether text is one to eight dotted numbers without leading zeros.
func isVersion(text string) bool {
	numbers, rest := versionPrefix(text)
	return len(numbers) > 0 && rest == ""
}

// versionPrefix reads the dotted numbers that text starts with; libraries append build texts to
// their versions ("1.22.0+cuda", "3.0 pocl").
func versionPrefix(text string) (numbers []int64, rest string) {
	for len(numbers) < 8 {
		end := 0
		for end < len(text) && end < 10 && text[end] >= '0' && text[end] <= '9' {
			end++
		}
		if end == 0 || end > 1 && text[0] == '0' {
			return numbers, "." + text
		}
		number, _ := strconv.ParseInt(text[:end], 10, 64) // at most ten digits
		numbers, text = append(numbers, number), text[end:]
		if !strings.HasPrefix(text, ".") {
			return numbers, text
		}
		text = text[1:]
	}
	return numbers, "." + text
}

// compareVersions orders dotted numbers; missing ones count as 0.
func compareVersions(a, b []int64) int {
	for i := range max(len(a), len(b)) {
		var left, right int64
		if i < len(a) {
			left = a[i]
		}
		if i < len(b) {
			right = b[i]
		}
		if order := cmp.Compare(left, right); order != 0 {
			return order
		}
	}
	return 0
}

// versionLess reports whether version have sorts before want; ok is false when have does not
// start with a number.
func versionLess(have, want string) (less, ok bool) {
	h, _ := versionPrefix(have)
	w, _ := versionPrefix(want)
	return compareVersions(h, w) < 0, len(h) > 0
}
