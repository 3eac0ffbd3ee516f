//go:build !linux

package host

func allowedCores() []int { return numberedCores() }

// pin does nothing: this system has no call for it.
func pin(int) error { return nil }
