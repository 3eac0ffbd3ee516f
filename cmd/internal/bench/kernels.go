package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/cmd/internal/cli"
	compiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// restless is the uncertainty of a register-only loop's median, as a share, above which the machine
// was not at rest.
const restless = 0.1

// KernelsOptions are the flags of hetc bench kernels.
type KernelsOptions struct {
	Kernels, Cores string
	Rounds         int
}

// Kernels measures the host's kernels against the rate of arithmetic or memory that bounds them on this CPU.
func Kernels(ctx context.Context, ui *cli.Streams, options *KernelsOptions) error {
	const mostRounds = 1000
	if options.Rounds < 1 || options.Rounds > mostRounds {
		return diag.New(diag.ClassUsage, "--rounds %d: want 1 to %d", options.Rounds, mostRounds)
	}
	best, err := kernel.ByName("")
	if err != nil {
		return err
	}
	sets, err := kernelSets(options.Kernels)
	if err != nil {
		return err
	}

	drv := host.New()
	cores, err := benchCores(ctx, drv, options.Cores)
	if err != nil {
		return err
	}

	measuring := profiler.KernelOptions{
		Driver: drv, Compiler: compiler.New(), Sets: sets, Marked: kernel.Best().Name, Cores: cores,
		Rounds: options.Rounds, Seed: 1,
	}

	// Measuring takes a minute or more, so each round moves a bar.
	line := ui.Line(false)
	measuring.Progress = func(round int) { line.Bar("round", round, options.Rounds, "") }
	list, err := profiler.Kernels(ctx, measuring)
	line.End()
	if err != nil {
		return err
	}

	for i := range list {
		// Arithmetic on registers alone takes the same time whenever the core is idle.
		bound := &list[i]
		if bound.Of == "" && bound.Unit == "Gop/s" && bound.Spread > restless {
			ui.Warnf("the %s of kernels %s on %d cores moved by %.0f %% between rounds: other programs were running, "+
				"and the shares are not to be relied on", bound.What, bound.Set, bound.Cores, 100*bound.Spread)
			break
		}
	}

	environment := profiler.ThisMachine(cores, best.Name)
	ui.Printf("%s, cores %s, %s\n", environment.CPU, coreList(cores), cli.Count(options.Rounds, "round"))
	showKernels(ui, list)
	return ui.Result(map[string]any{"cpu": environment.CPU, "cores": cores, "rounds": options.Rounds, "kernels": list})
}

// kernelSets returns the sets that --kernels names, "" for the best one, fastest first. "all" leaves
// the reference out, which computes in float64 for comparing values only.
func kernelSets(name string) (sets []string, err error) {
	if name != "all" {
		set, err := kernel.ByName(name)
		if err != nil {
			return nil, err
		}
		return []string{set.Name}, nil
	}

	for _, set := range kernel.Sets() {
		if set.Name != "reference" {
			sets = append([]string{set.Name}, sets...)
		}
	}
	return sets, nil
}

// showKernels prints the rate of each kernel, its share of the bound, and the share that it has to reach.
func showKernels(ui *cli.Streams, list []profiler.Kernel) {
	var rows [][]string
	for i := range list {
		measured := &list[i]
		of, share, interval, ofAll, mark := "", "", "", "", ""
		if measured.Of != "" {
			of, share, ofAll = measured.Of, percent(measured.Share), percent(measured.AllShare)
			interval = fmt.Sprintf("%s..%s", percent(measured.Low), percent(measured.High))
		}
		if measured.Mark > 0 {
			mark = percent(measured.Mark)
			if !measured.Reached() {
				mark += " not reached"
			}
		}
		rows = append(rows, []string{
			measured.Set, strconv.Itoa(measured.Cores), measured.What, measured.Shape,
			fmt.Sprintf("%.4g", measured.Rate), measured.Unit,
			of, share, interval, strconv.Itoa(measured.Rounds), ofAll, mark,
		})
	}

	ui.Table([]string{
		"kernels", ">cores", "what", "shape", ">rate", "unit", "of", ">share %", ">95 % interval", ">rounds",
		">of all %", "mark %",
	}, rows)
}

// percent formats a share of 1.
func percent(x float64) string { return fmt.Sprintf("%.1f", 100*x) }

// coreList formats cores as --cores takes them.
func coreList(cores []int) string {
	var out []string
	for _, c := range cores {
		out = append(out, strconv.Itoa(c))
	}
	return strings.Join(out, ",")
}

// benchCores parses --cores: usable cores that follow each other, as processors consist of them; ""
// is the first two.
func benchCores(ctx context.Context, d driver.Driver, text string) ([]int, error) {
	devices, err := d.Devices(ctx)
	if err != nil {
		return nil, err
	}

	var usable []int
	for _, device := range devices {
		// Devices of one core list the usable cores; the others are groups of these.
		if len(device.Cores) == 1 {
			usable = append(usable, device.Cores[0])
		}
	}

	if text == "" {
		return usable[:min(2, len(usable))], nil
	}

	var cores []int
	for part := range strings.SplitSeq(text, ",") {
		core, err := strconv.Atoi(part)
		at := slices.Index(usable, core)
		if err != nil || at < 0 || len(cores) > 0 && (at == 0 || usable[at-1] != cores[len(cores)-1]) {
			return nil, diag.New(diag.ClassUsage, "--cores %q: want cores that follow each other, of %s", text,
				coreList(usable)).
				WithHint("for example --cores %s", coreList(usable[:min(2, len(usable))]))
		}
		cores = append(cores, core)
	}
	return cores, nil
}
