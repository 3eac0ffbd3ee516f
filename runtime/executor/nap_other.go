//go:build !linux

package executor

import "time"

func minimizeTimerSlack() {}

func nap(d time.Duration) { time.Sleep(d) }

func threadTime() int64 { return 0 }
