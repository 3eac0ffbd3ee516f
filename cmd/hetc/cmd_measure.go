package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/all"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/workload"
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
					return kept(s, out, "it describes this machine; --force probes again")
				} else if !errors.Is(err, os.ErrNotExist) && err == nil {
					return diag.New(diag.ClassInput, "probe: %q describes another machine", out).WithHint("write elsewhere, or replace it with --force")
				}
			}
			o := profiler.ProbeOptions{Name: name, Fingerprint: host.Fingerprint()}
			usable, err := otherDrivers(c.Context(), with)
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
				return kept(s, out, "another probe wrote it meanwhile; --force probes again")
			}
			if err := socs.Write(out, soc); err != nil {
				return err
			}
			s.Printf("%s: %s\n", out, soc.Description)
			var rows [][]string
			for _, p := range soc.Processors {
				rows = append(rows, []string{p.Name, p.Kind, fmt.Sprint(p.Cores), peakText(p.PeakGops["i8"]), peakText(p.PeakGops["f32"]), fmt.Sprintf("%.1f", p.BandwidthGBps)})
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

// libraryVersions notes which version of a shared library the drivers of a SoC work with.
func libraryVersions(ctx context.Context, soc *socs.SoC, h *record.Header) error {
	for _, d := range all.Drivers() {
		described, ok := d.(driver.Described)
		if !ok || d.Name() == host.Name || !slices.ContainsFunc(soc.Processors, func(p socs.Processor) bool { return p.Driver == d.Name() }) {
			continue
		}
		l, err := described.Library(ctx)
		if err != nil {
			return err
		}
		if h.Environment.Drivers == nil {
			h.Environment.Drivers = map[string]string{}
		}
		h.Environment.Drivers[d.Name()] = l.Version
	}
	return nil
}

// otherDrivers are the drivers besides host that work here. Each of those asked for has to.
func otherDrivers(ctx context.Context, asked []string) (out []driver.Driver, err error) {
	var names []string
	for _, d := range all.Drivers() {
		names = append(names, d.Name())
		if d.Name() == host.Name {
			continue
		}
		if err := opens(ctx, d); err == nil {
			out = append(out, d)
		} else if slices.Contains(asked, d.Name()) {
			return nil, err
		}
	}
	for _, name := range asked {
		if name == host.Name || !slices.Contains(names, name) {
			return nil, diag.New(diag.ClassUsage, "--driver %q: want a driver besides host", name).WithHint("this program has %s", strings.Join(names, ", "))
		}
	}
	return out, nil
}

// opens reports why a driver's first device cannot be opened: a library that is there may not work on this machine.
func opens(ctx context.Context, d driver.Driver) error {
	devices, err := d.Devices(ctx)
	if err != nil || len(devices) == 0 {
		return err
	}
	if len(devices[0].Cores) == 0 {
		return diag.New(diag.ClassInput, "probe: driver %q offers no cores of this CPU: %s", d.Name(), devices[0].Description).
			WithHint("an NPU comes with the SoC file of its catalog entry (hetc socs list), not from probing; an emulator is none")
	}
	p, err := d.Open(ctx, driver.Config{Select: devices[0].Select})
	if err != nil {
		return err
	}
	return p.Close()
}

func peakText(gops float64) string {
	if gops == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", gops)
}

type profileOptions struct {
	soc, target, model, workload, out string
	budget                            string
	compilerOnly                      bool
	resume, flagged, dryRun           bool
	heldOut, rounds                   int
	seed                              uint64
}

func newProfile(s *cli.Streams) *cobra.Command {
	var o profileOptions
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
			if o.soc, err = socOrTarget(c, o.soc, o.target); err != nil {
				return err
			}
			if err := cli.Required(c, "model"); err != nil {
				return err
			}
			if !o.dryRun {
				if err := cli.Required(c, "output"); err != nil {
					return err
				}
			}
			if o.compilerOnly {
				return runCompilerOnly(c, s, &o)
			}
			return runProfile(c.Context(), s, &o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.soc, "soc", "", "SoC file or catalog name")
	f.StringVar(&o.target, "target", "", "instead of --soc: measure what solve --target needs of this SoC")
	f.StringVar(&o.model, "model", "", "model directory or catalog name")
	f.StringVar(&o.workload, "workload", "", "workload: its buckets and schemes are measured")
	f.StringVarP(&o.out, "output", "o", "", "record to write")
	f.StringVar(&o.budget, "budget", "", "time to spend, e.g. 60s or 10m; default as long as it takes")
	f.BoolVar(&o.resume, "resume", false, "go on with an existing record")
	f.BoolVar(&o.flagged, "flagged", false, "with --resume: also measure anew what is flagged (noisy, drift, few-samples)")
	f.BoolVar(&o.compilerOnly, "compiler-only", false, "measure nothing: record what the target's compiler says about every graph")
	f.BoolVar(&o.dryRun, "dry-run", false, "list what would be measured")
	f.IntVar(&o.rounds, "rounds", profiler.Rounds, "visits to every operator: fewer are faster and less certain")
	f.IntVar(&o.heldOut, "held-out", 0, "measure this many operators for judging predictions")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the order of measurements and of the held-out operators")
	return c
}

func readWorkload(path string) (*workload.Workload, error) {
	if path == "" {
		return workload.Default(), nil
	}
	return workload.Read(path)
}

// openPlanned opens a model, and tells what a plan of it for that workload needs to know; "" is the default workload.
func openPlanned(model, workloadFile string) (*models.Model, workload.Needs, error) {
	m, err := models.Open(model)
	if err != nil {
		return nil, workload.Needs{}, err
	}
	w, err := readWorkload(workloadFile)
	if err != nil {
		return nil, workload.Needs{}, errors.Join(err, m.Close())
	}
	needs, err := w.Needs(m.MaxContext)
	if err != nil {
		return nil, workload.Needs{}, errors.Join(err, m.Close())
	}
	return m, needs, nil
}

// parseTime reads the value of a flag; "" is none.
func parseTime(flag, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	sec, err := unit.ParseSeconds(text)
	if err != nil || sec <= 0 {
		return 0, diag.New(diag.ClassUsage, "--%s %q: want a time such as 60s or 10m", flag, text)
	}
	return time.Duration(min(float64(sec)*float64(time.Second), math.MaxInt64/2)), nil
}

func runProfile(ctx context.Context, s *cli.Streams, o *profileOptions) error {
	budget, err := parseTime("budget", o.budget)
	if err != nil {
		return err
	}
	if o.flagged && !o.resume {
		return diag.New(diag.ClassUsage, "--flagged needs --resume").WithHint("a new record has nothing that is flagged")
	}
	const mostHeldOut = 1000
	if o.heldOut < 0 || o.heldOut > mostHeldOut {
		return diag.New(diag.ClassUsage, "--held-out %d: want 0 to %d", o.heldOut, mostHeldOut)
	}
	const mostRounds = 100
	if o.rounds < 1 || o.rounds > mostRounds {
		return diag.New(diag.ClassUsage, "--rounds %d: want 1 to %d", o.rounds, mostRounds)
	}
	soc, err := socs.Open(o.soc)
	if err != nil {
		return err
	}
	if soc.Imported() {
		return diag.New(diag.ClassInput, "profile SoC %q: its times were measured elsewhere (imported), and no driver executes on its processors", soc.Name).
			WithHint("add rows to the table and import it again")
	}
	m, needs, err := openPlanned(o.model, o.workload)
	if err != nil {
		return err
	}
	defer m.Close()
	part := soc // what is measured of it
	if o.target != "" {
		if part, err = soc.Restricted(); err != nil {
			return err
		}
	}
	want := profiler.Want{Buckets: needs.Buckets, Batches: needs.Batches, Schemes: needs.On(part), MaxContext: needs.Context}
	requests, err := profiler.Requests(part, m, want)
	if err != nil {
		return err
	}
	if o.heldOut > 0 {
		held, err := profiler.HeldOut(part, m, want, requests, o.heldOut, o.seed)
		if err != nil {
			return err
		}
		requests = append(requests, held...)
	}
	if o.dryRun {
		return listRequests(s, requests, o.seed)
	}
	open := record.Create
	if o.resume {
		open = record.Resume
	}
	header, err := profiler.Header(soc, host.Fingerprint(), host.Kernels(), cli.Version, o.seed)
	if err != nil {
		return err
	}
	if err := libraryVersions(ctx, soc, &header); err != nil {
		return err
	}
	rec, err := open(o.out, header)
	if err != nil {
		return err
	}
	defer rec.Close()
	nothing := !o.flagged || len(profiler.Flagged(requests, rec.Set(), o.seed)) == 0
	if nothing && len(profiler.Pending(requests, rec.Set(), o.rounds, o.seed)) == 0 {
		return kept(s, o.out, fmt.Sprintf("all %d measurements are there", len(requests)))
	}
	po := profilerOptions(soc, o.seed)
	po.Budget, po.Rounds, po.Flagged = budget, o.rounds, o.flagged
	line := s.Line(false)
	if line != nil {
		po.Progress = func(p profiler.Progress) {
			line.BarLeft("profile", p.Done, p.Total, p.Left, p.Key)
		}
	}
	rep, err := profiler.Run(ctx, soc, requests, rec, po)
	line.End()
	if err != nil {
		if rec.Set().Len() == 0 { // there is nothing to resume
			return errors.Join(err, rec.Close(), os.Remove(o.out))
		}
		if errors.Is(err, context.Canceled) {
			err = diag.New(diag.ClassInterrupted, "profile: %d measurements of this run are in %q: %w", rep.Measured, o.out, err).
				WithHint("the same command with --resume goes on where it stopped")
		} else {
			s.Notef("%d measurements are in %q: the same command with --resume goes on", rec.Set().Len(), o.out)
		}
		return err
	}
	note := ""
	if soc.Simulated() {
		note = ", simulated"
	}
	s.Printf("%s: %d measured, %d reused, %d unsupported, %d skipped (out of time)%s\n", o.out, rep.Measured, rep.Present, len(rep.Refused), len(rep.Left), note)
	for _, w := range []struct{ flag, one, many string }{
		{record.Noisy, "measurement is noisy", "measurements are noisy"},
		{record.FewSamples, "measurement has few samples", "measurements have few samples"},
		{record.Drifted, "measurement drifted during the run", "measurements drifted during the run"},
	} {
		switch n := rep.Warnings[w.flag]; n {
		case 0:
		case 1:
			s.Warnf("1 %s (flag: %s)", w.one, w.flag)
		default:
			s.Warnf("%d %s (flag: %s)", n, w.many, w.flag)
		}
	}
	if len(rep.Left) > 0 {
		s.Notef("a larger --budget with --resume measures the rest")
	}
	refused := make([]map[string]string, len(rep.Refused))
	for i, r := range rep.Refused {
		refused[i] = map[string]string{"key": r.Key, "reason": r.Err.Error()}
	}
	return s.Result(map[string]any{"file": o.out, "measured": rep.Measured, "present": rep.Present, "refused": refused, "left": len(rep.Left), "warnings": rep.Warnings, "simulated": soc.Simulated()})
}

// profilerOptions bind what measures on soc.
func profilerOptions(soc *socs.SoC, seed uint64) profiler.Options {
	o := profiler.Options{Drivers: map[string]driver.Driver{}, Compilers: map[string]driver.Compiler{}, Seed: seed, Rounds: profiler.Rounds}
	for _, d := range drivers(soc) {
		o.Drivers[d.Name()] = d
	}
	for _, c := range compilers(soc) {
		o.Compilers[c.Name()] = c
	}
	return o
}

func listRequests(s *cli.Streams, requests []profiler.Request, seed uint64) error {
	pending := profiler.Pending(requests, record.NewSet(record.Header{}), 1, seed)
	slices.SortStableFunc(pending, func(a, b profiler.Request) int { return a.Priority - b.Priority })
	keys := make([]string, len(pending))
	for i := range pending {
		keys[i] = pending[i].Key()
		s.Printf("%d %s\n", pending[i].Priority, keys[i])
	}
	return s.Result(map[string]any{"measurements": keys})
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
			machine, set, costs, err := fit(soc, rec)
			if err != nil {
				return err
			}
			if err := steady(s, set, rec, noisy); err != nil {
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
			same, err := writeCosts(out, costs)
			if err != nil {
				return err
			}
			if same {
				s.Printf("%s: unchanged (same record)\n", out)
				doc["unchanged"] = true
			} else {
				wrote(s, out, "%d models from %d measurements%s", len(costs.Families), set.Len(), importedNote(set))
			}
			s.Table([]string{"predictions", ">n", ">mean error", ">worst", ">within 10 %", ">within 15 %", ">in interval"}, rows)
			doc["products"] = showProducts(s, costs)
			doc["wanted"] = showWanted(s, costs, misses)
			return s.Result(doc)
		},
	}
	f := c.Flags()
	f.StringVar(&soc, "soc", "", "SoC file or catalog name")
	f.StringVar(&rec, "record", "", "record of hetc profile")
	f.StringVarP(&out, "output", "o", "", "costs file to write")
	acceptNoisy(f, &noisy)
	return c
}

