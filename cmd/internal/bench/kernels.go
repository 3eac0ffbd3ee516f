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

func Kernels(ctx context.Context, s *cli.Streams, o *KernelsOptions) error {
	const mostRounds = 1000
	if o.Rounds < 1 || o.Rounds > mostRounds {
		return diag.New(diag.ClassUsage, "--rounds %d: want 1 to %d", o.Rounds, mostRounds)
	}
	best, err := kernel.ByName("")
	if err != nil {
		return err
	}
	sets := []string{best.Name}
	switch o.Kernels {
	case "":
	case "all":
		sets = nil
		for _, x := range kernel.Sets() {
			if x.Name != "reference" { // float64 arithmetic, for comparisons of values
				sets = append([]string{x.Name}, sets...)
			}
		}
	default:
		x, err := kernel.ByName(o.Kernels)
		if err != nil {
			return err
		}
		sets = []string{x.Name}
	}
	d := host.New()
	cores, err := benchCores(ctx, d, o.Cores)
	if err != nil {
		return err
	}
	po := profiler.KernelOptions{Driver: d, Compiler: compiler.New(), Sets: sets, Marked: kernel.Best().Name, Cores: cores, Rounds: o.Rounds, Seed: 1}
	line := s.Line(false)
	po.Progress = func(round int) { line.Bar("round", round, o.Rounds, "") }
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
	s.Printf("%s, cores %s, %d rounds\n", m.CPU, coreList(cores), o.Rounds)
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
	return s.Result(map[string]any{"cpu": m.CPU, "cores": cores, "rounds": o.Rounds, "kernels": list})
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
