package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/emit/compile/qnn"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/all"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/socs"
)

// compilers are the compilers this build has, for a plan's processors on soc.
func compilers(soc *socs.SoC) []driver.Compiler {
	out := []driver.Compiler{host.New(), ort.New(), qnn.New(qnn.Options{Cache: compiledCache(), Now: time.Now})}
	if soc != nil && soc.Simulated() {
		out = append(out, sim.NewCompiler(soc))
	}
	return out
}

// compiledCache is the folder of what vendors' compilers made, empty where there is no place for it.
func compiledCache() string {
	dir, err := cacheDir("")
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "qnn")
}

// drivers are those that execute for real, and the simulation of soc if it is simulated.
func drivers(soc *socs.SoC) []driver.Driver {
	out := all.Drivers()
	if soc != nil && soc.Simulated() {
		out = append(out, sim.New(soc))
	}
	return out
}

// socOf returns the SoC a plan is for: the file or name given, or for a simulated plan the catalog's.
// A SoC with another digest than the plan's is refused.
func socOf(p *planir.Plan, given string) (*socs.SoC, error) {
	name := given
	if name == "" {
		if !p.SoC.Simulated {
			return nil, nil
		}
		name = p.SoC.Name
	}
	soc, err := socs.Open(name)
	if err != nil && given == "" {
		return nil, diag.New(diag.ClassOf(err), "find the machine the plan was made for: %w", err).WithHint("give the SoC file the plan was solved with: --soc FILE")
	}
	if err != nil {
		return nil, err
	}
	digest, err := soc.Digest()
	if err != nil {
		return nil, err
	}
	if digest != p.SoC.Digest {
		return nil, diag.New(diag.ClassInput, "soc %q has digest %.12s, and the plan was made for %q with %.12s", name, digest, p.SoC.Name, p.SoC.Digest).
			WithHint("give the SoC file the plan was solved with (--soc), or solve again")
	}
	return soc, nil
}

// newRun is hetrun with the simulation beside it.
func newRun(s *cli.Streams) *cobra.Command {
	var soc string
	c := runcmd.New(s, "run", true, func(p *planir.Plan) ([]driver.Driver, error) {
		x, err := socOf(p, soc)
		return drivers(x), err
	})
	c.Flags().StringVar(&soc, "soc", "", "SoC file of a simulated plan whose SoC is not in the catalog")
	return c
}

func newSocs(s *cli.Streams) *cobra.Command {
	c := &cobra.Command{Use: "socs", Short: "list and show SoCs", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	list := &cobra.Command{Use: "list", Short: "list the catalog (simulated SoCs)", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var rows [][]string
			var docs []any
			for _, name := range socs.Catalog() {
				x, err := socs.Open(name)
				if err != nil {
					return err
				}
				var procs []string
				for _, p := range x.Processors {
					procs = append(procs, p.Name)
				}
				target := ""
				if npu := x.TargetNPU(); npu != nil {
					target = npu.Target.Driver
				}
				rows = append(rows, []string{name, strings.Join(procs, " "), cmp.Or(target, "-"), fmt.Sprint(len(x.Assumptions())), firstSentence(x.Description)})
				docs = append(docs, map[string]any{"name": name, "processors": procs, "target": target, "assumptions": len(x.Assumptions()), "description": x.Description})
			}
			s.Table([]string{"soc", "processors", "target", ">assumed", "<what"}, rows)
			return s.Result(docs)
		}}
	list.Long = list.Short + ". Descriptions are cut to a sentence here; hetc socs show has them whole.\n\n" + cli.ExitCodes
	show := &cobra.Command{Use: "show SOC", Short: "show every number of a SoC with its source", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			x, err := socs.Open(args[0])
			if err != nil {
				return err
			}
			var rows [][]string
			for _, n := range x.Numbers() {
				rows = append(rows, []string{n.Path, n.Value, n.Kind, n.Text})
			}
			s.Printf("%s: %s\n", x.Name, x.Description)
			s.Table([]string{"value", ">number", "source", "<where"}, rows)
			return s.Result(x)
		}}
	c.AddCommand(list, show)
	return c
}

func firstSentence(text string) string {
	if first, _, more := strings.Cut(text, ". "); more {
		return first + "."
	}
	return text
}
