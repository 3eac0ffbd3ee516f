//go:build !unix || solaris || illumos || aix

package cas

// Permissions are not in the mode there; a user's own cache directory is private by default.
func private(dir, root string) bool { return true }
