package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/solving"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/highs"
	"github.com/hetc/hetc/solver/milp"
	"github.com/hetc/hetc/solver/problem"
)

// SolverOptions are the flags of hetc bench solver.
type SolverOptions struct {
	In solving.Inputs
	// of comparing the builds of HiGHS; Limit bounds one solve
	Rounds   int
	Limit    time.Duration
	Markdown string
}

// pairOfBuilds is one model solved by both builds of HiGHS, as WebAssembly and as a library.
type pairOfBuilds struct {
	Model     string  `json:"model"`
	Vars      int     `json:"variables"`
	Rows      int     `json:"constraints"`
	WasmMS    float64 `json:"wasm_ms"` // median
	NativeMS  float64 `json:"native_ms"`
	Ratio     float64 `json:"ratio"` // wasm over native
	Low       float64 `json:"low"`
	High      float64 `json:"high"`
	Objective float64 `json:"objective"`        // of WebAssembly
	NativeObj float64 `json:"native_objective"` // of the library
	Apart     float64 `json:"objectives_apart"` // relative difference
	SameX     bool    `json:"same_values"`      // of every variable; equally good answers may differ in them
}

// Run solves problems of full size with every engine. Then both builds of HiGHS solve the same
// models in turns.
func (o *SolverOptions) Run(cmd *cobra.Command, ui *cli.Streams) error {
	ctx := cmd.Context()
	runtime.GOMAXPROCS(1) // one core, also for the garbage collector
	var joint *problem.Joint
	if o.In.Given() {
		input, err := o.In.Open(cmd)
		if err != nil {
			return err
		}
		defer input.Model.Close()
		if joint, err = posed(ctx, input); err != nil {
			return err
		}
	}
	wasm, wasmErr := highs.Open()
	if wasmErr == nil {
		// The code is compiled before the clock starts.
		if err := wasm.Start(ctx); err != nil {
			return err
		}
	}

	log := solving.NewLog(ui)
	watch := &problem.Watch{Started: log.Started, Done: log.Done}
	engine := watch.Engine(exact.Engine{})
	if wasmErr == nil {
		engine = problem.Auto{Exact: engine, General: bindings.GeneralEngine(wasm, watch)}
	}
	if err := o.solveLargest(ctx, engine, joint); err != nil {
		return err
	}
	// A solve that was cut off at the limit has no result, and is no failure.
	for i := range log.Solves {
		if solved := &log.Solves[i]; solved.Failed != "" && solved.MS >= float64(o.Limit.Milliseconds()) {
			solved.Status = "given up"
		}
	}
	out := &page{s: ui}
	showSolves(out, log.Solves)
	pairs, err := o.compare(ctx, out, wasm, wasmErr)
	if err != nil {
		return err
	}
	if o.Markdown != "" {
		if err := wholefile.Write(o.Markdown, []byte(out.md.String())); err != nil {
			return err
		}
	}
	return ui.Result(map[string]any{"solves": log.Solves, "wasm_native": pairs})
}

// solveLargest solves synthetic problems of the largest sizes that published models and workloads pose, and the joint
// problem of a plan (nil: none).
func (o *SolverOptions) solveLargest(ctx context.Context, engine problem.Engine, joint *problem.Joint) error {
	tiers, buckets := problem.GenerateTiers(1, 48, 128, 8), problem.BucketExample(2048, 8)
	solves := []func(context.Context) error{
		func(ctx context.Context) error { _, err := engine.Tiers(ctx, tiers, problem.Limits{}); return err },
		func(ctx context.Context) error { _, err := engine.Buckets(ctx, buckets, problem.Limits{}); return err },
	}
	if joint != nil {
		solves = append(solves, func(ctx context.Context) error {
			_, err := engine.Joint(ctx, joint, problem.Limits{})
			return err
		})
	}
	for _, solve := range solves {
		if err := o.limited(ctx, solve); err != nil {
			return err
		}
	}
	return nil
}

