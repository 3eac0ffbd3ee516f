// Package bench knows how plans, kernels, engines and solvers are measured against each other in the same
// run.
package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/machine"
	"github.com/hetc/hetc/cmd/internal/planview"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/socs"
)

type Options struct {
	Plan, Model, SoC       string
	Record, Workload       string
	Calibration            string
	PromptLen, Gen, Rounds int
	All                    bool
}

// candidate is a plan being measured.
type candidate struct {
	Name      string       `json:"name"`
	Prefill   stat.Summary `json:"prefill_ns"`
	Decode    stat.Summary `json:"decode_ns"`
	PrefillNS int64        `json:"predicted_prefill_ns"`
	DecodeNS  int64        `json:"predicted_decode_ns"`

	machine *executor.Machine
	prefill []float64
	decode  []float64
}

func Processors(ctx context.Context, s *cli.Streams, o *Options) error {
	p, err := plantext.Read(o.Plan)
	if err != nil {
		return err
	}
	m, err := models.Open(o.Model)
	if err != nil {
		return err
	}
	defer m.Close()
	soc, err := bindings.SoCOf(p, o.SoC)
	if err != nil {
		return err
	}
	if err := check.Plan(p, m, soc).Err(); err != nil {
		return err
	}
	if need := o.PromptLen + o.Gen; need > p.MaxContext {
		return diag.New(diag.ClassUsage, "--prompt-len %d and --gen %d need a context of %d, the plan has %d", o.PromptLen, o.Gen, need, p.MaxContext)
	}
	cal, err := bindings.ReadCalibration(o.Calibration)
	if err != nil {
		return err
	}
	list, release, err := candidates(ctx, p, m, cal, soc)
	defer release()
	if err != nil {
		return err
	}
	predict(list, p, o)
	virtual, err := measureRounds(ctx, list, o)
	if err != nil {
		return err
	}
	return report(s, p, m, soc, list, o, virtual)
}

// measureRounds measures all candidates in every round, in random order.
func measureRounds(ctx context.Context, list []*candidate, o *Options) (virtual bool, err error) {
	for _, c := range list {
		if e := c.machine.Emulated(); len(e) > 0 {
			return false, diag.New(diag.ClassInput, "measure %q: %s is an emulator, whose times are none of a device's", c.Name, strings.Join(e, ", "))
		}
	}
	rng := rand.New(rand.NewPCG(1, 2)) // the order of measurements, not their values
	for r := -1; r < o.Rounds; r++ {
		for _, i := range rng.Perm(len(list)) {
			c := list[i]
			t, err := runcmd.Round(ctx, c.machine, o.PromptLen, o.Gen)
			if err != nil {
				return false, fmt.Errorf("measure %q: %w", c.Name, err)
			}
			virtual = t.Virtual
			if r < 0 {
				continue
			}
			for _, ns := range t.PrefillNS {
				c.prefill = append(c.prefill, float64(ns))
			}
			var sum float64
			for _, ns := range t.DecodeNS {
				sum += float64(ns)
			}
			c.decode = append(c.decode, sum/float64(len(t.DecodeNS)))
		}
	}
	for _, c := range list {
		if c.Prefill, err = stat.Summarise(c.prefill); err != nil {
			return false, err
		}
		if c.Decode, err = stat.Summarise(c.decode); err != nil {
			return false, err
		}
	}
	return virtual, nil
}

// candidates opens the plan and every single-processor plan with the same schemes and lengths.
func candidates(ctx context.Context, p *planir.Plan, m *models.Model, cal *calibration.Calibration, soc *socs.SoC) (list []*candidate, release func(), err error) {
	f := &fleet{model: m, cal: cal, soc: soc}
	release = f.close
	names, plans := []string{"plan"}, []*planir.Plan{p}
	procs := p.Procs
	if soc != nil { // with the SoC also those that the plan leaves idle
		procs = nil
		for i := range soc.Processors {
			procs = append(procs, check.Proc(&soc.Processors[i]))
		}
	}
	for i := range procs {
		single, err := singlePlan(p, m, &procs[i])
		if err != nil {
			continue // it lacks an operator or a scheme: not an alternative
		}
		names, plans = append(names, procs[i].Name), append(plans, single)
	}
	// Packed weights that are equal are held once; those of the plan stand for all.
	if err := runcmd.EnoughMemory(plans, runcmd.WeightBytes(p), machine.FreeMemory()); err != nil {
		return nil, release, fmt.Errorf("measure %d plans side by side: %w", len(plans), err)
	}
	for i := range plans {
		if err := f.open(ctx, names[i], plans[i]); err != nil {
			return nil, release, err
		}
	}
	return f.list, release, nil
}

