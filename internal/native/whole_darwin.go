//go:build !hetc_static

package native

import "os"

// checkWhole leaves the check to the system, which refuses truncated files by itself.
func checkWhole(*os.File, int64) error { return nil }
