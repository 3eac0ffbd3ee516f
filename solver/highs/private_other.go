//go:build !unix

package highs

// private is true: a user's cache directory is the user's own by inherited permissions.
func private(string) bool { return true }
