//go:build !linux

package executor

import "time"

func sharpen() {}

func nap() { time.Sleep(napTime) }
