//go:build !unix

package main

import "os/exec"

// group has no groups of processes to work with: on cancellation the command alone ends.
func group(*exec.Cmd) {}
