//go:build hetc_static

package all

import "github.com/hetc/hetc/runtime/driver"

// libraries: a static program opens none.
func libraries() []driver.Driver { return nil }
