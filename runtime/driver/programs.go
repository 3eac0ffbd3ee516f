package driver

import (
	"context"
	"crypto/sha256"
)

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

// Prebuilder is implemented by drivers whose artifacts hold the sources of programs, which the device's own compiler
// builds: when an artifact is loaded, or ahead of time.
type Prebuilder interface {
	Driver
	// WithPrograms is the same driver, whose processors ask for the binary of a program before they build it.
	WithPrograms(Programs) Driver
	// Prebuild builds every program that the processor would build to load an artifact, from source, in the order of
	// the artifact.
	Prebuild(ctx context.Context, config Config, code []byte) ([]Prebuilt, error)
}

// ProgramKey says what a binary was built for and from. It is of no use to another device or driver.
type ProgramKey struct {
	Identity
	Source [sha256.Size]byte // SHA-256 of the source
}

// Prebuilt is a built program.
type Prebuilt struct {
	Key    ProgramKey
	Binary []byte
}

// Programs keeps binaries of programs. Processors call it from several goroutines.
type Programs interface {
	// Binary is a program's verified binary, nil where there is none.
	Binary(key ProgramKey) []byte
	// Built takes the binary of a program that was built from source.
	Built(key ProgramKey, binary []byte)
	// Strict refuses to build from source.
	Strict() bool
}
