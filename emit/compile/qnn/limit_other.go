//go:build !linux

package qnn

import "os/exec"

func limitMemory(int64) error { return nil }

func ownProcessGroup(*exec.Cmd) {}
