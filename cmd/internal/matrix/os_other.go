//go:build !unix || solaris || illumos || aix

package matrix

import "time"

func inode(string) (string, time.Time, bool) { return "", time.Time{}, false }
