// Package solver knows which processor should execute which part of every operator: it prices the ways
// to execute them, poses the partition problem of each section and number of rows, has an engine solve
// it, and turns the answers into a plan that carries its alternatives, predictions and proofs.
package solver

import (
	"context"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/socs/timeline"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// Input is everything a plan depends on.
type Input struct {
	Model    *models.Model
	SoC      *socs.SoC // what may be used of it
	Costs    *roofline.Costs
	Workload *workload.Workload // nil: DefaultWorkload
	Engine   problem.Engine
	// Calibration says what each scheme costs; nil where the workload bounds no quality.
	Calibration *calibration.Calibration
	// Loads are what a router sends to every expert; nil: no capacity tiers are chosen.
	Loads *workload.Loads
	// Facts are what the compiler of the device said about graphs (record.Facts; nothing else of the set is used). Only plans for the
	// device take them into account (ForTarget). nil: nothing is known.
	Facts *record.Set
	// MaxMemory bounds what a process that executes the plan holds, in bytes; 0: the workload's bound.
	MaxMemory int64
	// WorkingMemory bounds what Solve itself keeps of candidates, problems and combinations, in bytes as it counts them; 0:
	// DefaultWorkingMemory. Where a search would keep more it ends, and its result is Feasible; where the problem itself
	// takes more Solve ends with an error of class ClassUnavailable.
	WorkingMemory int64
	// Progress is called where a solve stands, often; nil: nobody looks.
	Progress func(Progress)

	// Only names the processors that execute everything they can. What one of them cannot may be left to those that take
	// turns with it on its first core, or else to the control processor. Empty: all processors.
	Only []string
	// Strategies are those that plans are made of, to compare with; empty: all. One processor at a time (single, padding) is always
	// there where nothing else is: of those alone a plan places whole operators (HeteroInfer's layer-level mode).
	Strategies []planir.Strategy
	// Ratio divides the columns of every matrix among the processors it names, in these parts of the whole as nearly as their
	// granularity allows, to compare with; empty: what is best. Everything else goes to one of them.
	Ratio map[string]float64

	// AllBuckets has every listed bucket get its program, to compare with; else those that only slow prompts down, or that a limit has no
	// room for, are left out, the largest first.
	AllBuckets bool

	// Whole is the SoC of which SoC is the part that its device executes (ForTarget); nil: SoC is all of it.
	Whole *socs.SoC
	// WhatIf is what a solve supposes that explains another one.
	WhatIf WhatIf
	// Prices are what other solves with these costs have asked for; nil: nothing. Solves that share them repeat nothing.
	Prices *price.Fitted

	ledger *ledger // nil: of one session alone
}

// WhatIf is what a solve supposes that tells what a limit costs or prevents. Its plan is no plan of the machine.
type WhatIf struct {
	// OtherSoC: the SoC differs from the one that the costs were fitted for, in limits or capabilities.
	OtherSoC bool
	// AnyScheme: what was never measured, because no processor executes it, takes another scheme's time. That tells whether there
	// is a plan, and nothing of how fast it is.
	AnyScheme bool
}

// Minimise has the solve look for the plan that takes least of a measure.
func (in *Input) Minimise(measure problem.Measure) {
	in.Workload = workload.Edited(in.Workload, func(w *workload.Workload) { w.Minimise = measure })
}

// Result is a plan and what its user should know about it.
type Result struct {
	Plan     *planir.Plan
	Warnings diag.List
	// ExpectedNS is the workload's objective: the mean time of a prompt's prefill and of its answer's
	// decoding, each times its weight.
	ExpectedNS float64
	// ExpectedNJ is the same of the energy, modelled from the SoC's power, in nanojoules; 0 where that is not known.
	ExpectedNJ float64
	// WorkingBytes is the most that was kept at a time, as Input.WorkingMemory counts it.
	WorkingBytes int64
	// JointObjective is that of the plan's joint problem, in the unit in which an engine got it; 0: there is none.
	JointObjective int64

	by *session // that decided it
}

// policy is what restricts the ways to execute operators.
func (in *Input) policy() *price.Policy {
	return &price.Policy{Only: in.Only, Strategies: in.Strategies, Ratio: in.Ratio}
}

// cacheType is the element type of the KV cache: stored precision, as nobody offered less.
const cacheType = op.F32

// Solve makes a plan. It depends on nothing but its input: equal inputs give equal plans.
//
// Errors are of class ClassInfeasible when no plan can satisfy the limits, of class ClassInput when
// the costs lack something, each naming it.
func Solve(ctx context.Context, in Input) (*Result, error) {
	in.ledger = newLedger(&in)
	s, err := newSession(in)
	if err != nil {
		return nil, err
	}
	var r *Result
	if s.open() {
		r, err = s.sized(ctx)
	} else {
		r, err = s.solve(ctx)
	}
	if err != nil {
		return nil, err
	}
	r.WorkingBytes = in.ledger.peak
	for _, x := range r.Plan.Solver {
		r.JointObjective += in.ledger.joints[x]
	}
	return r, nil
}

// solve makes the plan for the buckets and batches there are.
func (s *session) solve(ctx context.Context) (*Result, error) {
	in := s.in
	if err := s.calibrated(); err != nil {
		return nil, err
	}
	if err := s.chooseSchemes(ctx); err != nil {
		return nil, err
	}
	bound := in.MaxMemory
	if bound == 0 {
		bound = int64(s.in.Workload.Memory)
	}
	free := s
	s, plan, err := s.planWithin(ctx, bound)
	if err != nil {
		return nil, err
	}
	if s != free {
		free.close()
	}
	defer s.close()
	plan.Memory.Max, plan.Quality, plan.Compiled = bound, s.quality(), s.compiled(plan)
	if p := s.packed; p != nil && p.not != nil && eightBit(s.decode[p.head]) {
		s.note("the embedding is not looked up in the 8-bit head, and takes memory beside it: %v", p.not)
	}
	if err := s.tiers(ctx, plan); err != nil {
		return nil, err
	}
	found := check.Plan(plan, in.Model, in.WholeSoC())
	if err := found.Err(); err != nil {
		full := slices.IndexFunc(found, func(d *diag.Diagnostic) bool { return d.Code == "P027" })
		if full < 0 {
			return nil, diag.New(diag.ClassInternal, "BUG: the solved plan is illegal: %w", err)
		}
		return nil, diag.New(diag.ClassInfeasible, "no plan was found that fits the SoC: %s", found[full].Summary).
			WithHint("permit a scheme with fewer bits, or fewer buckets, in the workload")
	}
	s.checkMemory(plan)
	expected, err := s.expectedNS(plan)
	if err != nil {
		return nil, err
	}
	return &Result{Plan: plan, Warnings: s.notes, ExpectedNS: expected, ExpectedNJ: s.expectedNJ(plan), by: s}, nil
}

// session is one solve.
type session struct {
	in     Input
	graph  models.Graph
	batch  models.Graph // graph of rows of a sequence each
	want   *workload.Demand
	prices price.Costs
	facts  *price.Facts // nil: none are known
	*price.Machine
	notes     diag.List // warnings so far
	classes   []class
	classOf   map[string]int // by node
	packed    *packed        // nil: the embedding reads rows as they are stored
	phases    [2]*phase      // prefill, decode
	priced    map[string]bool
	listed    bool // bounds on assignments rely on the pools
	pools     map[poolKey]*pool
	instances map[string]*instance    // by sectionKey
	programs  map[programKey]*program // posed so far
	memory    *timeline.Machine       // see sharing
	shelf     *shelf
	leasts    map[string][]int64   // by sectionKey, of each set of processors; nil: not known
	sides     map[string]*side     // branches of forks, by the schemes of their nodes
	crossings map[string]*crossing // forks, by the same
	divisions []planir.Decision    // how programs divide columns, offered to each other
	said      map[string]bool      // processors whose lack of prices was mentioned
	prefill   assignment           // chosen
	decode    assignment
	chosen    *planir.Solve       // how, nil when there was no choice
	bounds    []bound             // that all programs keep together
	ledger    *ledger             // of what is kept, shared with sessions of the same solve
	kept      int64               // bytes of it, of candidates and combinations
	cached    int64               // bytes of it, of posed problems
	phase     string              // what a search for schemes is for, "" for the plan without a bound of memory
	nodes     int64               // of the search for them, 0: the engine's own limit
	goal      problem.Measure     // what is minimised
	waived    []problem.LimitKind // bounds that do not count
	settled   bool                // no program is given to its best single processor
	thinned   bool                // joint problems do not have all candidates
	tight     bool                // joint problems count buffers, scratch and steps where memory is bounded
}

type programKey struct {
	rows    int
	schemes string
}

// program is the problem of one number of rows.
type program struct {
	name      string
	sections  []lower.Section
	instances []*instance
	choices   [][]int          // by itself, once solved: of the posed chains
	alone     map[string]int64 // on one processor, predicted: see timeSingles
	report    planir.Solve
}

// calibrated checks that limits of quality and static scales come with a calibration of this model.
func (s *session) calibrated() error {
	if s.in.Calibration == nil {
		for _, x := range slices.Concat(s.want.Prefill, s.want.Decode, s.want.Head) {
			if x.Static() && s.want.MaxKL == (workload.KLLimit{}) {
				return diag.New(diag.ClassInput, "solve: %s permits %q, whose static scales come from a calibration, and none is given", s.in.Workload.Title(), x).
					WithHint("make one with hetc calibrate --model DIR --text FILE -o cal.yaml, and give it with --calibration cal.yaml")
			}
		}
		if !s.want.MaxKL.Measured() {
			return nil
		}
		return diag.New(diag.ClassInput, "solve: %s bounds quality, and no calibration says what the schemes cost", s.in.Workload.Title()).
			WithHint("make one with hetc calibrate --model DIR --text FILE -o cal.yaml, and give it with --calibration cal.yaml")
	}
	digest, err := s.in.Model.Digest()
	if err != nil {
		return err
	}
	return s.in.Calibration.CheckModel(s.in.Model.Name, digest)
}

func newSession(in Input) (*session, error) {
	switch {
	case in.Model == nil || in.SoC == nil || in.Costs == nil || in.Engine == nil:
		panic("BUG: solve needs a model, a SoC, costs and an engine")
	case in.Costs.SoC != in.SoC.Name || in.Costs.Fingerprint != in.SoC.Fingerprint:
		return nil, diag.New(diag.ClassInput, "solve: costs are of SoC %q (fingerprint %q), and this is %q (%q)", in.Costs.SoC, in.Costs.Fingerprint, in.SoC.Name, in.SoC.Fingerprint).
			WithHint("profile this SoC and fit its costs")
	}
	digest, err := in.WholeSoC().Digest()
	if err != nil {
		return nil, err
	}
	if in.Costs.SoCDigest != digest && !in.WhatIf.OtherSoC {
		return nil, diag.New(diag.ClassInput, "solve: costs are of SoC %q with digest %.12s, want %.12s", in.Costs.SoC, in.Costs.SoCDigest, digest).
			WithHint("give the SoC file the costs were fitted with, or profile again")
	}
	if in.Costs.Simulated != in.SoC.Simulated() { // a plan says whether its times were measured: this decides it
		return nil, diag.New(diag.ClassInput, "solve: costs say simulated: %v, and SoC %q says %v", in.Costs.Simulated, in.SoC.Name, in.SoC.Simulated()).
			WithHint("fit the costs again from their record")
	}
	if in.Workload == nil {
		in.Workload = workload.Default()
	}
	if err := in.Workload.Validate(); err != nil {
		return nil, err
	}
	if err := in.policy().Check(in.SoC); err != nil {
		return nil, err
	}
	want, err := in.Workload.Apply(in.Model.MaxContext)
	if err != nil {
		return nil, err
	}
	if err := in.checkTarget(want); err != nil {
		return nil, err
	}
	if err := in.checkExperts(want); err != nil {
		return nil, err
	}
	if err := in.checkImported(); err != nil {
		return nil, err
	}
	return sessionFor(in, want)
}

// sessionFor is a session for a demand that need not be all of the workload's.
func sessionFor(in Input, want *workload.Demand) (*session, error) {
	if in.Prices == nil || !in.Prices.IsOf(in.Costs) {
		in.Prices = price.NewFitted(in.Costs, in.SoC)
	}
	s := &session{in: in, graph: in.Model.Graph(), want: want, goal: in.Workload.Minimise, prices: in.Prices.With(in.SoC), said: map[string]bool{},
		priced: map[string]bool{}, pools: map[poolKey]*pool{}, shelf: newShelf()}
	if s.ledger = in.ledger; s.ledger == nil {
		s.ledger = newLedger(&in)
	}
	s.forget()
	if in.WhatIf.AnyScheme {
		s.prices = price.AnyScheme{Costs: s.prices}
	}
	if in.Targeted() {
		var err error
		if s.facts, err = price.NewFacts(in.Facts, in.SoC); err != nil {
			return nil, err
		}
	}
	s.batch = s.graph.Batch()
	s.findClasses()
	var err error
	if s.Machine, err = price.NewMachine(in.SoC, in.Only, s.prices, cacheType, s.note); err != nil {
		return nil, err
	}
	s.findPacked()
	if err := s.findBounds(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *session) note(format string, args ...any) {
	d := diag.New(diag.ClassInput, format, args...)
	d.Severity = diag.Warning
	s.notes = append(s.notes, d)
}

// program poses the problems of a number of rows under an assignment.
func (s *session) program(rows int, a assignment) (*program, error) {
	key := programKey{rows, a.key()}
	if p := s.programs[key]; p != nil {
		return p, nil
	}
	p := &program{name: s.programName(rows)}
	var err error
	if p.sections, err = s.expand(rows, a); err != nil {
		return nil, err
	}
	for i := range p.sections {
		if slices.ContainsFunc(p.sections[:i], func(x lower.Section) bool { return x.Name == p.sections[i].Name }) {
			continue // the same decisions for other layers
		}
		in, err := s.instance(&p.sections[i], rows)
		if err != nil {
			return nil, err
		}
		p.instances = append(p.instances, in)
	}
	return p, s.keep(key, p)
}

func (s *session) programName(rows int) string { return lower.ProgramName(rows, s.decodes(rows)) }

// isHead reports whether a node belongs to a section with one row whatever the bucket is.
func (s *session) isHead(node string) bool {
	name, _, _ := strings.Cut(node, ".")
	sec := s.graph.Section(name)
	return sec != nil && slices.ContainsFunc(sec.Values, func(v models.Value) bool { return v.Rows1 })
}

// sharing is what branches that run side by side cost each other, by expected times.
func (s *session) sharing() *timeline.Machine {
	if s.memory == nil {
		s.memory = &timeline.Machine{Memory: *s.prices.Memory(), Handover: func(from, to string) float64 {
			hand, err := s.prices.Handover(from, to)
			if s.Thread(from) == s.Thread(to) || err != nil {
				return 0 // without a price candidates of both have none either
			}
			return float64(hand.NS)
		}}
	}
	return s.memory
}

func (s *session) stage(sec *lower.Section, rows int) *price.Section {
	st := price.NewSection(sec, s.Machine, s.prices)
	st.Facts, st.Policy, st.Memory = s.facts, *s.in.policy(), s.sharing()
	st.Rows, st.Context, st.Buckets, st.Lengths = rows, s.want.ContextAt(rows), s.want.Buckets, s.want.Lengths[rows]
	for i := range s.graph.Sections {
		x := &s.graph.Sections[i]
		if x.Name != sec.Name {
			continue
		}
		if st.Repeat > 0 {
			st.Breaks++
		}
		st.Repeat += max(1, x.Layers)
		for _, n := range x.Nodes {
			if n.Exact {
				st.Exact[x.Name+"."+n.Name] = true
			}
		}
	}
	return st
}

// fit returns the best plan whose programs keep all bounds: without one in the way, each program's optimum; else that of all
// programs together.
func (s *session) fit(ctx context.Context) (*planir.Plan, error) {
	plan, err := s.free(ctx)
	if err != nil {
		return nil, err
	}
	plans := []*planir.Plan{plan}
	if s.nodes == 0 { // not one of many combinations
		faster, err := s.compete(ctx, plan)
		if err != nil {
			return nil, err
		}
		plans = []*planir.Plan{faster, plan}
	}
	for _, p := range plans {
		taken, err := s.taken(p)
		if err != nil {
			return nil, err
		}
		if s.measure() != problem.Memory && len(s.broken(p, taken)) == 0 {
			return p, nil
		}
	}
	return s.together(ctx, plan)
}

// offer adds a plan's divisions of columns to the candidates of every program: a processor then holds one region of a matrix rather
// than one for each.
func (s *session) offer(p *planir.Plan) {
	for _, d := range p.Decisions {
		if d.Axis != planir.AxisCols && d.Axis != planir.AxisK {
			continue
		}
		d.Strategy, d.Shares = price.Base(d.Strategy), slices.Clone(d.Shares)
		for k := range d.Shares {
			d.Shares[k].PadRows, d.Shares[k].Form = 0, ""
		}
		if !slices.ContainsFunc(s.divisions, func(x planir.Decision) bool { return x.Node == d.Node && price.SameShares(&x, &d) }) {
			s.divisions = append(s.divisions, d)
		}
	}
	for _, x := range s.pools {
		for k := range s.divisions {
			if x.err == nil && s.divisions[k].Node == x.st.Nodes[x.node].Name {
				x.list = x.st.With(x.list, x.node, &s.divisions[k])
			}
		}
	}
	s.renew()
}

// objective is the workload's, of the programs' problems.
func (s *session) objective(p *planir.Plan) float64 {
	if p.Solver[0].Problem == jointProblem(s.measure()) {
		return float64(p.Solver[0].ObjectiveNS)
	}
	total := 0.0
	for i := range s.want.Rows() {
		total += float64(s.weight(i) * float64(p.Solver[i].ObjectiveNS))
	}
	return total
}

// copies reports whether some elements of a weight are packed twice in one format.
func copies(p *planir.Plan) bool {
	packs := p.Program.Packs
	for i := range packs {
		for j := range packs[:i] {
			a, b := &packs[i], &packs[j]
			if a.Weight == b.Weight && a.Scheme == b.Scheme && a.K0 < b.K1 && b.K0 < a.K1 && a.N0 < b.N1 && b.N0 < a.N1 {
				return true
			}
		}
	}
	return false
}

// solved is what was decided of every program, in the order of demand.rows.
type solved struct {
	decisions [][]planir.Decision
	reports   []planir.Solve
}

// free solves every program by itself and lowers the plan.
func (s *session) free(ctx context.Context) (*planir.Plan, error) {
	var x solved
	for _, rows := range s.want.Rows() {
		pr, err := s.program(rows, s.assigned(rows))
		if err != nil {
			return nil, err
		}
		report, err := pr.solve(ctx, s)
		if err != nil {
			return nil, err
		}
		x.decisions, x.reports = append(x.decisions, pr.decisions(pr.choices)), append(x.reports, report)
	}
	return s.build(x)
}

// build makes the plan of decisions, and lowers it.
func (s *session) build(x solved) (*planir.Plan, error) {
	p := &planir.Plan{
		Schema: planir.Schema, MaxContext: s.want.Context, KV: cacheType, Batches: s.want.Batches,
		Model: planir.ModelRef{Name: s.in.Model.Name, EOS: s.in.Model.EOS, BOS: s.in.Model.BOS},
		SoC: planir.SoCRef{
			Name: s.in.SoC.Name, Fingerprint: s.in.SoC.Fingerprint, Simulated: s.in.SoC.Simulated(), Imported: s.in.Costs.Imported, Control: s.in.SoC.Control,
			Target: s.in.Targeted(),
		},
	}
	var err error
	if p.Model.Digest, err = s.in.Model.Digest(); err != nil {
		return nil, err
	}
	if p.SoC.Digest, err = s.in.WholeSoC().Digest(); err != nil {
		return nil, err
	}
	for _, x := range []struct {
		kind   string
		digest func() (string, error)
	}{{"costs", s.in.Costs.Digest}, {"workload", s.in.Workload.Digest}} {
		d, err := x.digest()
		if err != nil {
			return nil, err
		}
		p.Inputs = append(p.Inputs, planir.Input{Kind: x.kind, Digest: d})
	}
	if s.in.Calibration != nil {
		d, err := s.in.Calibration.Digest()
		if err != nil {
			return nil, err
		}
		p.Inputs = append(p.Inputs, planir.Input{Kind: planir.CalibrationInput, Digest: d})
		p.Folds = s.in.Calibration.Groups()
	}
	if s.facts != nil {
		d, err := s.in.Facts.FactsDigest()
		if err != nil {
			return nil, err
		}
		p.Inputs = append(p.Inputs, planir.Input{Kind: FactsInput, Digest: d})
	}
	p.Solver = x.reports
	if s.chosen != nil {
		p.Solver = append(p.Solver, *s.chosen)
	}
	if err := s.decide(p, x.decisions); err != nil {
		return nil, err
	}
	return p, nil
}

// decide gives a plan the decisions of every program, and lowers it.
func (s *session) decide(p *planir.Plan, decisions [][]planir.Decision) error {
	p.Decisions = s.merged(&solved{decisions: decisions})
	return s.lower(p)
}

// merged lists the decisions of all programs. The head is decided at one row, and again only where a bucket has other processors.
func (s *session) merged(x *solved) []planir.Decision {
	var out planir.Plan
	for i, rows := range s.want.Rows() {
		for k := range x.decisions[i] {
			d := &x.decisions[i][k]
			if !s.decodes(rows) && s.isHead(d.Node) && price.SameShares(out.DecisionFor(d.Node, 1), d) {
				continue
			}
			out.Decisions = append(out.Decisions, *d)
		}
	}
	return out.Decisions
}

func (s *session) assigned(rows int) assignment {
	if s.decodes(rows) {
		return s.decode
	}
	return s.prefill
}

// decodes reports whether a program of that many rows decodes.
func (s *session) decodes(rows int) bool { return slices.Contains(s.want.DecodeRows(), rows) }

// of is the graph of a program of that many rows.
func (s *session) of(rows int) *models.Graph {
	if slices.Contains(s.want.Batches, rows) {
		return &s.batch
	}
	return &s.graph
}

// lower completes the plan with the processors its decisions name and its program.
func (s *session) lower(p *planir.Plan) error {
	used := map[string]bool{s.in.SoC.Control: true}
	for _, d := range p.Decisions {
		for _, sh := range d.Shares {
			used[sh.Proc] = true
		}
	}
	p.Procs = nil
	for i := range s.Procs {
		if used[s.Procs[i].Name] {
			p.Procs = append(p.Procs, s.Procs[i])
		}
	}
	if err := lower.Lower(p, &s.graph); err != nil {
		return diag.New(diag.ClassInternal, "BUG: the solved decisions do not lower: %w", err)
	}
	return nil
}

// predict adds the predicted times. A program that comes out slower than its best single processor
// (hand-overs that the problem's edges do not see) is given to that processor, unless that breaks a bound or time is not what is minimised.
func (s *session) predict(p *planir.Plan) error {
	kept := s.settled || s.measure() != problem.Time || len(s.in.Ratio) > 0
	if err := s.timeSingles(p); err != nil {
		return err
	}
	for {
		p.Predictions = nil
		before := *p
		before.Decisions, before.Solver = slices.Clone(p.Decisions), slices.Clone(p.Solver)
		changed := false
		for i := range p.Program.Programs {
			ph := &p.Program.Programs[i]
			pred, err := s.prediction(p, ph)
			if err != nil {
				return err
			}
			best := -1
			for k := range pred.Singles {
				if pred.Singles[k].NS < pred.PlanNS && (best < 0 || pred.Singles[k].NS < pred.Singles[best].NS) {
					best = k
				}
			}
			if best >= 0 && !changed && !kept {
				if changed, err = s.giveTo(p, ph.Rows, pred.Singles[best].Proc); err != nil {
					return err
				}
			}
			p.Predictions = append(p.Predictions, pred)
		}
		if !changed {
			return nil
		}
		if err := s.lower(p); err != nil {
			return err
		}
		taken, err := s.taken(p)
		if err != nil {
			return err
		}
		if len(s.broken(p, taken)) > 0 {
			*p, kept = before, true
		}
	}
}

// giveTo decides a program's own sections for one processor; false when they already are.
func (s *session) giveTo(p *planir.Plan, rows int, proc string) (bool, error) {
	pr, err := s.program(rows, s.assigned(rows))
	if err != nil {
		return false, err
	}
	changed := false
	var total int64
	for _, in := range pr.instances {
		choices, ns, ok := in.single(proc)
		if !ok {
			panic("BUG: processor " + proc + " was said to execute everything")
		}
		total += ns
		for _, d := range in.decisions(choices) {
			old := p.DecisionFor(d.Node, d.Rows)
			if old == nil { // the head, so far as in decode
				if price.SameShares(p.DecisionFor(d.Node, 1), &d) {
					continue
				}
				p.Decisions = append(p.Decisions, d)
				changed = true
				continue
			}
			changed = changed || !price.SameShares(old, &d)
			*old = d
		}
	}
	for i := range p.Solver {
		if x := &p.Solver[i]; changed && x.Problem == "partition "+pr.name {
			x.ObjectiveNS, x.Status = total, StatusReplaced
		}
	}
	return changed, nil
}
