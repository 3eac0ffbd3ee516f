package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	compiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

func newBenchKernels(s *cli.Streams) *cobra.Command {
	var o kernelsOptions
	c := &cobra.Command{
		Use:   "kernels",
		Short: "measure the host's kernels against what this CPU allows",
		Long: `Measures matrix products and attention of the host driver, as plans run them, each between two readings of
what bounds it: multiply-adds on registers alone in the kernel's own instruction set, or reading memory that
lies in no cache. Everything is visited once a round in random order on one pinned core; the share is the
median of the rounds' shares, with its 95 % interval. With two cores or more the products are also run on all
of them, and what they gain over one core is compared with what the register-only loop gains.

Another hardware thread of the same core, which in a virtual machine may be a stranger's, halves the instructions
that a core begins. That is read beside every visit, and rounds in which it was so do not count, where 9 are left:
the table says how many count, and what the median of all is.

A mark is what the kernels of the best instruction set shall reach; its line says so when they do not. Leave
the machine alone meanwhile.

` + cli.ExitCodes,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runBenchKernels(c.Context(), s, &o) },
	}
	f := c.Flags()
	f.StringVar(&o.kernels, "kernels", "", "kernel set, or all; default the best one")
	f.StringVar(&o.cores, "cores", "", "cores to use, such as 0,1; default the first two")
	f.IntVar(&o.rounds, "rounds", 15, "measured rounds, after one that is not counted")
	return c
}

// restless is by how much the median of a register-only loop may be uncertain on a machine at rest.
const restless = 0.1

type kernelsOptions struct {
	kernels, cores string
	rounds         int
}

func runBenchKernels(ctx context.Context, s *cli.Streams, o *kernelsOptions) error {
	const mostRounds = 1000
	if o.rounds < 1 || o.rounds > mostRounds {
		return diag.New(diag.ClassUsage, "--rounds %d: want 1 to %d", o.rounds, mostRounds)
	}
	best, err := kernel.ByName("")
	if err != nil {
		return err
	}
	sets := []string{best.Name}
	switch o.kernels {
	case "":
	case "all":
		sets = nil
		for _, x := range kernel.Sets() {
			if x.Name != "reference" { // float64 arithmetic, for comparisons of values
				sets = append([]string{x.Name}, sets...)
			}
		}
	default:
		x, err := kernel.ByName(o.kernels)
		if err != nil {
			return err
		}
		sets = []string{x.Name}
	}
	d := host.New()
	cores, err := benchCores(ctx, d, o.cores)
	if err != nil {
		return err
	}
	po := profiler.KernelOptions{Driver: d, Compiler: compiler.New(), Sets: sets, Marked: kernel.Best().Name, Cores: cores, Rounds: o.rounds, Seed: 1}
	line := s.Line(false)
	po.Progress = func(round int) { line.Bar("round", round, o.rounds, "") }
	list, err := profiler.Kernels(ctx, po)
	line.End()
	if err != nil {
		return err
	}
	for i := range list {
		// Arithmetic on registers alone takes the same time whenever nobody else is there.
		if k := &list[i]; k.Of == "" && k.Unit == "Gop/s" && k.Spread > restless {
			s.Warnf("the %s of kernels %s on %d cores moved by %.0f %% between rounds: other programs were running, and the shares are not to be relied on", k.What, k.Set, k.Cores, 100*k.Spread)
			break
		}
	}
	m := profiler.ThisMachine(cores, best.Name)
	s.Printf("%s, cores %s, %d rounds\n", m.CPU, coreList(cores), o.rounds)
	var rows [][]string
	for i := range list {
		k := &list[i]
		row := []string{k.Set, strconv.Itoa(k.Cores), k.What, k.Shape, fmt.Sprintf("%.4g", k.Rate), k.Unit, "", "", "", strconv.Itoa(k.Rounds), "", ""}
		if k.Of != "" {
			row[6], row[7], row[8] = k.Of, percent(k.Share), fmt.Sprintf("%s..%s", percent(k.Low), percent(k.High))
			row[10] = percent(k.AllShare)
		}
		if k.Mark > 0 {
			row[11] = percent(k.Mark)
			if !k.Reached() {
				row[11] += " not reached"
			}
		}
		rows = append(rows, row)
	}
	s.Table([]string{"kernels", ">cores", "what", "shape", ">rate", "unit", "of", ">share %", ">95 % interval", ">rounds", ">of all %", "mark %"}, rows)
	return s.Result(map[string]any{"cpu": m.CPU, "cores": cores, "rounds": o.rounds, "kernels": list})
}

func percent(x float64) string { return fmt.Sprintf("%.1f", 100*x) }

func coreList(cores []int) string {
	var out []string
	for _, c := range cores {
		out = append(out, strconv.Itoa(c))
	}
	return strings.Join(out, ",")
}

// benchCores reads --cores: usable cores that follow each other, as processors are made of; "" is the first two.
func benchCores(ctx context.Context, d driver.Driver, text string) ([]int, error) {
	devices, err := d.Devices(ctx)
	if err != nil {
		return nil, err
	}
	var usable []int
	for _, x := range devices {
		if len(x.Cores) == 1 {
			usable = append(usable, x.Cores[0])
		}
	}
	if text == "" {
		return usable[:min(2, len(usable))], nil
	}
	var cores []int
	for _, part := range strings.Split(text, ",") {
		n, err := strconv.Atoi(part)
		at := slices.Index(usable, n)
		if err != nil || at < 0 || len(cores) > 0 && (at == 0 || usable[at-1] != cores[len(cores)-1]) {
			return nil, diag.New(diag.ClassUsage, "--cores %q: want cores that follow each other, of %s", text, coreList(usable)).
				WithHint("for example --cores %s", coreList(usable[:min(2, len(usable))]))
		}
		cores = append(cores, n)
	}
	return cores, nil
}