// importedNote says that times of a record are not hetc's, and whose they are.
func importedNote(set *record.Set) string {
	var from []string
	for _, x := range set.Header.Imported {
		from = append(from, fmt.Sprintf("%s (%s)", x.File, x.Source))
	}
	if from == nil {
		return ""
	}
	return ", measured elsewhere (imported) from " + strings.Join(from, ", ")
}

// showWanted names the operators whose measurement would narrow predictions most. Held-out operators say which are of
// interest; without any, an imported record is asked for the corners of its sizes, as nothing else will measure them.
func showWanted(s *cli.Streams, costs *roofline.Costs, held []roofline.Miss) []roofline.Wanted {
	const most = 5

	if held == nil && !costs.Imported {
		return nil
	}
	wanted := costs.Wanted(held, most)
	if len(wanted) == 0 {
		return nil
	}
	var rows [][]string
	for i := range wanted {
		w := &wanted[i]
		p := w.Predicted
		rows = append(rows, []string{w.Proc, w.Op.Key(), fmt.Sprintf("%.1f us", float64(p.NS)/1e3), fmt.Sprintf("%.1f..%.1f us", float64(p.LowNS)/1e3, float64(p.HighNS)/1e3)})
	}
	s.Table([]string{"to predict better, measure on", "operator", ">predicted", ">interval"}, rows)
	return wanted
}

