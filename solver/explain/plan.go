package explain

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// ProgramTimes says where the time of one execution of a program goes, by the plan's own predictions. Nothing is
// measured.
type ProgramTimes struct {
	Program string `json:"program"`
	Phase   string `json:"phase"`
	Rows    int    `json:"rows"` // tokens
	PlanNS  int64  `json:"plan_ns"`
	LowNS   int64  `json:"low_ns"`
	HighNS  int64  `json:"high_ns"`
	// Best is the fastest single processor; nil where none executes all of it.
	Best *planir.SingleTime `json:"best_single,omitempty"`
	// Busy is the time of each processor's steps, longest first: what is left of PlanNS it waits.
	Busy []Busy `json:"busy"`
	// ProductsNS, AttentionNS, OtherNS and HandoverNS are parts of PlanNS: what an execution waits for, operator by
	// operator.
	ProductsNS  int64 `json:"products_ns"`
	AttentionNS int64 `json:"attention_ns"`
	OtherNS     int64 `json:"other_ns"`
	HandoverNS  int64 `json:"handover_ns"`
	// WeightBytes are read by matrix products, and Flops computed by them.
	WeightBytes int64 `json:"weight_bytes"`
	Flops       int64 `json:"flops"`
	// Divided is the share of ProductsNS in which several processors work on one product.
	Divided float64 `json:"divided"`
	// Slowest are the operators that take most time, of all layers together.
	Slowest []OperatorTime `json:"slowest"`
}

// Busy is how long a processor works.
type Busy struct {
	Proc string `json:"proc"`
	NS   int64  `json:"ns"`
}

// OperatorTime is the time of an operator in all layers.
type OperatorTime struct {
	Node string `json:"node"`
	NS   int64  `json:"ns"`
}

// Gain returns how many times as fast the program is as its best single processor; 0 where there is none.
func (s *ProgramTimes) Gain() float64 {
	if s.Best == nil || s.PlanNS <= 0 {
		return 0
	}
	return float64(s.Best.NS) / float64(s.PlanNS)
}

// TimesOf lists the times of every program of a plan, in the order of the plan.
func TimesOf(plan *planir.Plan) []ProgramTimes {
	graphs := map[string]*op.Graph{}
	for i := range plan.Program.Graphs {
		graphs[plan.Program.Graphs[i].Name] = &plan.Program.Graphs[i].Graph
	}
	var out []ProgramTimes
	for i := range plan.Program.Programs {
		ph := &plan.Program.Programs[i]
		t := timesSum{
			ProgramTimes: ProgramTimes{Program: ph.Name, Phase: ph.Phase, Rows: ph.Rows},
			plan:         plan, graphs: graphs, busy: plan.BusyNS(ph), times: map[string]int64{},
		}
		t.predictions()
		for i := range ph.Sections {
			t.section(&ph.Sections[i])
		}
		out = append(out, t.sum())
	}
	return out
}

// timesSum adds up the times of a program.
type timesSum struct {
	ProgramTimes
	plan    *planir.Plan
	graphs  map[string]*op.Graph
	busy    map[string]int64 // by processor
	times   map[string]int64 // by operator
	divided int64            // of ProductsNS
}

// predictions copies the plan's predictions for the program.
func (t *timesSum) predictions() {
	for _, prediction := range t.plan.Predictions {
		if prediction.Program != t.Program {
			continue
		}
		t.PlanNS, t.LowNS, t.HighNS = prediction.PlanNS, prediction.LowNS, prediction.HighNS
		for i := range prediction.Singles {
			if single := prediction.Singles[i]; t.Best == nil || single.NS < t.Best.NS {
				t.Best = &single
			}
		}
	}
}

