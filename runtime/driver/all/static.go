//go:build hetc_static

package all

import "github.com/hetc/hetc/runtime/driver"

// libraries: a static program opens none.
func libraries() []driver.Driver { return nil }

// Worker: no driver of a static program starts processes.
func Worker([]string) (work func() error, ok bool) { return nil, false }
