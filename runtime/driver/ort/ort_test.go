package ort_test

import (
	"fmt"
	"testing"

	compile "github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/ort"
)

func TestMain(m *testing.M) {
	require.Deps()
	m.Run()
}

// The driver passes the suite of all drivers, on one core and on all of them.
func TestConformance(t *testing.T) {
	selections := affinity.Selections()
	first, last := selections[0], selections[len(selections)-1]
	factory := drivertest.Factory{Driver: ort.New(), Compiler: compile.New(), Activations: 1e-6}

	t.Run(first.Select, func(t *testing.T) {
		one := factory
		one.Config = driver.Config{Select: first.Select}
		if len(selections) > 1 {
			one.Others = []driver.Config{{Select: fmt.Sprint(selections[1].Cores[0])}}
		}
		drivertest.Run(t, one)
	})
	if len(selections) == 1 {
		return
	}
	t.Run(last.Select, func(t *testing.T) {
		all := factory
		all.Config = driver.Config{Select: last.Select}
		drivertest.Run(t, all)
	})
}
