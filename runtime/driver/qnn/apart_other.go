//go:build !unix

package qnn

import (
	"io"
	"os/exec"
)

var errPipe = io.ErrClosedPipe

// apart does nothing where processes have no groups.
func apart(*exec.Cmd) {}
