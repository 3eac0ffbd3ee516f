package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/measure"
	"github.com/hetc/hetc/cmd/internal/solving"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/socs"
)

func newProbe(s *cli.Streams) *cobra.Command {
	var out, name string
	var force bool
	var with []string
	c := &cobra.Command{
		Use:   "probe -o soc.yaml",
		Short: "describe this machine as a SoC file",
		Long: `Finds this machine's processors, caches and memory, and measures peak rates, bandwidths and hand-overs (a few
seconds; leave the machine alone meanwhile). A file that already describes this kind of machine is kept
unless --force is given, because its measurements belong to it.

The processors are cores as the driver host uses them. --driver NAME also describes those that another driver
makes of the same cores (hetc drivers lists them): plans may then mix both, and profiling takes longer.

` + cli.ExitCodes,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := cli.Required(c, "output"); err != nil {
				return err
			}
			if err := wholefile.Writable(out); err != nil {
				return err
			}
			if !force {
				if old, err := socs.Open(out); err == nil && old.Fingerprint == host.Fingerprint() {
					return cli.Kept(s, out, "it describes this machine; --force probes again")
				} else if !errors.Is(err, os.ErrNotExist) && err == nil {
					return diag.New(diag.ClassInput, "probe: %q describes another machine", out).WithHint("write elsewhere, or replace it with --force")
				}
			}
			o := profiler.ProbeOptions{Name: name, Fingerprint: host.Fingerprint()}
			usable, err := measure.OtherDrivers(c.Context(), with)
			if err != nil {
				return err
			}
			for _, d := range usable {
				if slices.Contains(with, d.Name()) {
					o.Others = append(o.Others, d)
				}
			}
			if s.Terminal() {
				o.Note = s.Notef
			}
			soc, err := profiler.Probe(c.Context(), host.New(), o)
			if err != nil {
				return err
			}
			if old, err := socs.Open(out); err == nil && !force && old.Fingerprint == host.Fingerprint() {
				return cli.Kept(s, out, "another probe wrote it meanwhile; --force probes again")
			}
			if err := socs.Write(out, soc); err != nil {
				return err
			}
			s.Printf("%s: %s\n", out, soc.Description)
			var rows [][]string
			for _, p := range soc.Processors {
				rows = append(rows, []string{p.Name, p.Kind, fmt.Sprint(p.Cores), measure.PeakText(p.PeakGops["i8"]), measure.PeakText(p.PeakGops["f32"]), fmt.Sprintf("%.1f", p.BandwidthGBps)})
			}
			s.Table([]string{"processor", "kind", "cores", ">int8 Gop/s", ">f32 Gop/s", ">read GB/s"}, rows)
			for _, j := range soc.Joint {
				s.Printf("%s together: %.1f GB/s\n", strings.Join(j.Processors, " + "), j.BandwidthGBps)
			}
			for _, d := range usable {
				if !slices.Contains(with, d.Name()) {
					s.Printf("driver %s is usable here too: --driver %s describes its processors\n", d.Name(), d.Name())
				}
			}
			return s.Result(soc)
		},
	}
	f := c.Flags()
	f.StringVarP(&out, "output", "o", "", "SoC file to write")
	f.StringVar(&name, "name", "host", "name of the SoC")
	f.BoolVar(&force, "force", false, "replace an existing file")
	f.StringSliceVar(&with, "driver", nil, "also describe the processors of this driver, such as ort; may be repeated")
	return c
}

