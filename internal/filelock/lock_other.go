//go:build !unix || solaris || illumos || aix

package filelock

import (
	"errors"
	"os"
)

const openFlags = 0

// lock says that this system has no locks that this package knows.
func lock(*os.File, bool) error { return errors.ErrUnsupported }
