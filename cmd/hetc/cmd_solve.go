package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// inputs are the flags that say what a plan is made from.
type inputs struct {
	soc, target, rec, costs, facts, model, workload string
	noisy                                           bool         // a record of which most is noisy is good enough
	makes                                           *cli.Streams // of a command that makes a plan to execute, nil for others
}

func (in *inputs) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&in.soc, "soc", "", "SoC file or catalog name")
	f.StringVar(&in.target, "target", "", "instead of --soc: plan for the device of this SoC, for emit --target (see hetc socs list)")
	f.StringVar(&in.rec, "record", "", "record of hetc profile")
	f.StringVar(&in.costs, "costs", "", "costs of hetc fit")
	f.StringVar(&in.facts, "facts", "", "record with compiler facts of the target (hetc profile --compiler-only); default: those in --record")
	f.StringVar(&in.model, "model", "", "model directory or catalog name")
	f.StringVar(&in.workload, "workload", "", "workload file; default: prompts of any length, stored precision")
}

// open reads everything; the caller closes the model.
func (in *inputs) open(c *cobra.Command) (*solver.Input, error) {
	name, err := socOrTarget(c, in.soc, in.target)
	if err != nil {
		return nil, err
	}
	if err := cli.Required(c, "model"); err != nil {
		return nil, err
	}
	if (in.rec == "") == (in.costs == "") {
		return nil, diag.New(diag.ClassUsage, "%s: want one of --record and --costs", c.CommandPath()).
			WithHint("hetc profile makes a record, hetc fit makes costs from it")
	}
	var soc *socs.SoC
	var facts *record.Set
	var costs *roofline.Costs
	if in.rec != "" {
		if soc, facts, costs, err = fit(name, in.rec); err == nil && in.makes != nil {
			err = steady(in.makes, facts, in.rec, in.noisy)
		}
	} else if soc, err = socs.Open(name); err == nil {
		costs, err = roofline.Open(in.costs)
	}
	if err != nil {
		return nil, err
	}
	if in.facts != "" {
		if in.target == "" {
			return nil, diag.New(diag.ClassUsage, "%s: --facts is what the compiler of a target said, and --target is missing", c.CommandPath())
		}
		if facts, err = record.Open(in.facts); err != nil {
			return nil, err
		}
		if len(facts.Facts()) == 0 {
			return nil, diag.New(diag.ClassInput, "record %q has no compiler facts", in.facts).WithHint("hetc profile --compiler-only --target %s makes them", in.target)
		}
	}
	w, err := readWorkload(in.workload)
	if err != nil {
		return nil, err
	}
	m, err := models.Open(in.model)
	if err != nil {
		return nil, err
	}
	out := &solver.Input{Model: m, SoC: soc, Costs: costs, Workload: w, Engine: autoEngine(nil, solver.DefaultWorkingMemory), Facts: facts}
	if in.target != "" {
		if err := out.ForTarget(); err != nil {
			m.Close()
			return nil, err
		}
	}
	return out, nil
}

// socOrTarget is the SoC that one of --soc and --target names.
func socOrTarget(c *cobra.Command, soc, target string) (string, error) {
	switch {
	case c.Flags().Changed("soc") && c.Flags().Changed("target"):
		return "", diag.New(diag.ClassUsage, "%s: --soc %q and --target %q, want one of them", c.CommandPath(), soc, target).
			WithHint("--target is the SoC with only what its device executes")
	case c.Flags().Changed("target"):
		return target, cli.Required(c, "target")
	}
	return soc, cli.Required(c, "soc")
}

