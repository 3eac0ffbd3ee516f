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

// restless is by how much the median of a register-only loop may be uncertain on a machine at rest.
const restless = 0.1

type KernelsOptions struct {
	Kernels, Cores string
	Rounds         int
}

func Kernels(ctx context.Context, ui *cli.Streams, options *KernelsOptions) error {
	const mostRounds = 1000
	if options.Rounds < 1 || options.Rounds > mostRounds {
		return diag.New(diag.ClassUsage, "--rounds %d: want 1 to %d", options.Rounds, mostRounds)
	}
	best, err := kernel.ByName("")
	if err != nil {
		return err
	}
	sets := []string{best.Name}
	switch options.Kernels {
	case "":
	case "all":
		sets = nil
		for _, set := range kernel.Sets() {
			if set.Name != "reference" { // float64 arithmetic, for comparisons of values
				sets = append([]string{set.Name}, sets...)
			}
		}
	default:
		set, err := kernel.ByName(options.Kernels)
		if err != nil {
			return err
		}
		sets = []string{set.Name}
	}
	drv := host.New()
	cores, err := benchCores(ctx, drv, options.Cores)
	if err != nil {
		return err
	}
	po := profiler.KernelOptions{Driver: drv, Compiler: compiler.New(), Sets: sets, Marked: kernel.Best().Name, Cores: cores, Rounds: options.Rounds, Seed: 1}
	line := ui.Line(false)
	po.Progress = func(round int) { line.Bar("round", round, options.Rounds, "") }
	list, err := profiler.Kernels(ctx, po)
	line.End()
	if err != nil {
		return err
	}
	for i := range list {
		// Arithmetic on registers alone takes the same time whenever nobody else is there.
		if kernel := &list[i]; kernel.Of == "" && kernel.Unit == "Gop/s" && kernel.Spread > restless {
			ui.Warnf("the %s of kernels %s on %d cores moved by %.0f %% between rounds: other programs were running, and the shares are not to be relied on", kernel.What, kernel.Set, kernel.Cores, 100*kernel.Spread)
			break
		}
	}
	environment := profiler.ThisMachine(cores, best.Name)
	ui.Printf("%s, cores %s, %d rounds\n", environment.CPU, coreList(cores), options.Rounds)
	var rows [][]string
	for i := range list {
		kernel := &list[i]
		row := []string{kernel.Set, strconv.Itoa(kernel.Cores), kernel.What, kernel.Shape, fmt.Sprintf("%.4g", kernel.Rate), kernel.Unit, "", "", "", strconv.Itoa(kernel.Rounds), "", ""}
		if kernel.Of != "" {
			row[6], row[7], row[8] = kernel.Of, percent(kernel.Share), fmt.Sprintf("%s..%s", percent(kernel.Low), percent(kernel.High))
			row[10] = percent(kernel.AllShare)
		}
		if kernel.Mark > 0 {
			row[11] = percent(kernel.Mark)
			if !kernel.Reached() {
				row[11] += " not reached"
			}
		}
		rows = append(rows, row)
	}
	ui.Table([]string{"kernels", ">cores", "what", "shape", ">rate", "unit", "of", ">share %", ">95 % interval", ">rounds", ">of all %", "mark %"}, rows)
	return ui.Result(map[string]any{"cpu": environment.CPU, "cores": cores, "rounds": options.Rounds, "kernels": list})
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
	for _, device := range devices {
		if len(device.Cores) == 1 {
			usable = append(usable, device.Cores[0])
		}
	}
	if text == "" {
		return usable[:min(2, len(usable))], nil
	}
	var cores []int
	for _, part := range strings.Split(text, ",") {
		core, err := strconv.Atoi(part)
		at := slices.Index(usable, core)
		if err != nil || at < 0 || len(cores) > 0 && (at == 0 || usable[at-1] != cores[len(cores)-1]) {
			return nil, diag.New(diag.ClassUsage, "--cores %q: want cores that follow each other, of %s", text, coreList(usable)).
				WithHint("for example --cores %s", coreList(usable[:min(2, len(usable))]))
		}
		cores = append(cores, core)
	}
	return cores, nil
}
