//go:build race

package drivertest

// mostVariants is how many operators of a kind are computed under the race detector, which makes the definitions in double
// precision ten times slower, and finds what it finds in a few.
const mostVariants = 12
