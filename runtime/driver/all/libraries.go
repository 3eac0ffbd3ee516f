//go:build !hetc_static

package all

import (
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/opencl"
	"github.com/hetc/hetc/runtime/driver/ort"
	"github.com/hetc/hetc/runtime/driver/qnn"
)

// libraries returns the drivers of shared libraries.
func libraries() []driver.Driver { return []driver.Driver{ort.New(), opencl.New(), qnn.New()} }

// Worker reports whether a process with these arguments, after its name, is one that a driver
// started, and returns its whole work. A program that offers the drivers does that work instead of
// its own.
func Worker(args []string) (work func() error, ok bool) { return qnn.Work, qnn.Worker(args) }
