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

type SolverOptions struct {
	In       solving.Inputs
	Rounds   int
	Limit    time.Duration
	Markdown string
}

// pairOfBuilds is one model solved by both builds of HiGHS.
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

func (o *SolverOptions) Run(c *cobra.Command, s *cli.Streams) error {
	ctx := c.Context()
	runtime.GOMAXPROCS(1) // one core, also for the garbage collector
	var joint *problem.Joint
	if o.In.SoC != "" || o.In.Model != "" {
		input, err := o.In.Open(c)
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
		if err := wasm.Start(ctx); err != nil { // compiled before the clock starts
			return err
		}
	}
	log := solving.NewLog(s)
	w := &problem.Watch{Started: log.Started, Done: log.Done}
	e := w.Engine(exact.Engine{})
	if wasmErr == nil {
		e = problem.Auto{Exact: e, General: bindings.GeneralEngine(wasm, w)}
	}
	tiers, buckets := problem.GenerateTiers(1, 48, 512, 8), problem.BucketExample(2048, 8)
	list := []func(context.Context) error{
		func(ctx context.Context) error { _, err := e.Tiers(ctx, tiers, problem.Limits{}); return err },
		func(ctx context.Context) error { _, err := e.Buckets(ctx, buckets, problem.Limits{}); return err },
	}
	if joint != nil {
		list = append(list, func(ctx context.Context) error { _, err := e.Joint(ctx, joint, problem.Limits{}); return err })
	}
	for _, solve := range list {
		limited, cancel := context.WithTimeout(ctx, o.Limit)
		err := solve(limited)
		over := limited.Err() != nil
		cancel()
		if ctx.Err() != nil {
			return diag.New(diag.ClassInterrupted, "bench solver: %w", ctx.Err())
		}
		if err != nil && !over {
			return err
		}
	}
	for i := range log.Solves {
		if x := &log.Solves[i]; x.Failed != "" && x.MS >= float64(o.Limit.Milliseconds()) {
			x.Status = "given up"
		}
	}
	p := &page{s: s}
	p.title("The engines of solve")
	p.text("One core. Times are of single solves, of the problem as it is posed to the proved answer; a general engine's include its linear program's being written.")
	var rows [][]string
	for _, x := range log.Solves {
		gap := "-"
		if x.Gap != nil {
			gap = fmt.Sprintf("%.2g %%", 100**x.Gap)
		}
		size := "-"
		if x.Vars > 0 {
			size = fmt.Sprintf("%d x %d", x.Vars, x.Rows)
		}
		rows = append(rows, []string{x.Problem, fmt.Sprint(x.Choices), x.Engine, x.Status, gap, size, fmt.Sprint(x.Nodes), fmt.Sprintf("%.1f", x.MS)})
	}
	p.table([]string{"problem", ">choices", "engine", "status", ">gap", ">variables x constraints", ">nodes", ">ms"}, rows)
	pairs, err := o.compare(ctx, p, wasm, wasmErr)
	if err != nil {
		return err
	}
	if o.Markdown != "" {
		if err := wholefile.Write(o.Markdown, []byte(p.md.String())); err != nil {
			return err
		}
	}
	return s.Result(map[string]any{"solves": log.Solves, "wasm_native": pairs})
}

