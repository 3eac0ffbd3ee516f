package kernel

// vectorSets returns the sets of vector instructions that this CPU has, slowest first.
func vectorSets() []*Set { return nil }