// limited runs a solve for at most o.Limit. Exceeding it is no error.
func (o *SolverOptions) limited(ctx context.Context, solve func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, o.Limit)
	defer cancel()
	err := solve(limited)
	if ctx.Err() != nil {
		return diag.New(diag.ClassInterrupted, "bench solver: %w", ctx.Err())
	}
	if limited.Err() != nil {
		return nil
	}
	return err
}

// showSolves prints the table of single solves.
func showSolves(out *page, list []solving.Solved) {
	out.title("The engines of solve")
	out.text("One core. Times are of single solves, of the problem as it is posed to the proved answer; a general " +
		"engine's include its linear program's being written.")
	var rows [][]string
	for _, solved := range list {
		gap := "-"
		if solved.Gap != nil {
			gap = fmt.Sprintf("%.2g %%", 100**solved.Gap)
		}
		size := "-"
		if solved.Vars > 0 {
			size = fmt.Sprintf("%d x %d", solved.Vars, solved.Rows)
		}
		rows = append(rows, []string{solved.Problem, fmt.Sprint(solved.Choices), solved.Engine, solved.Status, gap,
			size, fmt.Sprint(solved.Nodes), fmt.Sprintf("%.1f", solved.MS)})
	}

	out.table([]string{"problem", ">choices", "engine", "status", ">gap", ">variables x constraints", ">nodes", ">ms"},
		rows)
}

// compare has both builds of HiGHS solve the same models in turns. Optimal objectives must agree
// within the engines' tolerance.
func (o *SolverOptions) compare(
	ctx context.Context, out *page, wasm *highs.Wasm, wasmErr error,
) ([]pairOfBuilds, error) {
	native, err := highs.OpenNative()
	if err = errors.Join(wasmErr, err); err != nil {
		out.text("WebAssembly and library are not compared: %v", err)
		return nil, nil
	}
	models, err := comparedModels()
	if err != nil {
		return nil, err
	}

	var list []pairOfBuilds
	var rows [][]string
	for _, model := range models {
		builds, late, err := o.compareModel(ctx, model, [2]milp.Engine{wasm, native})
		if err != nil {
			return nil, err
		}
		size := fmt.Sprintf("%d x %d", builds.Vars, builds.Rows)
		if late != "" {
			rows = append(rows, []string{builds.Model, size, "-", "-", "-",
				fmt.Sprintf("%s: over %v", late, o.Limit), "-", "-", "-"})
			continue
		}

		list = append(list, *builds)
		same := "no"
		if builds.SameX {
			same = "yes"
		}
		rows = append(rows, []string{builds.Model, size, fmt.Sprintf("%.1f", builds.WasmMS),
			fmt.Sprintf("%.1f", builds.NativeMS), fmt.Sprintf("%.2f", builds.Ratio),
			ratioInterval(o.Rounds, builds.Low, builds.High), fmt.Sprintf("%.6g", builds.Objective),
			fmt.Sprintf("%.1g", builds.Apart), same})
	}

	out.text("HiGHS %s as WebAssembly and as a library in a process of its own, whose start counts, in turns: "+
		"medians of %s. Objectives are those of the linear programs; how far both are apart is relative. "+
		"Answers that are no further apart than the engines' tolerance may have other values of variables.",
		highs.Version, interleaved(o.Rounds))
	out.table([]string{"model", ">variables x constraints", ">WebAssembly ms", ">library ms", ">ratio", ">95 %",
		">objective", ">apart", "same values"}, rows)
	return list, nil
}

// comparedModels returns the linear programs that both builds solve: two choices of buckets, and two of capacity tiers.
func comparedModels() (list []*milp.Model, err error) {
	for _, count := range []int{24, 32} {
		model, _, err := problem.BucketExample(count, 6).MILP()
		if err != nil {
			return nil, err
		}
		list = append(list, model)
	}

	for _, experts := range []int{16, 32} {
		tiers := problem.GenerateTiers(1, 1, experts, 8)
		model, _, err := tiers.MILP()
		if err != nil {
			return nil, err
		}
		model.Name = fmt.Sprintf("tiers of %d experts", experts)
		list = append(list, model)
	}
	return list, nil
}

