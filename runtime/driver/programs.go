package driver

import "context"

// Identity names a device and what drives it, as far as results and compiled programs depend on them. Machine paths and
// times are no part of it.
type Identity struct {
	Device string // what the device calls itself
	Driver string // name and version of the vendor's driver or library
}

// Identified is implemented by drivers that know which device a processor is before they open it.
type Identified interface {
	// Identity is that of the processor that Open would open. A driver without its library returns an *Unavailable.
	Identity(ctx context.Context, config Config) (Identity, error)
}
