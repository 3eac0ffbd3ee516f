package bundle

import (
	"strconv"
	"strings"
)

// isVersion reports whether s is one to eight dotted numbers without leading zeros.
func isVersion(s string) bool {
	n, rest := versionPrefix(s)
	return len(n) > 0 && rest == ""
}

// versionPrefix reads the dotted numbers that s starts with; libraries append build texts to
// their versions ("1.22.0+cuda", "3.0 pocl").
func versionPrefix(s string) (numbers []int64, rest string) {
	for len(numbers) < 8 {
		end := 0
		for end < len(s) && end < 10 && s[end] >= '0' && s[end] <= '9' {
			end++
		}
		if end == 0 || end > 1 && s[0] == '0' {
			return numbers, "." + s
		}
		n, _ := strconv.ParseInt(s[:end], 10, 64) // at most ten digits
		numbers, s = append(numbers, n), s[end:]
		if !strings.HasPrefix(s, ".") {
			return numbers, s
		}
		s = s[1:]
	}
	return numbers, "." + s
}

// compareVersions orders dotted numbers; missing ones count as 0.
func compareVersions(a, b []int64) int {
	for i := range max(len(a), len(b)) {
		var x, y int64
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if x != y {
			if x < y {
				return -1
			}
			return 1
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