// compareModel has both builds solve a model once a round, after a round that is not counted. late is the build that
// has not solved it within the limit, "" where both have.
func (o *SolverOptions) compareModel(ctx context.Context, model *milp.Model, engines [2]milp.Engine) (
	builds *pairOfBuilds, late string, err error) {
	builds = &pairOfBuilds{Model: model.Name, Vars: len(model.Vars), Rows: len(model.Rows), SameX: true}
	var ms [2][]float64
	var answers [2]milp.Result
	for round := -1; round < o.Rounds; round++ {
		for i := range 2 {
			build := (i + round + 2) % 2 // they take turns to begin
			begun := time.Now()
			result, err := engines[build].Solve(ctx, model, milp.Options{Time: o.Limit})
			if err != nil {
				return nil, "", err
			}
			if result.Status != milp.Optimal {
				return builds, engines[build].Name(), nil
			}
			if round >= 0 {
				ms[build] = append(ms[build], float64(time.Since(begun).Microseconds())/1e3)
			}
			answers[build] = result
		}
	}

	// Two builds of one version that disagree mean an error of the build, not of the model.
	if a, b := answers[0].Objective, answers[1].Objective; math.Abs(a-b) > milp.Tolerance*max(1, math.Abs(a)) {
		return nil, "", diag.New(diag.ClassInternal, "bench solver: %q: WebAssembly finds %v, the library %v",
			model.Name, a, b)
	}

	for j := range answers[0].X {
		builds.SameX = builds.SameX && answers[0].X[j] == answers[1].X[j]
	}
	builds.Objective, builds.NativeObj = answers[0].Objective, answers[1].Objective
	builds.Apart = math.Abs(builds.Objective-builds.NativeObj) / max(1, math.Abs(builds.Objective))
	builds.WasmMS, builds.NativeMS = stat.Median(ms[0]), stat.Median(ms[1])
	builds.Ratio, builds.Low, builds.High, err = stat.Ratio(ms[0], ms[1], 2000, 1)
	return builds, "", err
}

// errPosed ends a solve once its joint problem is known.
var errPosed = errors.New("the joint problem is known")

// firstJoint is an engine that keeps the first joint problem, and the partitions posed before it.
type firstJoint struct {
	exact.Engine
	partitions []*problem.Partition
	joint      *problem.Joint
}

// Partition implements problem.Engine.
func (f *firstJoint) Partition(ctx context.Context, p *problem.Partition) (problem.Solution, error) {
	f.partitions = append(f.partitions, p)
	return f.Engine.Partition(ctx, p)
}

// Joint implements problem.Engine.
func (f *firstJoint) Joint(_ context.Context, j *problem.Joint, _ problem.Limits) (problem.JointSolution, error) {
	// errPosed ends the solve: only the problem is wanted, and answering it may take minutes.
	f.joint = j
	return problem.JointSolution{}, errPosed
}

// posed returns the problem that a solve of the input poses: all programs under the limits that
// they share. Where no limit binds, it is all programs without one.
func posed(ctx context.Context, input *solver.Input) (*problem.Joint, error) {
	joint := &firstJoint{}
	input.Engine = joint
	if _, err := solver.Solve(ctx, *input); err != nil && joint.joint == nil {
		return nil, err
	}
	if joint.joint != nil {
		return joint.joint, nil
	}

	// No limit binds programs together, so the joint problem is the partitions side by side.
	j := &problem.Joint{Name: "plan without limits"}
	seen := map[string]bool{}
	for _, partition := range joint.partitions {
		if !seen[partition.Name] {
			seen[partition.Name] = true
			j.Parts = append(j.Parts, problem.Part{Partition: partition, Weight: 1})
		}
	}
	return j, nil
}
