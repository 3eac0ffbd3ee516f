//go:build !linux

package engines

import (
	"os"
	"os/exec"
	"time"

	"github.com/hetc/hetc/internal/diag"
)

// Nothing is measured on other systems, where restrict fails first; the rest is here for building.
func group(*exec.Cmd) {}

func endGroup(*exec.Cmd) {}

// restrict fails: a comparison needs both engines on the same cores.
func restrict(cores []int) (undo func() bool, err error) {
	return nil, diag.New(diag.ClassUnavailable, "run on cores %v: this system does not let a program choose", cores)
}

// Cores cannot be told on this system.
func Cores() ([]int, error) {
	return nil, diag.New(diag.ClassUnavailable,
		"engines are compared on linux only: elsewhere a process cannot be kept on the same cores")
}

func peakBytes(*os.ProcessState, int64) int64 { return 0 }

func residentPeak(int) int64 { return 0 }

func floor() int64 { return 0 }

func cpuTime(*os.ProcessState) time.Duration { return 0 }

func ownTime() (time.Duration, bool) { return 0, false }
