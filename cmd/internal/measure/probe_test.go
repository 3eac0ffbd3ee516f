package measure

import (
	"context"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver"
)

// npu is a driver whose one device has no cores of this CPU.
type npu struct{ driver.Driver }

func (npu) Name() string { return "npu" }

func (npu) Devices(context.Context) ([]driver.Device, error) {
	return []driver.Device{{Select: "emulator", Description: "an emulator"}}, nil
}

func (npu) Open(context.Context, driver.Config) (driver.Processor, error) {
	panic("probe opens what it cannot describe")
}

// Probe describes cores. What else a driver drives, an emulator least of all, stays out of the SoC file.
func TestProbeLeavesOthersOut(t *testing.T) {
	err := opens(t.Context(), npu{})
	if err == nil || !strings.Contains(err.Error(), `driver "npu" offers no cores of this CPU: an emulator`) || diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("got %v", err)
	}
}
