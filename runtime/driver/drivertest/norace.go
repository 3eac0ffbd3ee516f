//go:build !race

package drivertest

import "math"

const mostVariants = math.MaxInt
