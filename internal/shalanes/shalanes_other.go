//go:build !amd64

package shalanes

// Available reports whether this processor computes Width digests at once.
func Available() bool { return false }

// blocks16 is never called: Available is false here.
func blocks16(*[8][Width]uint32, *[Width][]byte, int) {
	panic("BUG: digests side by side on a processor without them")
}
