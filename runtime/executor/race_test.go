//go:build race

package executor_test

// raceEnabled: the race detector makes arithmetic ten times slower, and finds what it finds in a few models.
const raceEnabled = true
