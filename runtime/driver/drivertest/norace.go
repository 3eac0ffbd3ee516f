//go:build !race

package drivertest

// Race is whether the race detector is on, which makes arithmetic ten times slower: suites that compute on one lane
// find nothing more under it.
const Race = false