// section adds the steps and operators of a section, in all its layers.
func (t *timesSum) section(sec *planir.Section) {
	// A section is executed once for each layer; sections outside layers have none.
	layers := int64(max(1, sec.Layers))
	kinds := map[string]op.Kind{} // by operator
	var nodes []string
	for _, lane := range sec.Lanes {
		for i := range lane.Steps {
			step := &lane.Steps[i]
			graph := t.graphs[step.Run]
			if graph == nil {
				continue
			}
			// A step that joins operators names them all. Where each has a node of its own they correspond; else the
			// graph's last node is the one that the step is for.
			names := step.Nodes()
			for i, name := range names {
				if !slices.Contains(nodes, name) {
					nodes = append(nodes, name)
				}
				operator := graph.Nodes[len(graph.Nodes)-1].Op
				if len(names) == len(graph.Nodes) {
					operator = graph.Nodes[i].Op
				}
				// The main kind of an operator wins over those of its helpers, such as quantisers.
				if operator.Kind == op.MatMul || operator.Kind == op.Attention || kinds[name] == "" {
					kinds[name] = operator.Kind
				}
			}
			t.work(graph, layers)
		}
	}
	for _, name := range nodes {
		t.operator(name, kinds[name], layers)
	}
}

// work adds what a graph reads and computes.
func (t *timesSum) work(graph *op.Graph, layers int64) {
	for _, node := range graph.Nodes {
		operator := node.Op
		product := operator.HasScheme() && operator.Kind == op.MatMul
		if product {
			experts := 1
			if operator.Experts > 0 {
				// Each row needs a matrix of its own at most, and no matrix is read twice.
				experts = min(operator.Rows(), operator.Experts)
			}
			t.WeightBytes += layers * int64(experts) * op.WeightBytes(operator.Scheme.Weight(), operator.K, operator.N)
			t.Flops += layers * operator.Flops()
		}
	}
}

// operator adds the time of an operator by its kind, without its hand-over.
func (t *timesSum) operator(name string, kind op.Kind, layers int64) {
	decision := solver.DecisionAt(t.plan, name, t.Rows)
	if decision == nil {
		return
	}
	var slowest int64
	for _, share := range decision.Shares {
		// Shares run side by side, so the operator takes its slowest; the rest is hand-over.
		slowest = max(slowest, share.PredictNS)
	}
	slowest = min(slowest, decision.PredictNS)
	t.times[name] += layers * decision.PredictNS
	t.HandoverNS += layers * (decision.PredictNS - slowest)
	switch kind {
	case op.MatMul:
		t.ProductsNS += layers * slowest
		if len(decision.Shares) > 1 {
			t.divided += layers * slowest
		}
	case op.Attention:
		t.AttentionNS += layers * slowest
	default:
		t.OtherNS += layers * slowest
	}
}

// sum returns the finished sums.
func (t *timesSum) sum() ProgramTimes {
	out := t.ProgramTimes
	if out.ProductsNS > 0 {
		out.Divided = float64(t.divided) / float64(out.ProductsNS)
	}
	for proc, ns := range t.busy {
		if ns > 0 {
			out.Busy = append(out.Busy, Busy{proc, ns})
		}
	}
	slices.SortFunc(out.Busy, func(at, b Busy) int {
		return cmp.Or(cmp.Compare(b.NS, at.NS), strings.Compare(at.Proc, b.Proc))
	})
	for node, ns := range t.times {
		out.Slowest = append(out.Slowest, OperatorTime{node, ns})
	}
	slices.SortFunc(out.Slowest, func(at, b OperatorTime) int {
		return cmp.Or(cmp.Compare(b.NS, at.NS), strings.Compare(at.Node, b.Node))
	})
	out.Slowest = out.Slowest[:min(4, len(out.Slowest))]
	return out
}

