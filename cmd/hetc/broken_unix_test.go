//go:build unix

package main

import (
	"syscall"

	"github.com/hetc/hetc/runtime/driver/host"
)

func mkfifo(path string) error { return syscall.Mkfifo(path, 0o644) }

func hostFingerprint() string { return host.Fingerprint() }
