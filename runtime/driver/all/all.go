// Package all knows the list of drivers a program links.
package all

import (
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
)

// Drivers returns every driver but the simulator, in a fixed order.
func Drivers() []driver.Driver { return append([]driver.Driver{host.New()}, libraries()...) }