// SameInputs tells in what the inputs differ from those that a plan was solved from: "costs", "workload". The
// model, the SoC and the context must be the plan's: else the error is of class ClassInput.
func SameInputs(plan *planir.Plan, in *solver.Input) (differ []string, err error) {
	model, err := in.Model.Digest()
	if err != nil {
		return nil, err
	}
	soc, err := in.WholeSoC().Digest()
	if err != nil {
		return nil, err
	}
	switch {
	case model != plan.Model.Digest:
		return nil, diag.New(diag.ClassInput, "explain: the plan is for model %q with digest %.12s, and %q has %.12s",
			plan.Model.Name, plan.Model.Digest, in.Model.Name, model).
			WithHint("give the model the plan was solved for")
	case soc != plan.SoC.Digest:
		return nil, diag.New(diag.ClassInput, "explain: the plan is for SoC %q with digest %.12s, and %q has %.12s",
			plan.SoC.Name, plan.SoC.Digest, in.SoC.Name, soc).
			WithHint("give the SoC file the plan was solved with")
	}
	work := in.Workload
	if work == nil {
		work = workload.Default()
	}
	have := map[string]func() (string, error){"costs": in.Costs.Digest, "workload": work.Digest}
	if in.Calibration != nil {
		have[planir.CalibrationInput] = in.Calibration.Digest
	}
	if in.Facts != nil {
		have[solver.FactsInput] = in.Facts.FactsDigest
	}
	for _, input := range plan.Inputs {
		digest := have[input.Kind]
		if input.Kind == "loads" {
			if in.Loads == nil {
				continue // tiers are not solved again
			}
			digest = in.Loads.Digest
		}
		if digest == nil {
			differ = append(differ, input.Kind)
			continue
		}
		d, err := digest()
		if err != nil {
			return nil, err
		}
		if d != input.Digest {
			differ = append(differ, input.Kind)
		}
	}
	return differ, nil
}

// Alternative is a plan under other conditions, beside the plan with the input as it is.
type Alternative struct {
	What string `json:"what"` // "without host:1", "prefill@384 as well"
	// ExpectedNS is the expected time of a request; 0 where there is no such plan, and Note says why.
	ExpectedNS float64 `json:"expected_ns,omitempty"`
	// ExpectedNJ and Bytes are the expected energy and the memory of a process, where the workload minimises that.
	ExpectedNJ float64 `json:"expected_nj,omitempty"`
	Bytes      int64   `json:"bytes,omitempty"`
	Ratio      float64 `json:"ratio,omitempty"` // of what is minimised, to the plan's: above 1 is worse
	Note       string  `json:"note,omitempty"`
}

// Minimised returns what the workload minimises, in ns, nJ or bytes; 0 where there is no such plan.
func (a *Alternative) Minimised() (float64, problem.Measure) {
	switch {
	case a.Bytes > 0:
		return float64(a.Bytes), problem.Memory
	case a.ExpectedNJ > 0:
		return a.ExpectedNJ, problem.Energy
	}
	return a.ExpectedNS, problem.Time
}

// alternative solves the input with changes. base is the plan that it is compared with, nil for that plan itself.
func (t *trial) alternative(ctx context.Context, what string, base *Alternative,
	changes ...func(*solver.Input)) (Alternative, *solver.Result, error) {
	attempt, err := t.solve(ctx, changes...)
	if err != nil {
		return Alternative{}, nil, err
	}
	out := Alternative{What: what}
	if attempt.result == nil {
		out.Note = firstLine(attempt.err)
		return out, nil, nil
	}
	out.ExpectedNS, out.Ratio = attempt.result.ExpectedNS, 1
	if work := t.in.Workload; work != nil {
		switch work.Minimise {
		case problem.Energy:
			out.ExpectedNJ = attempt.result.ExpectedNJ
		case problem.Memory:
			out.Bytes = attempt.result.Plan.Memory.Total
		}
	}
	if base != nil {
		own, _ := out.Minimised()
		other, _ := base.Minimised()
		out.Ratio = own / other
	}
	return out, attempt.result, nil
}

// firstLine returns the first line of an error of solve, which is a whole sentence.
func firstLine(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return strings.TrimPrefix(text, "solve: ")
}