// acceptNoisy is the flag of whatever makes a plan of measurements.
func acceptNoisy(f *pflag.FlagSet, value *bool) {
	f.BoolVar(value, "accept-noisy", false, "plan even if most measurements of the record are flagged noisy or drift")
}

// steady refuses a record of which most measurements are noisy, or warns where that is accepted.
func steady(s *cli.Streams, set *record.Set, name string, accept bool) error {
	err := set.Steady(name)
	if err == nil || !accept {
		return err
	}
	flagged, all := set.Noise()
	s.Warnf("%d of %d measurements in %s are noisy: the machine was busy, so do not rely on the predictions", flagged, all, name)
	return nil
}

// product is what was fitted to the matrix products of a processor in a scheme.
type product struct {
	Proc    string    `json:"proc"`
	Scheme  op.Scheme `json:"scheme"`
	Gops    float64   `json:"gops"`     // of large shapes
	GBps    float64   `json:"gbps"`     // of what is bound by memory
	RowStep int       `json:"row_step"` // latency is flat within so many rows; 1: it is linear in them
}

// showProducts tells the shape of each processor's latency: a straight line in the rows, or a staircase.
func showProducts(s *cli.Streams, costs *roofline.Costs) (doc []product) {
	var rows [][]string
	for _, f := range costs.Families {
		if f.Kind != op.MatMul || f.Bias {
			continue
		}
		x := product{f.Proc, f.Scheme, f.OpsPerNS, f.BytesPerNS, max(1, f.Step[0])}
		shape := "linear"
		if x.RowStep > 1 {
			shape = fmt.Sprintf("steps of %d rows", x.RowStep)
		}
		doc = append(doc, x)
		rows = append(rows, []string{x.Proc, string(x.Scheme), fmt.Sprintf("%.0f", x.Gops), fmt.Sprintf("%.1f", x.GBps), shape})
	}
	if len(rows) > 0 {
		s.Table([]string{"products on", "scheme", ">Gop/s", ">GB/s", "in rows"}, rows)
	}
	return doc
}

func fit(soc, rec string) (*socs.SoC, *record.Set, *roofline.Costs, error) {
	machine, err := socs.Open(soc)
	if err != nil {
		return nil, nil, nil, err
	}
	set, err := record.Open(rec)
	if err != nil {
		return nil, nil, nil, err
	}
	costs, err := roofline.Fit(machine, set)
	return machine, set, costs, err
}

// writeCosts writes a costs file unless it holds the same already.
func writeCosts(path string, c *roofline.Costs) (same bool, err error) {
	if old, err := roofline.Open(path); err == nil {
		a, err := old.Digest()
		if err != nil {
			return false, err
		}
		b, err := c.Digest()
		if err != nil {
			return false, err
		}
		if a == b {
			return true, nil
		}
	}
	return false, roofline.Write(path, c)
}
