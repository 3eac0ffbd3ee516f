//go:build unix

package wholefile

import (
	"os"
	"syscall"
)

// openFlags keep an open from hanging on a pipe without a writer.
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK
