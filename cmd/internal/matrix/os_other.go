//go:build !unix || solaris || illumos || aix

package matrix

import (
	"errors"
	"os"
	"time"
)

func inode(string) (string, time.Time, bool) { return "", time.Time{}, false }

func lockDir(*os.File) (bool, error) { return false, errors.ErrUnsupported }
