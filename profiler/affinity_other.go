//go:build !linux

package profiler

// pin does nothing: the operating system places threads.
func pin(int) error { return nil }
