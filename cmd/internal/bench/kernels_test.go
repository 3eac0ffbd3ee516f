package bench

import (
	"context"
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
)

// machineOf offers cores and nothing else.
type machineOf struct {
	driver.Driver
	cores []int
}

func (m machineOf) Devices(context.Context) (out []driver.Device, err error) {
	for _, c := range m.cores {
		out = append(out, driver.Device{Cores: []int{c}})
	}
	if len(m.cores) > 1 {
		out = append(out, driver.Device{Cores: m.cores})
	}
	return out, nil
}

func TestBenchCores(t *testing.T) {
	m := machineOf{host.New(), []int{0, 1, 2, 5, 6}}
	for text, want := range map[string][]int{"": {0, 1}, "0": {0}, "5": {5}, "1,2": {1, 2}, "2,5,6": {2, 5, 6},
		"0,1,2,5,6": m.cores} {
		if got, err := benchCores(context.Background(), m, text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"3", "0,2", "1,0", "0,0", "0,", ",", "a", "-1", "0-1"} {
		if got, err := benchCores(context.Background(), m, text); err == nil || diag.ClassOf(err) != diag.ClassUsage ||
			len(diag.HintsOf(err)) == 0 {
			t.Errorf("%q: %v, %v, want an error of usage with a hint", text, got, err)
		}
	}
	if got, err := benchCores(context.Background(), machineOf{host.New(), []int{3}}, ""); err != nil ||
		!slices.Equal(got, []int{3}) {
		t.Errorf("one core: %v, %v", got, err)
	}
}
