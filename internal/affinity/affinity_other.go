//go:build !linux

package affinity

// allowed returns all cores: this system does not tell which a process may use.
func allowed() []int { return numbered() }

// Pin would restrict the calling thread, which is locked to its goroutine for good, to one core; this system
// has no call for it, and nothing happens.
func Pin(int) error { return nil }
