//go:build !hetc_static

package native

import "io"

// checkWhole leaves the check to the system, which refuses truncated files by itself.
func checkWhole(io.ReaderAt, int64) error { return nil }
