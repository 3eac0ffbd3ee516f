//go:build amd64 && !linux

package kernel

import "errors"

// permitTiles knows how Linux is asked only.
func permitTiles() error { return errors.ErrUnsupported }