// compare has both builds solve the same models in turns.
func (o *SolverOptions) compare(ctx context.Context, p *page, wasm *highs.Wasm, wasmErr error) ([]pairOfBuilds, error) {
	native, err := highs.OpenNative()
	if err = errors.Join(wasmErr, err); err != nil {
		p.text("WebAssembly and library are not compared: %v", err)
		return nil, nil
	}
	var models []*milp.Model
	for _, n := range []int{24, 32} {
		m, _, err := problem.BucketExample(n, 6).MILP()
		if err != nil {
			return nil, err
		}
		models = append(models, m)
	}
	for _, experts := range []int{16, 32} {
		t := problem.GenerateTiers(1, 1, experts, 8)
		m, _ := t.MILP(0)
		m.Name = fmt.Sprintf("tiers of %d experts", experts)
		models = append(models, m)
	}
	var list []pairOfBuilds
	var rows [][]string
models:
	for _, m := range models {
		x := pairOfBuilds{Model: m.Name, Vars: len(m.Vars), Rows: len(m.Rows), SameX: true}
		var ms [2][]float64
		var answers [2]milp.Result
		for round := -1; round < o.Rounds; round++ { // the first is not counted
			for i := range 2 {
				k := (i + round + 2) % 2 // who begins changes
				e := [2]milp.Engine{wasm, native}[k]
				begun := time.Now()
				r, err := e.Solve(ctx, m, milp.Options{Time: o.Limit})
				if err != nil {
					return nil, err
				}
				if r.Status != milp.Optimal {
					rows = append(rows, []string{x.Model, fmt.Sprintf("%d x %d", x.Vars, x.Rows), "-", "-", "-", fmt.Sprintf("%s: over %v", e.Name(), o.Limit), "-", "-", "-"})
					continue models
				}
				if round >= 0 {
					ms[k] = append(ms[k], float64(time.Since(begun).Microseconds())/1e3)
				}
				answers[k] = r
			}
		}
		if a, b := answers[0].Objective, answers[1].Objective; math.Abs(a-b) > milp.Tolerance*max(1, math.Abs(a)) {
			return nil, diag.New(diag.ClassInternal, "bench solver: %q: WebAssembly finds %v, the library %v", m.Name, a, b)
		}
		for j := range answers[0].X {
			x.SameX = x.SameX && answers[0].X[j] == answers[1].X[j]
		}
		x.Objective, x.NativeObj = answers[0].Objective, answers[1].Objective
		x.Apart = math.Abs(x.Objective-x.NativeObj) / max(1, math.Abs(x.Objective))
		x.WasmMS, x.NativeMS = stat.Median(ms[0]), stat.Median(ms[1])
		if x.Ratio, x.Low, x.High, err = stat.Ratio(ms[0], ms[1], 2000, 1); err != nil {
			return nil, err
		}
		list = append(list, x)
		same := "no"
		if x.SameX {
			same = "yes"
		}
		rows = append(rows, []string{x.Model, fmt.Sprintf("%d x %d", x.Vars, x.Rows), fmt.Sprintf("%.1f", x.WasmMS), fmt.Sprintf("%.1f", x.NativeMS),
			fmt.Sprintf("%.2f", x.Ratio), fmt.Sprintf("%.2f..%.2f", x.Low, x.High), fmt.Sprintf("%.6g", x.Objective), fmt.Sprintf("%.1g", x.Apart), same})
	}
	p.text("HiGHS %s as WebAssembly and as a library in a process of its own, whose start counts, in turns: medians of %d rounds. Objectives are those of the linear programs; how far both are apart is relative. "+
		"Answers that are no further apart than the engines' tolerance may have other values of variables.", highs.Version, o.Rounds)
	p.table([]string{"model", ">variables x constraints", ">WebAssembly ms", ">library ms", ">ratio", ">95 %", ">objective", ">apart", "same values"}, rows)
	return list, nil
}

// errPosed ends a solve once its problem is known.
var errPosed = errors.New("the joint problem is known")

// firstJoint keeps the first joint problem that is posed, and the partitions until then.
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
	f.joint = j
	return problem.JointSolution{}, errPosed
}

// posed is the problem that a solve of the input poses: all programs under the limits they share or, where no limit binds, all
// programs without one.
func posed(ctx context.Context, input *solver.Input) (*problem.Joint, error) {
	f := &firstJoint{}
	input.Engine = f
	if _, err := solver.Solve(ctx, *input); err != nil && f.joint == nil {
		return nil, err
	}
	if f.joint != nil {
		return f.joint, nil
	}
	j := &problem.Joint{Name: "plan without limits"}
	seen := map[string]bool{}
	for _, p := range f.partitions {
		if !seen[p.Name] {
			seen[p.Name] = true
			j.Parts = append(j.Parts, problem.Part{Partition: p, Weight: 1})
		}
	}
	return j, nil
}
