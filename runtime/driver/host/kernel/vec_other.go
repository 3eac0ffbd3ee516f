//go:build !amd64 && !arm64

package kernel

// measuredSets returns nil: vector sets exist for amd64 and arm64 only.
func measuredSets() []*Set { return nil }

// namedSets returns nil, as measuredSets does.
func namedSets() []*Set { return nil }

// lacking is "": there is nothing to lack.
func lacking(string) string { return "" }

// refused is "": no set needs more than the CPU.
func refused() string { return "" }
