package main

import (
	"bytes"
	"errors"
	"time"

	"github.com/hetc/hetc/solver/workload"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/explain"
	"github.com/hetc/hetc/cmd/internal/measure"
	"github.com/hetc/hetc/cmd/internal/planview"
	"github.com/hetc/hetc/cmd/internal/solving"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/solver"
)

func newSolve(s *cli.Streams) *cobra.Command {
	var in solving.Inputs
	var engine solving.EngineFlags
	var work solving.Working
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
			work.Began = time.Now()
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
			in.Warn = s
			input, err := in.Open(c)
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
			if input.MaxMemory, err = solving.MaxMemory(most); err != nil {
				return err
			}
			input.Only = only
			end, err := work.Begin(s, input)
			if err != nil {
				return err
			}
			defer end()
			if pareto != "" {
				return explain.ShowPareto(c.Context(), s, *input)
			}
			e, log, err := engine.Open(s, input.WorkingMemory)
			if err != nil {
				return err
			}
			input.Engine = e
			for _, x := range strategies {
				input.Strategies = append(input.Strategies, planir.Strategy(x))
			}
			if input.Ratio, err = solving.Parts(ratio); err != nil {
				return err
			}
			r, err := solver.Solve(c.Context(), *input)
			if err != nil {
				return errors.Join(solver.Diagnose(c.Context(), *input, err), log.Written())
			}
			end()
			log.Choose(r)
			if err := log.Written(); err != nil {
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
				cli.Wrote(s, out, "plan %.12s for %s on %s", digest, r.Plan.Model.Name, r.Plan.SoC.Name)
			}
			planview.ShowTarget(s, r.Plan)
			planview.ShowPredictions(s, r.Plan)
			planview.ShowSizes(s, r.Plan)
			dropped := planview.LeftOut(input.Workload.Buckets, r.Plan)
			if len(dropped) > 0 {
				s.Printf("buckets left out of the workload's list: %v; the plan serves its prompts faster without them, or within its bound of memory\n", dropped)
			}
			planview.ShowLimits(s, r.Plan)
			planview.ShowTiers(s, r.Plan)
			planview.ShowCompiled(s, r.Plan)
			log.Show()
			log.ShowModels()
			proof := solver.ProofOf(r.Plan.Solver)
			s.Printf("%s\n", proof)
			took := work.Show(s, r)
			return s.Result(map[string]any{"proof": proof, "took": took, "file": out, "digest": digest, "unchanged": same, "simulated": r.Plan.SoC.Simulated, "imported": r.Plan.SoC.Imported,
				"quality": r.Plan.Quality, "memory": r.Plan.Memory, "buckets_left_out": dropped,
				"predictions": r.Plan.Predictions, "compiled": r.Plan.Compiled, "solver": r.Plan.Solver, "solves": log.Solves, "expected_ns": r.ExpectedNS, "expected_nj_modelled": r.ExpectedNJ})
		},
	}
	in.Flags(c)
	measure.AcceptNoisy(c.Flags(), &in.AcceptNoisy)
	engine.Flags(c)
	work.Flags(c)
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
