package cli

import (
	"math"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
)

// ParseSize reads the value of a flag.
func ParseSize(flag, text string) (int64, error) {
	bytes, err := unit.ParseBytes(text)
	if err != nil || bytes < 0 {
		return 0, diag.New(diag.ClassUsage, "--%s %q: want a size such as 8GiB", flag, text)
	}
	return int64(bytes), nil
}

// ParseTime reads the value of a flag; "" is none.
func ParseTime(flag, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	sec, err := unit.ParseSeconds(text)
	if err != nil || sec <= 0 {
		return 0, diag.New(diag.ClassUsage, "--%s %q: want a time such as 60s or 10m", flag, text)
	}
	return time.Duration(min(float64(sec)*float64(time.Second), math.MaxInt64/2)), nil
}
