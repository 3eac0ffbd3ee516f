//go:build !amd64

package kernel

// otherTiles is empty where attention has one form.
func otherTiles() []*Set { return nil }
