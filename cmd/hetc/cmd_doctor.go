package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/doctor"
	"github.com/hetc/hetc/runtime/driver/all"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/solver/highs"
)

func newDoctor(s *cli.Streams) *cobra.Command {
	var model string
	c := &cobra.Command{
		Use:   "doctor [--model DIR]",
		Short: "check this machine, this build and a model, and say what works",
		Long: `Checks what hetc needs of this machine: build, CPU and kernels, cores, memory, drivers with their devices,
catalogs, directories and disk space, limits, timer and clock, and whether the machine is idle enough to be
measured. With --model it checks a model instead: whether it is read, which config keys and tensors mean
nothing here, whether every weight is a number, and whether its tokenizer is understood.

Each line is ok, a note (it works, but not as well as it could) or a problem, with the way out. The exit code
is that of the first problem, 0 when there is none.

` + cli.ExitCodes,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("model") {
				if err := cli.Required(c, "model"); err != nil {
					return err
				}
			}
			return runDoctor(c.Context(), s, model)
		},
	}
	c.Flags().StringVar(&model, "model", "", "check this model directory or file instead of the machine")
	return c
}

// solverFindings says which engines of solve are there. Without HiGHS the exact engine does all it can alone.
func solverFindings() []doctor.Finding {
	var out []doctor.Finding
	for _, e := range []struct {
		name, without string
		locate        func() (string, error)
	}{{"engine highs", "solve has the exact engine alone", highs.Locate}, {"engine highs-native", "not needed: engine highs does the same in twice the time", highs.LocateNative}} {
		f := doctor.Finding{Check: e.name, Status: doctor.OK}
		where, err := e.locate()
		switch {
		case err == nil:
			f.Found = fmt.Sprintf("HiGHS %s, %s", highs.Version, where)
		case e.name == "engine highs":
			f.Status, f.Found, f.Hint = doctor.Note, "not there: "+e.without, "make deps fetches it; hetc drivers says where it was looked for"
		default:
			f.Found = "not there; " + e.without
		}
		out = append(out, f)
	}
	return out
}

func runDoctor(ctx context.Context, s *cli.Streams, model string) error {
	var list []doctor.Finding
	if model != "" {
		var err error
		if list, err = doctor.CheckModel(ctx, model); err != nil {
			return err
		}
	} else {
		dir, err := cacheDir("")
		if err != nil {
			dir = ""
		} else if dir, err = filepath.Abs(dir); err != nil {
			return err
		}
		list = doctor.Machine{Version: cli.Version, Drivers: all.Drivers(), Kernels: host.Kernels(), CacheDir: dir}.Check(ctx)
		list = append(list, solverFindings()...)
	}
	rows := make([][]string, 0, len(list))
	for _, f := range list {
		lines := wrap(strings.Fields(f.Found), "")
		if f.Hint != "" {
			lines = append(lines, wrap(strings.Fields("-> "+f.Hint), "")...)
		}
		for i, l := range lines {
			row := []string{"", "", l}
			if i == 0 {
				row[0], row[1] = string(f.Status), f.Check
			}
			rows = append(rows, row)
		}
	}
	s.Table([]string{"", "check", "found"}, rows)
	err := doctor.Err(list)
	if rerr := s.Result(map[string]any{"ok": err == nil, "checks": list}); rerr != nil {
		return rerr
	}
	return err
}
