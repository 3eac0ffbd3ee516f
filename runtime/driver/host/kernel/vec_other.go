//go:build !amd64

package kernel

// vectorSets returns nil: vector sets exist for amd64 only.
func vectorSets() []*Set { return nil }
