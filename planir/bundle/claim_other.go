//go:build !unix || solaris || illumos || aix

package bundle

import (
	"errors"
	"os"
)

// claims says that claim works on this system.
const claims = false

func claim(*os.File) error { return errors.ErrUnsupported }
