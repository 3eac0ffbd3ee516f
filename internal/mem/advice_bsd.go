//go:build darwin || freebsd

package mem

// adviceOf is empty: these systems know none of the advice.
var adviceOf map[Advice]int
