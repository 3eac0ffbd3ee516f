//go:build !amd64

package shalanes

// kinds returns the numbers of pieces that this processor can hash at once: none.
func kinds() []int { return nil }

// blocks16 is never called: Available is false here.
func blocks16(*[8][Width]uint32, *[Width][]byte, int) {
	panic("BUG: digests side by side on a processor without them")
}

// blocks2 is never called either.
func blocks2(*[2][8]uint32, *byte, *byte, int) {
	panic("BUG: digests side by side on a processor without them")
}
