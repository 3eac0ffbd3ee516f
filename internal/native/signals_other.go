//go:build !linux || hetc_static || !(amd64 || arm64)

package native

import "syscall"

// KeepSignals calls work. What libraries do with signals was looked into on Linux alone.
func KeepSignals(work func()) { work() }

// Taken does not know what libraries handle.
func Taken() []syscall.Signal { return nil }
