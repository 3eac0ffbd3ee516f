//go:build !linux

package affinity

// Named calls work: threads have no names here by which a library's could be found.
func Named(_ string, work func() error) error { return work() }

// PinNamed finds no threads.
func PinNamed(string, []int) (count int, err error) { return 0, nil }
