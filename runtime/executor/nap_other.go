//go:build !linux

package executor

import "time"

func sharpen() {}

func nap(d time.Duration) { time.Sleep(d) }
