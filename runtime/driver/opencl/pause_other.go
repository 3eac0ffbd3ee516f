//go:build !linux

package opencl

import "time"

// pause sleeps for a moment.
func pause() { time.Sleep(20 * time.Microsecond) }
