//go:build !linux

package qnn

import "os/exec"

// limitMemory sets no limit on other systems.
func limitMemory(int64) error { return nil }

// ownProcessGroup does nothing where processes have no groups.
func ownProcessGroup(*exec.Cmd) {}
