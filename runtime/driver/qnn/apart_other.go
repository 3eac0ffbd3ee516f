//go:build !unix

package qnn

import (
	"io"
	"os/exec"
)

var errPipe = io.ErrClosedPipe

func apart(*exec.Cmd) {}