// Without solves the input again without each processor that the plan uses, and with each of them alone. The first
// entry is the input as it is.
func Without(ctx context.Context, plan *planir.Plan, in solver.Input) ([]Alternative, error) {
	trial := newTrial(in, nil)
	base, r, err := trial.alternative(ctx, "this plan", nil)
	if err != nil || r == nil {
		return nil, cantSolve(err, base)
	}
	out := []Alternative{base}
	used := map[string]bool{}
	for _, decision := range plan.Decisions {
		for _, sh := range decision.Shares {
			used[sh.Proc] = true
		}
	}
	var all []string
	for i := range in.SoC.Processors {
		name := in.SoC.Processors[i].Name
		if len(in.Only) == 0 || slices.Contains(in.Only, name) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	for _, name := range all {
		// Of the processors that are permitted, all but this one.
		rest := slices.DeleteFunc(slices.Clone(all), func(x string) bool { return x == name })
		if !used[name] || len(rest) == 0 {
			continue
		}
		other, result, err := trial.alternative(ctx, "without "+name, &base,
			func(x *solver.Input) { x.Only = rest })
		if err != nil {
			return nil, err
		}
		if result != nil && slices.ContainsFunc(result.Plan.Decisions, func(decision planir.Decision) bool {
			return slices.ContainsFunc(decision.Shares, func(s planir.Share) bool { return s.Proc == name })
		}) {
			other.Note = name + " still executes what the others cannot"
		}
		out = append(out, other)
	}
	sort.SliceStable(out[1:], func(i, j int) bool {
		x, y := out[1+i], out[1+j]
		return x.Ratio > 0 && (y.Ratio == 0 || x.Ratio < y.Ratio)
	})
	return out, nil
}

// cantSolve returns the error for inputs that have no plan although a plan was solved from them: err, or the note of
// other.
func cantSolve(err error, other Alternative) error {
	if err != nil {
		return err
	}
	return diag.New(diag.ClassInput, "explain: these inputs give no plan: %s", other.Note).
		WithHint("give the inputs the plan was solved with")
}

// BucketEffect says what a bucket contributes: which prompts use it, and what prefill would cost without it and with
// one bucket more.
type BucketEffect struct {
	Rows int `json:"rows"`
	// From and To are the lengths of calls that the bucket takes; longer prompts are cut into pieces of the largest
	// bucket.
	From int `json:"from"`
	To   int `json:"to"`
	// Calls is how many calls a prompt makes of it on average, and Time its part of the expected time of prefill. NaN
	// and absent without inputs.
	Calls float64 `json:"calls,omitempty"`
	Time  float64 `json:"time,omitempty"`
	// Without it, and with one more beside it, solved again for the same prompts; the first entry is the buckets as
	// they are.
	Sets []Alternative `json:"sets,omitempty"`
}

// Bucket explains the bucket of that many rows. If in is nil it returns only what the plan says.
//
// With inputs it solves for the same prompts with other sets of buckets: those of the plan, those without this bucket,
// and those with one more bucket halfway to the neighbour on either side.
func Bucket(ctx context.Context, plan *planir.Plan, rows int, in *solver.Input) (*BucketEffect, error) {
	var buckets []int
	for _, program := range plan.Program.Programs {
		if program.Phase == "prefill" {
			buckets = append(buckets, program.Rows)
		}
	}
	slices.Sort(buckets)
	at := slices.Index(buckets, rows)
	if at < 0 {
		return nil, diag.New(diag.ClassUsage, "explain \"@%d\": the plan has no bucket of %d rows", rows, rows).
			WithHint("it has %s", strings.Trim(fmt.Sprint(buckets), "[]"))
	}
	// A prompt of one token is what decode's program executes.
	out := &BucketEffect{Rows: rows, From: 2, To: rows}
	if at > 0 {
		out.From = buckets[at-1] + 1
	}
	if in == nil {
		return out, nil
	}
	trials, err := newBucketTrials(in, plan)
	if err != nil {
		return nil, err
	}
	base, result, err := trials.with(ctx, "these buckets: "+listed(buckets), nil, buckets)
	if err != nil || result == nil {
		return nil, cantSolve(err, base)
	}
	out.Sets = append(out.Sets, base)
	out.Calls, out.Time = callsOf(trials.workload(buckets), in.Model.MaxContext, result.Plan, rows)
	if len(buckets) > 1 {
		rest := slices.DeleteFunc(slices.Clone(buckets), func(b int) bool { return b == rows })
		other, _, err := trials.with(ctx, fmt.Sprintf("without %d", rows), &base, rest)
		if err != nil {
			return nil, err
		}
		out.Sets = append(out.Sets, other)
	}
	for _, bucket := range neighbours(buckets, at, plan.MaxContext) {
		if bucket < 2 || bucket > plan.MaxContext || slices.Contains(buckets, bucket) || plan.Decodes(bucket) {
			continue
		}
		list := append(slices.Clone(buckets), bucket)
		slices.Sort(list)
		other, _, err := trials.with(ctx, fmt.Sprintf("with %d as well", bucket), &base, list)
		out.Sets = append(out.Sets, other)
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

// neighbours returns the rows of one more bucket on either side of bucket number at.
func neighbours(buckets []int, at, most int) []int {
	rows, below := buckets[at], 0
	if at > 0 {
		below = buckets[at-1]
	}
	above := min(2*rows, most)
	if at+1 < len(buckets) {
		above = middle(rows, buckets[at+1])
	}
	return []int{middle(below, rows), above}
}

// bucketTrials solves for sets of buckets, all for the same prompts: otherwise the sets would not be comparable.
type bucketTrials struct {
	*trial
	plan    *planir.Plan
	work    *workload.Workload
	prompts []workload.Prompt
}

// newBucketTrials takes the prompts from the inputs.
func newBucketTrials(in *solver.Input, plan *planir.Plan) (*bucketTrials, error) {
	work := in.Workload
	if work == nil {
		work = workload.Default()
	}
	demand, err := work.Apply(in.Model.MaxContext)
	if err != nil {
		return nil, err
	}
	return &bucketTrials{trial: newTrial(*in, nil), plan: plan, work: work, prompts: demand.AsPrompts(work)}, nil
}

// workload returns the workload of the prompts with a set of buckets.
func (t *bucketTrials) workload(buckets []int) *workload.Workload {
	return workload.Edited(t.work, func(w *workload.Workload) {
		w.Prompts, w.Buckets, w.Context = t.prompts, buckets, t.plan.MaxContext
	})
}

// with solves with a set of buckets. against is the plan that it is compared with, nil for that plan itself.
func (t *bucketTrials) with(ctx context.Context, label string, against *Alternative, buckets []int) (Alternative,
	*solver.Result, error) {
	return t.alternative(ctx, label, against, func(in *solver.Input) {
		in.AllBuckets, in.Workload = true, t.workload(buckets)
	})
}

// middle returns the number halfway between two buckets, a multiple of 16 if there is one between them.
func middle(a, b int) int {
	rows := (a + b) / 2
	if r := rows / 16 * 16; r > a && r < b {
		return r
	}
	return rows
}

// listed writes numbers with commas.
func listed(list []int) string {
	names := make([]string, len(list))
	for i, x := range list {
		names[i] = fmt.Sprint(x)
	}
	return strings.Join(names, ", ")
}

// callsOf returns how many calls of a bucket a prompt makes, and the bucket's part of prefill's expected time.
func callsOf(work *workload.Workload, maxContext int, plan *planir.Plan, rows int) (calls, part float64) {
	demand, err := work.Apply(maxContext)
	if err != nil {
		return 0, 0
	}
	total := 0.0
	for i, bucket := range demand.Buckets {
		for _, pred := range plan.Predictions {
			if pred.Program != fmt.Sprintf("prefill@%d", bucket) {
				continue
			}
			// Share is the expected number of calls that a prompt makes of the bucket.
			ns := float64(demand.Share[i] * float64(pred.PlanNS))
			total += ns
			if bucket == rows {
				calls, part = demand.Share[i], ns
			}
		}
	}
	if total > 0 {
		part /= total
	}
	return calls, part
}

// LimitEffect is a limit, the amount that the plan takes of it, and what relaxing it would gain.
type LimitEffect struct {
	Limit
	Used  string `json:"used,omitempty"`
	Binds bool   `json:"binds"` // without it the plan would take less of what is minimised
	// Step is the next value that changes anything, and Free without the limit: nil where it does not bind, or where
	// no number can be relaxed in steps.
	Step *Alternative `json:"step,omitempty"`
	Free *Alternative `json:"free,omitempty"`
	Note string       `json:"note,omitempty"`
}

// better is how much less of what is minimised has to be taken to count as a change.
const better = 0.9995

// LimitsOf tells for every limit of an input whether it binds, by solving again without it and with it relaxed: by 10
// %, then 20, 40 ... % until something changes. base is the plan as it is.
func LimitsOf(ctx context.Context, in solver.Input) (list []LimitEffect, base Alternative, err error) {
	trial := newTrial(in, limitsOf(&in))
	base, result, err := trial.alternative(ctx, "as it is", nil)
	if err != nil || result == nil {
		return nil, base, cantSolve(err, base)
	}
	for i := range trial.limits {
		limit := &trial.limits[i]
		if limit.Key == "processors.schemes" {
			continue // hypothetical: how fast they would be is not known
		}
		trial.what = fmt.Sprintf("limit %d/%d %s", i+1, len(trial.limits), limit.Key)
		effect := LimitEffect{Limit: *limit}
		if limit.used != nil {
			if used := limit.used(&trial.in, result); !math.IsNaN(used) {
				effect.Used = limit.format(used)
			}
		}
		// A limit binds where the plan without it is better; only then is a smaller relaxation tried.
		if err := trial.without(ctx, &effect, &base); err != nil {
			return nil, base, err
		}
		if effect.Binds {
			if err := trial.relax(ctx, &effect, &base); err != nil {
				return nil, base, err
			}
		}
		list = append(list, effect)
	}
	return list, base, nil
}

// without solves without the limit and fills in the result.
func (t *trial) without(ctx context.Context, effect *LimitEffect, base *Alternative) error {
	free, result, err := t.alternative(ctx, "without it", base, effect.Limit.without)
	if err != nil {
		return err
	}
	switch {
	case result == nil:
		effect.Note = free.Note
	case free.Ratio < better:
		effect.Binds, effect.Free = true, &free
	default:
		for _, warning := range result.Warnings {
			if strings.Contains(warning.Summary, "is left out of") {
				effect.Note = "other schemes were not measured, or not calibrated"
			}
		}
	}
	return nil
}

// relax finds the next value of a limit that changes the plan, or the best addition to a list, and fills it in.
func (t *trial) relax(ctx context.Context, effect *LimitEffect, base *Alternative) error {
	limit := &effect.Limit
	// Steps double, so that few solves reach a hundred times the limit.
	for more := 0.1; limit.set != nil && more < 100; more *= 2 {
		value := limit.ceil(limit.number * (1 + more)) // as it is written
		step, result, err := t.alternative(ctx, "at "+limit.format(value), base,
			func(in *solver.Input) { limit.set(in, value) })
		if err != nil {
			return err
		}
		if result != nil && step.Ratio < better {
			effect.Step = &step
			break
		}
	}
	for _, addition := range limit.wider {
		step, result, err := t.alternative(ctx, "with "+addition.text+" as well", base, addition.do)
		if err != nil {
			return err
		}
		if result != nil && step.Ratio < better && (effect.Step == nil || step.Ratio < effect.Step.Ratio) {
			effect.Step = &step
		}
	}
	return nil
}
