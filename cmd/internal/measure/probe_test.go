package measure

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hetc/hetc/cmd/internal/cli"
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
	if err == nil || !strings.Contains(err.Error(), `driver "npu" offers no cores of this CPU: an emulator`) ||
		diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("got %v", err)
	}
}

// Probe does not replace a file that is no SoC file: notes, or a SoC file with a mistake of its author.
func TestProbeKeepsOtherFiles(t *testing.T) {
	ui := &cli.Streams{Tool: "hetc", Out: io.Discard, Err: io.Discard}
	for _, text := range []string{"my notes\n", "schema: hetc.soc/1\nname: phone\nprocesors: []\n"} {
		path := filepath.Join(t.TempDir(), "soc.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := Probe(t.Context(), ui, &ProbeOptions{Output: path, Name: "host"})
		if err == nil || diag.ClassOf(err) != diag.ClassInput ||
			!strings.Contains(err.Error(), "is there, and no SoC file") {
			t.Errorf("got %v, want an error that names the file", err)
		}
		if left, err := os.ReadFile(path); err != nil || string(left) != text {
			t.Errorf("the file is %q now (%v), want %q", left, err, text)
		}
	}
}
