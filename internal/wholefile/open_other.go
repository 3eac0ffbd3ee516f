//go:build !unix

package wholefile

import "os"

const openFlags = os.O_RDONLY