// fleet is plans of one model, each open on a machine of its own. Packed weights that are equal are held once.
type fleet struct {
	model *models.Model
	cal   *calibration.Calibration
	soc   *socs.SoC

	list    []*candidate
	first   *emit.Content
	threads int
	closers []func() error
}

func (f *fleet) close() {
	for _, c := range slices.Backward(f.closers) {
		_ = c()
	}
}

func (f *fleet) open(ctx context.Context, name string, p *planir.Plan) error {
	c, err := emit.NewCalibrated(ctx, p, f.model, f.cal, bindings.Compilers(f.soc))
	if err != nil {
		return err
	}
	f.closers = append(f.closers, c.Close)
	if f.first == nil {
		f.first = c
	} else {
		c.ShareWith(f.first)
	}
	f.threads += executor.Threads(p)
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), f.threads+2))
	x, err := executor.Open(ctx, p, runcmd.UntilDone(ctx, c), executor.Options{Drivers: bindings.Drivers(f.soc)})
	if err != nil {
		return fmt.Errorf("open %q: %w", name, err)
	}
	f.closers = append(f.closers, x.Close)
	f.list = append(f.list, &candidate{Name: name, machine: x})
	return nil
}

// singlePlan is p with everything on one processor.
func singlePlan(p *planir.Plan, m *models.Model, proc *planir.Proc) (*planir.Plan, error) {
	q := *p
	q.Procs = []planir.Proc{*proc}
	q.SoC.Control = proc.Name
	var rows []int
	q.Batches = nil // one sequence is measured
	for _, ph := range p.Program.Programs {
		if !ph.Batch() {
			rows = append(rows, ph.Rows)
		}
	}
	g := m.Graph()
	var err error
	q.Decisions, err = lower.Trivial(&g, proc.Name, rows, p.MaxContext, p.KV, func(node string, r int) op.Scheme {
		for _, at := range []int{r, 1} {
			if d := p.DecisionFor(node, at); d != nil {
				return d.Scheme
			}
		}
		return ""
	})
	if err != nil {
		return nil, err
	}
	if err := lower.Lower(&q, &g); err != nil {
		return nil, err
	}
	return &q, planir.Check(&q).Err()
}

// predict fills in what the plan predicts for a prompt and a token.
func predict(list []*candidate, p *planir.Plan, o *Options) {
	time := func(program, proc string) int64 {
		for _, pr := range p.Predictions {
			if pr.Program != program {
				continue
			}
			if proc == "" {
				return pr.PlanNS
			}
			for _, x := range pr.Singles {
				if x.Proc == proc {
					return x.NS
				}
			}
		}
		return 0
	}
	for _, c := range list {
		proc := c.Name
		if c.machine.Plan() == p {
			proc = ""
		}
		for n := o.PromptLen; n > 0; {
			for _, d := range p.Program.Decider {
				if n >= d.Min && n <= d.Max {
					c.PrefillNS += time(d.Program, proc)
					for _, ph := range p.Program.Programs {
						if ph.Name == d.Program {
							n -= min(n, ph.Rows)
						}
					}
					break
				}
			}
		}
		c.DecodeNS = time("decode", proc)
	}
}