func newProfile(s *cli.Streams) *cobra.Command {
	var o measure.ProfileOptions
	c := &cobra.Command{
		Use:   "profile (--soc soc.yaml | --target NAME) --model DIR -o rec.jsonl",
		Short: "measure the model's operator shapes on the real processors",
		Long: `Measures every weight shape of the model at every number of rows a plan may need, alone and beside other
processors, with the operators between, bandwidths and hand-overs. Every sample is kept. The record grows
by whole lines: after a kill or an interruption --resume goes on, and at most the running measurements are
lost. --budget measures what matters most first and says what was skipped; what no plan can do without is
measured although the time is over. With --resume, what was skipped comes first. Every operator is visited in each of
--rounds, so that all meet the same moments of a machine whose speed changes; more rounds can be added with
--resume. --resume --flagged also measures anew what is flagged, because the machine was busy; the newer measurement
counts when it is better. On a catalog SoC times are simulated, and the record says so.

--compiler-only --target NAME measures no time: the compiler of the device's NPU is asked about the product of every weight at one row, the
buckets and batches, and the lengths of prompts with the multiples of 8 and 32 rows above them. What it says (bytes, the buffer that
it spills to, what several lengths share, or that it refuses) is recorded as compiler facts, for hetc solve; times are never computed from
them. The record may be one of measurements of the same SoC (--resume), or one of its own. Models of the catalog get random
weights. make deps-qnn fetches Qualcomm's compiler.

--held-out N also measures N operators at row counts that are not sampled, for hetc fit to judge its
predictions by; they are never fitted.

` + cli.ExitCodes,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if o.SoC, err = solving.SoCOrTarget(c, o.SoC, o.Target); err != nil {
				return err
			}
			if err := cli.Required(c, "model"); err != nil {
				return err
			}
			if !o.DryRun {
				if err := cli.Required(c, "output"); err != nil {
					return err
				}
			}
			if o.CompilerOnly {
				return measure.CompilerFacts(c, s, &o)
			}
			return measure.Profile(c.Context(), s, &o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.SoC, "soc", "", "SoC file or catalog name")
	f.StringVar(&o.Target, "target", "", "instead of --soc: measure what solve --target needs of this SoC")
	f.StringVar(&o.Model, "model", "", "model directory or catalog name")
	f.StringVar(&o.Workload, "workload", "", "workload: its buckets and schemes are measured")
	f.StringVarP(&o.Out, "output", "o", "", "record to write")
	f.StringVar(&o.Budget, "budget", "", "time to spend, e.g. 60s or 10m; default as long as it takes")
	f.BoolVar(&o.Resume, "resume", false, "go on with an existing record")
	f.BoolVar(&o.Flagged, "flagged", false, "with --resume: also measure anew what is flagged (noisy, drift, few-samples)")
	f.BoolVar(&o.CompilerOnly, "compiler-only", false, "measure nothing: record what the target's compiler says about every graph")
	f.BoolVar(&o.DryRun, "dry-run", false, "list what would be measured")
	f.IntVar(&o.Rounds, "rounds", profiler.Rounds, "visits to every operator: fewer are faster and less certain")
	f.IntVar(&o.HeldOut, "held-out", 0, "measure this many operators for judging predictions")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the order of measurements and of the held-out operators")
	return c
}

func newFit(s *cli.Streams) *cobra.Command {
	var soc, rec, out string
	var noisy bool
	c := &cobra.Command{
		Use:   "fit --soc soc.yaml --record rec.jsonl -o costs.yaml",
		Short: "fit latency models to a record",
		Long: `Fits one latency model per processor and kind of operator and writes them as costs, so that solve needs no
refit. Shows how well the models predict measurements they have not seen: those of profile --held-out where
the record has them, and by five-fold cross-validation. Held-out operators beyond the samples (in rows, or in the shape
of the weight) count by themselves: there predictions are the roofline's, with wide intervals. Where there are any, or
the record was imported, it names the operators whose measurement would narrow the intervals most.

A record of which most measurements are flagged noisy or drift is refused, because nothing better is there to rest on;
--accept-noisy fits it all the same.

` + cli.ExitCodes,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := cli.Required(c, "soc", "record", "output"); err != nil {
				return err
			}
			if err := wholefile.Writable(out); err != nil {
				return err
			}
			machine, set, costs, err := measure.OpenCosts(soc, rec)
			if err != nil {
				return err
			}
			if err := measure.Steady(s, set, rec, noisy); err != nil {
				return err
			}
			if set.Truncated {
				s.Warnf("%s: the last line was cut off and is not used", rec)
			}
			doc := map[string]any{"file": out, "measurements": set.Len(), "families": len(costs.Families), "simulated": costs.Simulated, "imported": costs.Imported}
			var rows [][]string
			say := func(what string, q roofline.Quality) {
				rows = append(rows, []string{what, fmt.Sprint(q.N), fmt.Sprintf("%.1f %%", 100*q.MAPE), fmt.Sprintf("%.1f %%", 100*q.Worst()), fmt.Sprintf("%.0f %%", 100*q.Within10), fmt.Sprintf("%.0f %%", 100*q.Within15), fmt.Sprintf("%.0f %%", 100*q.Covered)})
				doc[strings.ReplaceAll(what, " ", "_")] = q
			}
			var misses []roofline.Miss
			if q, err := roofline.Evaluate(costs, set.HeldOut()); err == nil {
				misses = q.Misses
				say("held_out", q)
				if beyond := q.Beyond(); beyond.N > 0 {
					say("held_out within samples", q.Within())
					say("held_out beyond samples", beyond)
				}
			}
			if err := c.Context().Err(); err != nil {
				return fmt.Errorf("fit: %w", err)
			}
			if q, err := roofline.CrossValidate(machine, set.Training(), 5, costs); err == nil {
				say("cross_validated", q)
			}
			if err := c.Context().Err(); err != nil {
				return fmt.Errorf("fit: %w", err)
			}
			same, err := measure.WriteCosts(out, costs)
			if err != nil {
				return err
			}
			if same {
				s.Printf("%s: unchanged (same record)\n", out)
				doc["unchanged"] = true
			} else {
				cli.Wrote(s, out, "%d models from %d measurements%s", len(costs.Families), set.Len(), measure.ImportedNote(set))
			}
			s.Table([]string{"predictions", ">n", ">mean error", ">worst", ">within 10 %", ">within 15 %", ">in interval"}, rows)
			doc["products"] = measure.ShowProducts(s, costs)
			doc["wanted"] = measure.ShowWanted(s, costs, misses)
			return s.Result(doc)
		},
	}
	f := c.Flags()
	f.StringVar(&soc, "soc", "", "SoC file or catalog name")
	f.StringVar(&rec, "record", "", "record of hetc profile")
	f.StringVarP(&out, "output", "o", "", "costs file to write")
	measure.AcceptNoisy(f, &noisy)
	return c
}
