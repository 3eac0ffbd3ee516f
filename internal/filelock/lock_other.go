//go:build !unix || solaris || illumos || aix

package filelock

import (
	"errors"
	"os"
)

const openFlags = 0

func lock(*os.File, bool) error { return errors.ErrUnsupported }
