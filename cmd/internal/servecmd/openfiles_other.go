//go:build !unix

package servecmd

// mostFiles returns how many files this process may have open, 0 where that is unknown.
func mostFiles() int { return 0 }