func newSolve(s *cli.Streams) *cobra.Command {
	var in inputs
	var engine engineFlags
	var work working
	var out, cal, most, loads, pareto string
	var only, strategies []string
	var ratio map[string]string
	c := &cobra.Command{
		Use:   "solve (--soc soc.yaml | --target NAME) (--record rec.jsonl | --costs costs.yaml) --model DIR -o plan.yaml",
		Short: "decide which processor computes which part of every operator",
		Long: `Solves the tensor partition of every section and number of rows to proved optimality under the cost model
and writes the plan: decisions with their alternatives and costs, predictions with intervals, and the
program. The plan is never predicted to be slower than the best single processor. The same inputs give the
same bytes.

Precision stays as stored unless the workload permits other schemes, by name or by a limit of what they may
lose (quality.max_kl), which needs the calibration of hetc calibrate. Every class of weights gets its own scheme in
prefill and in decode. What the calibration predicts is verified with hetc quality once a bundle is written.

--loads chooses capacity tiers for the experts of a model (NPUMoE): how many rows are reserved for each on a processor of static shapes,
which experts share a launch, which stay on the CPU, and the chunk length. The workload's section experts says how. They are
decisions for targets whose expert graphs have static shapes: the plan's own program executes experts with the rows they get.

The workload may ask for the least energy or memory instead of the least time, and bound times, energy, graphs and the bytes
that processors address. What programs share is then decided for all of them together; limits that cannot be kept are named.
Energy is modelled from the SoC's power_w, never measured.

A record of which most measurements are flagged noisy or drift is refused: hetc profile --resume --flagged measures those anew,
--accept-noisy plans with them.

--max-memory bounds what a process that executes the plan holds, all of it: weights, cache, buffers, program. --working-memory
bounds what solving itself keeps of candidates, problems and combinations, as it counts them: the same on every machine. A search that
would keep more ends with the best plan so far and its bound; where the problems themselves take more, solve refuses.

Problems are solved exactly in Go. What that leaves open at its limit, with a gap, HiGHS closes where it is there (--engine auto; make deps
fetches it, hetc doctor says whether it is found). --engine highs has HiGHS solve all of them, highs-native the same as a library in a process of
its own. HiGHS stops at a number of nodes, and inside the process at --working-memory; the library takes what it needs, and one node of a
large problem may take it long. Where they prove the optimum all of them give the same plan, in which neither the engine nor its time stands: both are in the
output, and per problem in --json.

--target NAME plans for the device of a SoC: only its processors with target data take part, with the operators and schemes they
execute there (docs/soc.md). The plan says so, and hetc emit --target NAME writes what the device loads. Until then it is simulated
as any other plan of that SoC. What the compiler of the device said (hetc profile --compiler-only) decides between numbers of rows that
take the same time, and what graphs are charged for; times never depend on it.

--only leaves to other processors only what none of those named can execute, and of them only to those on the same cores.

` + cli.ExitCodes,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			work.began = time.Now()
			if pareto == "" {
				if err := cli.Required(c, "output"); err != nil {
					return err
				}
				if err := wholefile.Writable(out); err != nil {
					return err
				}
			} else if pareto != "energy,latency" && pareto != "latency,energy" || out != "" {
				return diag.New(diag.ClassUsage, "solve: --pareto %q lists plans and writes none, want --pareto energy,latency and no -o", pareto).
					WithHint("the list says which limit in the workload gives which plan")
			}
			in.makes = s
			input, err := in.open(c)
			if err != nil {
				return err
			}
			defer input.Model.Close()
			if cal != "" {
				if input.Calibration, err = calibration.Read(cal); err != nil {
					return err
				}
			}
			if loads != "" {
				if input.Loads, err = workload.ReadLoads(loads); err != nil {
					return err
				}
			}
			if input.MaxMemory, err = maxMemory(most); err != nil {
				return err
			}
			input.Only = only
			end, err := work.begin(s, input)
			if err != nil {
				return err
			}
			defer end()
			if pareto != "" {
				return showPareto(c.Context(), s, *input)
			}
			e, log, err := engine.open(s, input.WorkingMemory)
			if err != nil {
				return err
			}
			input.Engine = e
			for _, x := range strategies {
				input.Strategies = append(input.Strategies, planir.Strategy(x))
			}
			if input.Ratio, err = parts(ratio); err != nil {
				return err
			}
			r, err := solver.Solve(c.Context(), *input)
			if err != nil {
				return errors.Join(solver.Diagnose(c.Context(), *input, err), log.written())
			}
			end()
			log.choose(r)
			if err := log.written(); err != nil {
				return err
			}
			for _, w := range r.Warnings {
				s.Warnf("%s", w)
			}
			text, err := plantext.Encode(r.Plan)
			if err != nil {
				return err
			}
			digest, err := planir.Digest(r.Plan)
			if err != nil {
				return err
			}
			same := false
			if old, err := wholefile.Read(out, int64(len(text))); err == nil {
				same = bytes.Equal(old, text)
			}
			if same {
				s.Printf("%s: unchanged (same inputs)\n", out)
			} else {
				if err := wholefile.Write(out, text); err != nil {
					return err
				}
				wrote(s, out, "plan %.12s for %s on %s", digest, r.Plan.Model.Name, r.Plan.SoC.Name)
			}
			showTarget(s, r.Plan)
			showPredictions(s, r.Plan)
			showSizes(s, r.Plan)
			dropped := leftOut(input.Workload.Buckets, r.Plan)
			if len(dropped) > 0 {
				s.Printf("buckets left out of the workload's list: %v; the plan serves its prompts faster without them, or within its bound of memory\n", dropped)
			}
			showLimits(s, r.Plan)
			showTiers(s, r.Plan)
			showCompiled(s, r.Plan)
			log.show()
			log.showModels()
			proof := solver.ProofOf(r.Plan.Solver)
			s.Printf("%s\n", proof)
			took := work.show(s, r)
			return s.Result(map[string]any{"proof": proof, "took": took, "file": out, "digest": digest, "unchanged": same, "simulated": r.Plan.SoC.Simulated, "imported": r.Plan.SoC.Imported,
				"quality": r.Plan.Quality, "memory": r.Plan.Memory, "buckets_left_out": dropped,
				"predictions": r.Plan.Predictions, "compiled": r.Plan.Compiled, "solver": r.Plan.Solver, "solves": log.list, "expected_ns": r.ExpectedNS, "expected_nj_modelled": r.ExpectedNJ})
		},
	}
	in.flags(c)
	acceptNoisy(c.Flags(), &in.noisy)
	engine.flags(c)
	work.flags(c)
	c.Flags().StringVarP(&out, "output", "o", "", "plan to write")
	c.Flags().StringVar(&cal, "calibration", "", "calibration of hetc calibrate: what each scheme costs")
	c.Flags().StringVar(&loads, "loads", "", "loads of experts, of hetc loads: choose capacity tiers from them")
	c.Flags().StringVar(&pareto, "pareto", "", "energy,latency: list the plans that no other one beats in both, and write none")
	c.Flags().StringSliceVar(&only, "only", nil, "let this processor execute what it supports; unsupported operators go to the other processors; may be repeated")
	c.Flags().StringSliceVar(&strategies, "strategies", nil, "to compare with: only these, such as single,padding for whole operators on one processor")
	c.Flags().StringToStringVar(&ratio, "ratio", nil, "to compare with: these parts of the columns of every matrix, such as npu=0.75,gpu=0.25")
	c.Flags().StringVar(&most, "max-memory", "", "most memory of a process that executes the plan, such as 1.5GiB; default: the workload's bound")
	return c
}

