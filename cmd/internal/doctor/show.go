package doctor

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/runtime/driver/all"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/solver/highs"
)

// solverFindings reports which engines of solve are available. Without HiGHS the exact engine
// solves what it can.
func solverFindings() []Finding {
	var out []Finding
	for _, engine := range []struct {
		name    string
		locate  func() (string, error)
		without Finding // where it is not there
	}{
		{
			name: "engine highs", locate: highs.Locate,
			without: Finding{Status: Note, Found: "not there: solve has the exact engine alone",
				Hint: "make deps fetches it; hetc drivers says where it was looked for"},
		},
		{
			name: "engine highs-native", locate: highs.LocateNative,
			without: Finding{Status: OK, Found: "not there; not needed: engine highs does the same in twice the time"},
		},
	} {
		finding := engine.without
		if where, err := engine.locate(); err == nil {
			finding = ok(engine.name, "HiGHS %s, %s", highs.Version, where)
		}
		finding.Check = engine.name
		out = append(out, finding)
	}
	return out
}

// Show prints the findings about this machine, or about a model, and returns the first problem as
// an error.
func Show(ctx context.Context, ui *cli.Streams, model string) error {
	var list []Finding
	if model != "" {
		var err error
		if list, err = checkModel(ctx, model); err != nil {
			return err
		}
	} else {
		dir, err := bindings.CacheDir("")
		if err != nil {
			dir = ""
		} else if dir, err = filepath.Abs(dir); err != nil {
			return err
		}
		machine := Machine{Version: cli.Version, Revision: cli.Revision(), Drivers: all.Drivers(),
			Kernels: host.Kernels(), Refused: host.RefusedKernels(), CacheDir: dir}
		list = machine.Check(ctx)
		list = append(append(list, solverFindings()...), selfTests("")...)
	}
	// long findings and hints wrap into several lines of the table
	rows := make([][]string, 0, len(list))
	for _, finding := range list {
		lines := cli.Wrap(strings.Fields(finding.Found), "")
		if finding.Hint != "" {
			lines = append(lines, cli.Wrap(strings.Fields("-> "+finding.Hint), "")...)
		}
		for i, line := range lines {
			row := []string{"", "", line}
			if i == 0 {
				row[0], row[1] = string(finding.Status), finding.Check
			}
			rows = append(rows, row)
		}
	}
	ui.Table([]string{"", "check", "found"}, rows)
	err := firstProblem(list)
	if rerr := ui.Result(map[string]any{"ok": err == nil, "checks": list}); rerr != nil {
		return rerr
	}
	return err
}
