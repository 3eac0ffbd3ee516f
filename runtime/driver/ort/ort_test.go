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

// The whole suite on one core and on all of them.
func TestConformance(t *testing.T) {
	all := affinity.Selections()
	for i, s := range []affinity.Selection{all[0], all[len(all)-1]} {
		if i > 0 && len(all) == 1 {
			break
		}
		t.Run(s.Select, func(t *testing.T) {
			f := drivertest.Factory{Driver: ort.New(), Compiler: compile.New(), Config: driver.Config{Select: s.Select}, Activations: 1e-6}
			if i == 0 && len(all) > 1 {
				f.Others = []driver.Config{{Select: fmt.Sprint(all[1].Cores[0])}}
			}
			drivertest.Run(t, f)
		})
	}
}