// maxMemory reads --max-memory, 0 where it is not given.
func maxMemory(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	b, err := unit.ParseBytes(text)
	if err != nil || b <= 0 {
		return 0, diag.New(diag.ClassUsage, "--max-memory %q is no number of bytes above 0", text).WithHint("write it with a unit: 1.5GiB, 900MiB")
	}
	return int64(b), nil
}

// leftOut are the buckets that a workload lists and the plan has no program for, ascending.
func leftOut(listed workload.Rows, p *planir.Plan) []int {
	out := []int{}
	for _, rows := range listed {
		has := func(ph planir.Phase) bool { return ph.Phase == "prefill" && ph.Rows == rows }
		if rows > 0 && !slices.ContainsFunc(p.Program.Programs, has) {
			out = append(out, rows)
		}
	}
	return out
}

// showSizes tells which buckets and batches were chosen, among how many.
func showSizes(s *cli.Streams, p *planir.Plan) {
	unit := "ms"
	if slices.ContainsFunc(p.Solver, func(x planir.Solve) bool { return strings.Contains(x.Problem, string(problem.Energy)) }) {
		unit = "mJ"
	}
	for _, x := range p.Solver {
		var rows []string
		for i := range p.Program.Programs {
			if n := p.Program.Programs[i].Rows; n > 1 && p.Decodes(n) == (x.Problem == "batches") {
				rows = append(rows, strconv.Itoa(n))
			}
		}
		list := strings.Join(rows, ", ")
		if list == "" {
			list = "none"
		}
		switch x.Problem {
		case "buckets":
			s.Printf("buckets: %s of %d candidates; %.3f %s of prefill a prompt, at least %.3f by the candidates' costs (%s)\n", list, x.Choices, float64(x.ObjectiveNS)/1e6, unit, float64(x.BoundNS)/1e6, x.Status)
		case "batches":
			s.Printf("batches: %s of %d candidates; %.3f %s of decode a token, at least %.3f by the candidates' costs (%s)\n", list, x.Choices, float64(x.ObjectiveNS)/1e6, unit, float64(x.BoundNS)/1e6, x.Status)
		}
	}
}

