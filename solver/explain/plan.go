package explain

import (
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
	"github.com/hetc/hetc/solver/workload"
)

// ProgramStory is where the time of one execution of a program goes, as the plan itself predicts it. Nothing of it is
// measured here.
type ProgramStory struct {
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
	// WeightBytes are read by matrix products, and Flops computed by them and by attentions.
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

// Gain is how many times as fast the program is as its best single processor; 0 where there is none.
func (s *ProgramStory) Gain() float64 {
	if s.Best == nil || s.PlanNS <= 0 {
		return 0
	}
	return float64(s.Best.NS) / float64(s.PlanNS)
}

// Stories tells of every program of a plan, in the plan's order.
func Stories(p *planir.Plan) []ProgramStory {
	graphs := map[string]*op.Graph{}
	for i := range p.Program.Graphs {
		graphs[p.Program.Graphs[i].Name] = &p.Program.Graphs[i].Graph
	}
	var out []ProgramStory
	for i := range p.Program.Programs {
		ph := &p.Program.Programs[i]
		s := ProgramStory{Program: ph.Name, Phase: ph.Phase, Rows: ph.Rows}
		for _, pred := range p.Predictions {
			if pred.Program != ph.Name {
				continue
			}
			s.PlanNS, s.LowNS, s.HighNS = pred.PlanNS, pred.LowNS, pred.HighNS
			for k := range pred.Singles {
				if x := pred.Singles[k]; s.Best == nil || x.NS < s.Best.NS {
					s.Best = &x
				}
			}
		}
		busy, times := map[string]int64{}, map[string]int64{}
		var divided int64
		for j := range ph.Sections {
			sec := &ph.Sections[j]
			layers := int64(max(1, sec.Layers))
			kinds := map[string]op.Kind{}
			var nodes []string
			for _, l := range sec.Lanes {
				for k := range l.Steps {
					st := &l.Steps[k]
					busy[l.Proc] += layers * st.ExpectNS
					g := graphs[st.Run]
					if g == nil {
						continue
					}
					names := st.Nodes()
					for n, name := range names {
						if !slices.Contains(nodes, name) {
							nodes = append(nodes, name)
						}
						o := g.Nodes[len(g.Nodes)-1].Op
						if len(names) == len(g.Nodes) {
							o = g.Nodes[n].Op
						}
						if o.Kind == op.MatMul || o.Kind == op.Attention || kinds[name] == "" {
							kinds[name] = o.Kind
						}
					}
					for _, n := range g.Nodes {
						switch o := n.Op; {
						case o.HasScheme() && o.Kind == op.MatMul:
							experts := 1
							if o.Experts > 0 {
								experts = min(o.Rows(), o.Experts)
							}
							s.WeightBytes += layers * int64(experts) * op.WeightBytes(o.Scheme.Weight(), o.K, o.N)
							s.Flops += layers * o.Flops()
						case o.Kind == op.Attention:
							s.Flops += layers * o.Flops()
						}
					}
				}
			}
			for _, name := range nodes {
				d := solver.DecisionAt(p, name, ph.Rows)
				if d == nil {
					continue
				}
				var work int64
				for _, sh := range d.Shares {
					work = max(work, sh.PredictNS)
				}
				work = min(work, d.PredictNS)
				times[name] += layers * d.PredictNS
				s.HandoverNS += layers * (d.PredictNS - work)
				switch kinds[name] {
				case op.MatMul:
					s.ProductsNS += layers * work
					if len(d.Shares) > 1 {
						divided += layers * work
					}
				case op.Attention:
					s.AttentionNS += layers * work
				default:
					s.OtherNS += layers * work
				}
			}
		}
		if s.ProductsNS > 0 {
			s.Divided = float64(divided) / float64(s.ProductsNS)
		}
		for name, ns := range busy {
			if ns > 0 {
				s.Busy = append(s.Busy, Busy{name, ns})
			}
		}
		sort.Slice(s.Busy, func(a, b int) bool {
			if s.Busy[a].NS != s.Busy[b].NS {
				return s.Busy[a].NS > s.Busy[b].NS
			}
			return s.Busy[a].Proc < s.Busy[b].Proc
		})
		for name, ns := range times {
			s.Slowest = append(s.Slowest, OperatorTime{name, ns})
		}
		sort.Slice(s.Slowest, func(a, b int) bool {
			if s.Slowest[a].NS != s.Slowest[b].NS {
				return s.Slowest[a].NS > s.Slowest[b].NS
			}
			return s.Slowest[a].Node < s.Slowest[b].Node
		})
		s.Slowest = s.Slowest[:min(4, len(s.Slowest))]
		out = append(out, s)
	}
	return out
}

// SameInputs tells in what the inputs differ from those that a plan was solved from: "costs", "workload". The
// model, the SoC and the context must be the plan's: else the error is of class ClassInput.
func SameInputs(p *planir.Plan, in *solver.Input) (differ []string, err error) {
	model, err := in.Model.Digest()
	if err != nil {
		return nil, err
	}
	soc, err := in.WholeSoC().Digest()
	if err != nil {
		return nil, err
	}
	switch {
	case model != p.Model.Digest:
		return nil, diag.New(diag.ClassInput, "explain: the plan is for model %q with digest %.12s, and %q has %.12s", p.Model.Name, p.Model.Digest, in.Model.Name, model).
			WithHint("give the model the plan was solved for")
	case soc != p.SoC.Digest:
		return nil, diag.New(diag.ClassInput, "explain: the plan is for SoC %q with digest %.12s, and %q has %.12s", p.SoC.Name, p.SoC.Digest, in.SoC.Name, soc).
			WithHint("give the SoC file the plan was solved with")
	}
	w := in.Workload
	if w == nil {
		w = workload.Default()
	}
	have := map[string]func() (string, error){"costs": in.Costs.Digest, "workload": w.Digest}
	if in.Calibration != nil {
		have[planir.CalibrationInput] = in.Calibration.Digest
	}
	if in.Facts != nil {
		have[solver.FactsInput] = in.Facts.FactsDigest
	}
	for _, x := range p.Inputs {
		digest := have[x.Kind]
		if x.Kind == "loads" {
			if in.Loads == nil {
				continue // tiers are not solved again
			}
			digest = in.Loads.Digest
		}
		if digest == nil {
			differ = append(differ, x.Kind)
			continue
		}
		d, err := digest()
		if err != nil {
			return nil, err
		}
		if d != x.Digest {
			differ = append(differ, x.Kind)
		}
	}
	return differ, nil
}

// Alternative is a plan under other conditions, beside the plan with the input as it is.
type Alternative struct {
	What string `json:"what"` // "without host:1", "prefill@384 as well"
	// ExpectedNS is its objective, the expected time of a request; 0 where there is no such plan, and Note says why.
	ExpectedNS float64 `json:"expected_ns,omitempty"`
	Ratio      float64 `json:"ratio,omitempty"` // to the plan's: above 1 is slower
	Note       string  `json:"note,omitempty"`
}

// alternative solves the input with changes.
func (t *trial) alternative(ctx context.Context, what string, base float64, changes ...func(*solver.Input)) (Alternative, *solver.Result, error) {
	a, err := t.solve(ctx, changes...)
	if err != nil {
		return Alternative{}, nil, err
	}
	out := Alternative{What: what}
	if a.result == nil {
		out.Note = firstLine(a.err)
		return out, nil, nil
	}
	out.ExpectedNS = a.result.ExpectedNS
	out.Ratio = out.ExpectedNS / base
	return out, a.result, nil
}

func firstLine(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return strings.TrimPrefix(text, "solve: ")
}

// Without solves the input again without each processor that the plan uses, and with each of them alone. The first entry is the input
// as it is.
func Without(ctx context.Context, p *planir.Plan, in solver.Input) ([]Alternative, error) {
	t := newTrial(in, nil)
	base, r, err := t.alternative(ctx, "this plan", 1)
	if err != nil || r == nil {
		return nil, cantSolve(err, base)
	}
	base.Ratio = 1
	out := []Alternative{base}
	used := map[string]bool{}
	for _, d := range p.Decisions {
		for _, sh := range d.Shares {
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
		rest := slices.DeleteFunc(slices.Clone(all), func(x string) bool { return x == name })
		if !used[name] || len(rest) == 0 {
			continue
		}
		a, r, err := t.alternative(ctx, "without "+name, base.ExpectedNS, func(x *solver.Input) { x.Only = rest })
		if err != nil {
			return nil, err
		}
		if r != nil && slices.ContainsFunc(r.Plan.Decisions, func(d planir.Decision) bool {
			return slices.ContainsFunc(d.Shares, func(s planir.Share) bool { return s.Proc == name })
		}) {
			a.Note = name + " still executes what the others cannot"
		}
		out = append(out, a)
	}
	sort.SliceStable(out[1:], func(i, j int) bool {
		x, y := out[1+i], out[1+j]
		return x.ExpectedNS > 0 && (y.ExpectedNS == 0 || x.ExpectedNS < y.ExpectedNS)
	})
	return out, nil
}

func cantSolve(err error, a Alternative) error {
	if err != nil {
		return err
	}
	return diag.New(diag.ClassInput, "explain: these inputs give no plan: %s", a.Note).WithHint("give the inputs the plan was solved with")
}

// BucketStory is why a bucket exists: the prompts it is for, and what prefill would cost without it and with one more.
type BucketStory struct {
	Rows int `json:"rows"`
	// From and To are the lengths of calls that the bucket takes; longer prompts are cut into pieces of the largest bucket.
	From int `json:"from"`
	To   int `json:"to"`
	// Calls is how many calls a prompt makes of it on average, and Time its part of the expected time of prefill. NaN
	// and absent without inputs.
	Calls float64 `json:"calls,omitempty"`
	Time  float64 `json:"time,omitempty"`
	// Without it, and with one more beside it, solved again for the same prompts; the first entry is the buckets as they are.
	Sets []Alternative `json:"sets,omitempty"`
}

// Bucket tells of the bucket of that many rows. in may be nil: then only what the plan says is told.
func Bucket(ctx context.Context, p *planir.Plan, rows int, in *solver.Input) (*BucketStory, error) {
	var buckets []int
	for _, ph := range p.Program.Programs {
		if ph.Phase == "prefill" {
			buckets = append(buckets, ph.Rows)
		}
	}
	slices.Sort(buckets)
	at := slices.Index(buckets, rows)
	if at < 0 {
		return nil, diag.New(diag.ClassUsage, "explain \"@%d\": the plan has no bucket of %d rows", rows, rows).WithHint("it has %s", strings.Trim(fmt.Sprint(buckets), "[]"))
	}
	out := &BucketStory{Rows: rows, From: 2, To: rows}
	if at > 0 {
		out.From = buckets[at-1] + 1
	}
	if in == nil {
		return out, nil
	}
	w := in.Workload
	if w == nil {
		w = workload.Default()
	}
	d, err := w.Apply(in.Model.MaxContext)
	if err != nil {
		return nil, err
	}
	prompts := d.AsPrompts(w)
	fixed := func(list []int) func(*solver.Input) {
		return func(x *solver.Input) {
			x.AllBuckets = true
			x.Workload = workload.Edited(w, func(w *workload.Workload) { w.Prompts, w.Buckets, w.Context = prompts, list, p.MaxContext })
		}
	}
	t := newTrial(*in, nil)
	base, r, err := t.alternative(ctx, "these buckets: "+listed(buckets), 1, fixed(buckets))
	if err != nil || r == nil {
		return nil, cantSolve(err, base)
	}
	base.Ratio = 1
	out.Sets = append(out.Sets, base)
	out.Calls, out.Time = callsOf(workload.Edited(w, func(w *workload.Workload) { w.Prompts, w.Buckets, w.Context = prompts, buckets, p.MaxContext }), in.Model.MaxContext, r.Plan, rows)
	if len(buckets) > 1 {
		rest := slices.DeleteFunc(slices.Clone(buckets), func(b int) bool { return b == rows })
		a, _, err := t.alternative(ctx, fmt.Sprintf("without %d", rows), base.ExpectedNS, fixed(rest))
		if err != nil {
			return nil, err
		}
		out.Sets = append(out.Sets, a)
	}
	more := func(b int) error {
		if b < 2 || b > p.MaxContext || slices.Contains(buckets, b) || p.Decodes(b) {
			return nil
		}
		list := append(slices.Clone(buckets), b)
		slices.Sort(list)
		a, _, err := t.alternative(ctx, fmt.Sprintf("with %d as well", b), base.ExpectedNS, fixed(list))
		out.Sets = append(out.Sets, a)
		return err
	}
	below := 0
	if at > 0 {
		below = buckets[at-1]
	}
	if err := more(middle(below, rows)); err != nil {
		return nil, err
	}
	if at+1 < len(buckets) {
		err = more(middle(rows, buckets[at+1]))
	} else {
		err = more(min(2*rows, p.MaxContext))
	}
	return out, err
}

// middle is half-way between two buckets, a multiple of 16 where there is one between them.
func middle(a, b int) int {
	m := (a + b) / 2
	if r := m / 16 * 16; r > a && r < b {
		return r
	}
	return m
}

func listed(list []int) string {
	names := make([]string, len(list))
	for i, x := range list {
		names[i] = fmt.Sprint(x)
	}
	return strings.Join(names, ", ")
}

// callsOf is how many calls of a bucket a prompt makes, and the bucket's part of prefill's expected time.
func callsOf(w *workload.Workload, maxContext int, p *planir.Plan, rows int) (calls, part float64) {
	d, err := w.Apply(maxContext)
	if err != nil {
		return 0, 0
	}
	total := 0.0
	for i, b := range d.Buckets {
		for _, pred := range p.Predictions {
			if pred.Program != fmt.Sprintf("prefill@%d", b) {
				continue
			}
			ns := float64(d.Share[i] * float64(pred.PlanNS))
			total += ns
			if b == rows {
				calls, part = d.Share[i], ns
			}
		}
	}
	if total > 0 {
		part /= total
	}
	return calls, part
}

// LimitStory is a limit, what the plan takes of it, and what relaxing it would buy.
type LimitStory struct {
	Limit
	Used  string `json:"used,omitempty"`
	Binds bool   `json:"binds"` // without it the expected time would be less
	// Step is the next value that changes anything, and Free without the limit: nil where it does not bind, or where no
	// number can be relaxed in steps.
	Step *Alternative `json:"step,omitempty"`
	Free *Alternative `json:"free,omitempty"`
	Note string       `json:"note,omitempty"`
}

// better is how much less the expected time has to be to count as a change.
const better = 0.9995

// LimitsOf tells for every limit of an input whether it binds, by solving again without it and with it relaxed: by 10 %, then 20, 40 ...
// % until something changes. expectedNS is the objective as it is.
func LimitsOf(ctx context.Context, in solver.Input) (list []LimitStory, expectedNS float64, err error) {
	t := newTrial(in, limitsOf(&in))
	base, r, err := t.alternative(ctx, "as it is", 1)
	if err != nil || r == nil {
		return nil, 0, cantSolve(err, base)
	}
	for i := range t.limits {
		l := &t.limits[i]
		if l.Key == "processors.schemes" {
			continue // hypothetical: nobody knows how fast they would be
		}
		t.what = fmt.Sprintf("limit %d/%d %s", i+1, len(t.limits), l.Key)
		s := LimitStory{Limit: *l}
		if l.used != nil {
			if u := l.used(&t.in, r); !math.IsNaN(u) {
				s.Used = l.format(u)
			}
		}
		free, fr, err := t.alternative(ctx, "without it", base.ExpectedNS, l.without)
		if err != nil {
			return nil, 0, err
		}
		switch {
		case fr == nil:
			s.Note = free.Note
		case free.Ratio < better:
			s.Binds, s.Free = true, &free
		default:
			for _, w := range fr.Warnings {
				if strings.Contains(w.Summary, "is left out of") {
					s.Note = "other schemes were not measured, or not calibrated"
				}
			}
		}
		if s.Binds && l.set != nil {
			for f := 0.1; f < 100; f *= 2 {
				v := l.number * (1 + f)
				if l.whole {
					v = math.Ceil(v)
				}
				a, sr, err := t.alternative(ctx, "at "+l.format(v), base.ExpectedNS, func(x *solver.Input) { l.set(x, v) })
				if err != nil {
					return nil, 0, err
				}
				if sr != nil && a.Ratio < better {
					s.Step = &a
					break
				}
			}
		}
		if s.Binds {
			for _, w := range l.wider {
				a, wr, err := t.alternative(ctx, "with "+w.text+" as well", base.ExpectedNS, w.do)
				if err != nil {
					return nil, 0, err
				}
				if wr != nil && a.Ratio < better && (s.Step == nil || a.Ratio < s.Step.Ratio) {
					s.Step = &a
				}
			}
		}
		list = append(list, s)
	}
	return list, base.ExpectedNS, nil
}
