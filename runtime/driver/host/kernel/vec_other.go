//go:build !amd64 && !arm64

package kernel

// vectorSets returns nil: vector sets exist for amd64 and arm64 only.
func vectorSets() []*Set { return nil }
