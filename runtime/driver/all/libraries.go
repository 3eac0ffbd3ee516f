//go:build !hetc_static

package all

import (
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/ort"
)

// libraries are the drivers of shared libraries.
func libraries() []driver.Driver { return []driver.Driver{ort.New()} }