// parts reads numbers by processor.
func parts(given map[string]string) (map[string]float64, error) {
	out := map[string]float64{}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		x, err := strconv.ParseFloat(given[name], 64)
		if err != nil {
			return nil, diag.New(diag.ClassUsage, "--ratio %s=%s: %q is no number", name, given[name], given[name]).WithHint("write parts of 1: npu=0.75,gpu=0.25")
		}
		out[name] = x
	}
	return out, nil
}

// showLimits tells what a plan is predicted to lose and to hold.
func showLimits(s *cli.Streams, p *planir.Plan) {
	for _, q := range p.Quality {
		limit := ""
		if q.MaxKL > 0 {
			limit = fmt.Sprintf(" of at most %.3g", q.MaxKL)
			if q.MaxKL <= workload.Lossless {
				limit = " of at most 0"
			}
		}
		s.Printf("%s: predicted KL %.3g%s nats a token, from calibration\n", q.Phase, q.KL, limit)
	}
	showStatic(s, p)
	if m := p.Memory; m != nil {
		limit := ""
		if m.Max > 0 {
			limit = fmt.Sprintf(" of at most %v", unit.Bytes(m.Max))
		}
		s.Printf("memory: predicted %v%s, with every program loaded and a full context: %s\n", unit.Bytes(m.Total), limit, m)
	}
}

// showStatic tells in which phases activations have static scales.
func showStatic(s *cli.Streams, p *planir.Plan) {
	count, scheme := map[string]int{}, map[string]op.Scheme{}
	for i := range p.Decisions {
		if d := &p.Decisions[i]; d.Scheme.Static() {
			phase := "prefill"
			if p.Decodes(d.Rows) {
				phase = "decode"
			}
			what := phase + " " + string(d.Scheme)
			count[what]++
			scheme[what] = d.Scheme
		}
	}
	for _, what := range slices.Sorted(maps.Keys(count)) {
		beyond, choice := "what", ""
		if scheme[what].Grid() {
			beyond = fmt.Sprintf("%d times what", calibration.GridMargin)
		}
		if n := scheme[what].Scales(); n > 1 {
			choice = fmt.Sprintf("every row has the smallest of %d that holds it, and ", n)
		}
		s.Printf("static scales: %s in %d decisions: %sactivations that exceed %s the calibration saw are clipped\n", what, count[what], choice, beyond)
	}
}

func showPredictions(s *cli.Streams, p *planir.Plan) {
	if len(p.Predictions) == 0 {
		return
	}
	header := []string{"program", ">plan ms", ">interval"}
	var procs []string // that execute some program alone
	for _, pr := range p.Predictions {
		for _, x := range pr.Singles {
			procs = append(procs, x.Proc)
		}
	}
	slices.Sort(procs)
	procs = slices.Compact(procs)
	for _, name := range procs {
		header = append(header, ">"+name+" ms")
	}
	header = append(header, ">best single / plan", ">tokens/s")
	energy := slices.ContainsFunc(p.Predictions, func(x planir.Prediction) bool { return x.EnergyUJ > 0 })
	if energy {
		header = append(header, ">mJ (modelled)")
	}
	ms := func(ns int64) string { return fmt.Sprintf("%.3f", float64(ns)/1e6) }
	var rows [][]string
	for _, pr := range p.Predictions {
		row := []string{pr.Program, ms(pr.PlanNS), ms(pr.LowNS) + ".." + ms(pr.HighNS)}
		best := int64(0)
		for _, name := range procs {
			k := slices.IndexFunc(pr.Singles, func(x planir.SingleTime) bool { return x.Proc == name })
			if k < 0 {
				row = append(row, "-")
				continue
			}
			ns := pr.Singles[k].NS
			row = append(row, ms(ns))
			if best == 0 || ns < best {
				best = ns
			}
		}
		gain := "-"
		if best > 0 {
			gain = fmt.Sprintf("%.2f", float64(best)/float64(pr.PlanNS))
		}
		row = append(row, gain)
		if i := slices.IndexFunc(p.Program.Programs, func(ph planir.Phase) bool { return ph.Name == pr.Program }); i >= 0 {
			row = append(row, fmt.Sprintf("%.1f", float64(p.Program.Programs[i].Rows)*1e9/float64(max(1, pr.PlanNS))))
		}
		if energy {
			mj := "-"
			if pr.EnergyUJ > 0 {
				mj = fmt.Sprintf("%.3f", float64(pr.EnergyUJ)/1e3)
			}
			row = append(row, mj)
		}
		rows = append(rows, row)
	}
	what := "predicted"
	if times := p.SoC.Times(); times != "" {
		what = "predicted from " + times
	}
	s.Printf("%s:\n", what)
	s.Table(header, rows)
}
