//go:build !unix || solaris || illumos || aix

package accept

import "time"

// lock does nothing: of two processes that raise at the same time one may be forgotten until its bundle runs again.
func lock(string, time.Duration) (unlock func(), err error) { return func() {}, nil }