func report(s *cli.Streams, p *planir.Plan, m *models.Model, soc *socs.SoC, list []*candidate, o *Options, virtual bool) error {
	planview.ShowDecisions(s, p, soc)
	s.Printf("\n")

	measured := "measured"
	if virtual {
		measured = "simulated"
	}
	s.Printf("%s, prompt of %d tokens, %d decoded, medians of %d interleaved rounds:\n", measured, o.PromptLen, o.Gen, o.Rounds)
	var rows [][]string
	cell := func(x stat.Summary, predicted int64) []string {
		ms := func(ns float64) string { return fmt.Sprintf("%.3f", ns/1e6) }
		out := []string{ms(x.Median), fmt.Sprintf("%s..%s", ms(x.Low), ms(x.High)), "-", "-"}
		if predicted > 0 {
			out[2] = ms(float64(predicted))
			out[3] = fmt.Sprintf("%+.0f %%", 100*(float64(predicted)/x.Median-1))
		}
		return out
	}
	best := func(get func(*candidate) float64) float64 {
		b := 0.0
		for _, c := range list[1:] {
			if v := get(c); b == 0 || v < b {
				b = v
			}
		}
		return b
	}
	bp := best(func(c *candidate) float64 { return c.Prefill.Median })
	bd := best(func(c *candidate) float64 { return c.Decode.Median })
	for _, c := range list {
		row := append([]string{c.Name, "prefill"}, cell(c.Prefill, c.PrefillNS)...)
		row = append(row, ratio(bp, c.Prefill.Median))
		rows = append(rows, row)
	}
	for _, c := range list {
		row := append([]string{c.Name, "decode"}, cell(c.Decode, c.DecodeNS)...)
		row = append(row, ratio(bd, c.Decode.Median))
		rows = append(rows, row)
	}
	s.Table([]string{"candidate", "phase", ">median ms", ">95 % interval", ">predicted ms", ">error", ">best single / this"}, rows)

	bytes := decodeBytes(p)
	doc := map[string]any{"soc": p.SoC.Name, "simulated": virtual, "prompt_len": o.PromptLen, "gen": o.Gen, "rounds": o.Rounds, "candidates": list, "weight_bytes_per_token": bytes}
	plan := list[0]
	rate := float64(bytes) / plan.Decode.Median
	s.Printf("\ndecode reads %.1f MB of weights a token: %.1f GB/s", float64(bytes)/1e6, rate)
	if soc != nil && !virtual {
		var single []string // those that the plan runs side by side when decoding
		for _, ph := range p.Program.Programs {
			if ph.Rows == 1 {
				for _, sec := range ph.Sections {
					for _, l := range sec.Lanes {
						if !slices.Contains(single, l.Proc) {
							single = append(single, l.Proc)
						}
					}
				}
			}
		}
		if joint, ok := soc.JointGBps(single...); ok {
			sum := 0.0
			for _, c := range list[1:] {
				if slices.Contains(single, c.Name) {
					sum += 1e9 / c.Decode.Median
				}
			}
			bound := min(sum, joint*1e9/float64(bytes))
			tps := 1e9 / plan.Decode.Median
			s.Printf(", %.0f %% of the joint %.1f GB/s\nplan %.2f tokens/s, %.2f of min(sum of singles %.2f, joint bandwidth / bytes %.2f)", 100*rate/joint, joint, tps, tps/bound, sum, joint*1e9/float64(bytes))
			doc["joint_gbps"], doc["share_of_joint"], doc["share_of_bound"] = joint, rate/joint, tps/bound
		}
	}
	s.Printf("\n")
	return s.Result(doc)
}

func ratio(a, b float64) string { return fmt.Sprintf("%.2f", a/b) }

// decodeBytes is what one decoded token reads of the packed weights of matrices, of those of experts as many
// as a token is given to.
func decodeBytes(p *planir.Plan) int64 {
	packs := map[string]*planir.Pack{}
	for i := range p.Program.Packs {
		packs[p.Program.Packs[i].Name] = &p.Program.Packs[i]
	}
	fan := map[string]int{} // by graph
	for i := range p.Program.Graphs {
		g := &p.Program.Graphs[i]
		fan[g.Name] = g.Graph.Nodes[0].Op.Fan
	}
	var sum int64
	for _, ph := range p.Program.Programs {
		if ph.Rows != 1 {
			continue
		}
		for _, sec := range ph.Sections {
			for _, l := range sec.Lanes {
				for _, st := range l.Steps {
					for _, w := range st.W {
						k := packs[w.Pack]
						if k.Layout == op.RowsLayout {
							continue
						}
						bytes := k.Bytes * int64(w.C1-w.C0) / int64(k.N1-k.N0)
						if k.Experts > 0 {
							bytes = bytes / int64(k.Experts) * int64(min(fan[st.Run], k.Experts))
						}
						sum += bytes * int64(max(1, sec.Layers))
					}
				}
			}
		}
	}
	return sum
}
