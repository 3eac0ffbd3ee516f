package solver

import (
	"cmp"
	"context"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
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
	// Facts are what the compiler of the device said about graphs (record.Facts; nothing else of the set is used).
	// Only plans for the device take them into account (ForTarget). nil: nothing is known.
	Facts *record.Set
	// MaxMemory bounds what a process that executes the plan holds, in bytes; 0: the workload's bound.
	MaxMemory int64
	// WorkingMemory bounds what Solve itself keeps of candidates, problems and combinations, in bytes as it counts
	// them; 0: DefaultWorkingMemory. Where a search would keep more it ends, and its result is Feasible; where the
	// problem itself takes more Solve ends with an error of class ClassUnavailable.
	WorkingMemory int64
	// Progress is called with where a solve stands, often; nil: not at all.
	Progress func(Progress)

	// Only names the processors that execute everything they can. What one of them cannot may be left to those that
	// take turns with it on its first core, or else to the control processor. Empty: all processors.
	Only []string
	// Strategies restricts a plan to these, for comparisons; empty: all are permitted. A node that has no candidate of
	// them keeps the others. With single and padding alone a plan places whole operators (HeteroInfer's layer-level
	// mode).
	Strategies []planir.Strategy
	// Ratio divides the columns of every matrix among the processors it names, in these parts of the whole as nearly
	// as their granularity allows, to compare with; empty: what is best. Everything else goes to one of them.
	Ratio map[string]float64

	// TierRule chooses capacity tiers of experts in another way than for the least time, to compare with. It needs
	// Loads.
	TierRule TierRule
	// ChunkOrder has chunks in flight ordered by that rule (planir.ByExact, planir.ByGreedy), whatever it gains, to
	// compare with; "": by the fastest, where one chunk after the other is slower.
	ChunkOrder string
	// HeadOrder has the heads of sparse attention in a pipeline ordered by that rule (planir.ByExact, planir.ByGreedy),
	// whatever it gains, or in none (NoPipeline), to compare with; "": in the fastest, where that is faster than none.
	HeadOrder string

	// AllBuckets has every listed bucket get its program, to compare with; else those that only slow prompts down, or
	// that a limit has no room for, are left out, the largest first.
	AllBuckets bool

	// Whole is the SoC of which SoC is the part that its device executes (ForTarget); nil: SoC is all of it.
	Whole *socs.SoC
	// WhatIf is what a solve supposes that explains another one.
	WhatIf WhatIf
	// Prices are what other solves with these costs have asked for; nil: nothing. Solves that share them repeat
	// nothing.
	Prices *price.Fitted

	attention *attention           // that is tried; nil: the workload's
	cache     op.Type              // that is tried of those the workload leaves open; empty: the workload's
	budget    *memoryBudget        // nil: of one session alone
	tiers     []planir.ExpertTiers // decided, by bucket
	drops     *drops               // that are tried; nil: the workload's
}

// WhatIf is a change that a solve supposes in order to find out what a limit costs or prevents. Its plan is not a plan
// for the real machine.
type WhatIf struct {
	// OtherSoC: the SoC differs from the one that the costs were fitted for, in limits or capabilities.
	OtherSoC bool
	// AnyScheme: a scheme that was never measured, because no processor executes it, costs what another scheme does.
	// Such a solve tells whether there is a plan, and nothing of its speed.
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
	// TiersLeft says why capacity tiers were not taken, by bucket.
	TiersLeft []string
	// JointObjective is that of the plan's joint problem, in the unit in which an engine got it; 0: there is none.
	JointObjective int64

	session *session // that decided it
}

// policy returns the restrictions on the ways to execute operators.
func (in *Input) policy() *price.Policy {
	policy := &price.Policy{Only: in.Only, Strategies: in.Strategies, Ratio: in.Ratio}
	if in.TierRule.find() != nil {
		if npu, err := staticProcessor(in.SoC); err == nil { // without one there are no groups
			policy.Groups = npu.Name
		}
	}
	return policy
}

// Solve makes a plan. It depends on nothing but its input: equal inputs give equal plans.
//
// Errors are of class ClassInfeasible when no plan can satisfy the limits, of class ClassInput when
// the costs lack something, each naming it.
func Solve(ctx context.Context, in Input) (*Result, error) {
	if in.cache == "" && in.Workload != nil && len(in.Workload.Caches()) > 1 {
		return solveCaches(ctx, in)
	}
	if in.attention == nil && in.Workload != nil && in.Workload.Attention.Sparse() {
		return solveAttention(ctx, in)
	}
	if in.drops == nil && in.mayDrop() {
		return solveDrops(ctx, in)
	}

	in.budget = newMemoryBudget(&in)
	fresh, err := newSession(in)
	if err != nil {
		return nil, err
	}

	result, err := fresh.solveDynamic(ctx)
	switch {
	case err == nil:
		result, err = fresh.withTiers(ctx, result)
	case diag.ClassOf(err) == diag.ClassInfeasible && in.Loads != nil:
		result, err = fresh.onlyWithTiers(ctx, err)
	}
	if err != nil {
		return nil, err
	}

	result.WorkingBytes = in.budget.peak
	for _, report := range result.Plan.Solver {
		result.JointObjective += in.budget.joints[report]
	}
	return result, nil
}

// solveDynamic makes the plan without capacity tiers of experts.
func (s *session) solveDynamic(ctx context.Context) (*Result, error) {
	if s.choosesSizes() {
		return s.solveWithSizes(ctx)
	}
	return s.solve(ctx)
}

// solve makes the plan for the buckets and batches there are.
func (s *session) solve(ctx context.Context) (*Result, error) {
	in := s.in
	if err := s.checkCalibration(); err != nil {
		return nil, err
	}
	if err := s.chooseSchemes(ctx); err != nil {
		return nil, err
	}

	bound := in.MaxMemory
	if bound == 0 {
		bound = int64(in.Workload.Memory)
	}
	// planPrunedWithin may continue with another session, which keeps the bound.
	within, plan, err := s.planPrunedWithin(ctx, bound)
	if err != nil {
		return nil, err
	}
	if within != s {
		s.close()
	}
	defer within.close()

	if err := within.extend(ctx, plan); err != nil {
		return nil, err
	}
	if err := in.checkPlan(plan); err != nil {
		return nil, err
	}
	within.checkMemory(plan)

	expected, err := within.expectedNS(plan)
	if err != nil {
		return nil, err
	}
	return &Result{Plan: plan, Warnings: within.notes, ExpectedNS: expected - within.inFlightGain(plan),
		ExpectedNJ: within.expectedNJ(plan), session: within}, nil
}

// extend decides everything that a plan has besides schemes, placements and the layers with shadow outliers. Each
// decision takes those before it as given.
func (s *session) extend(ctx context.Context, plan *planir.Plan) error {
	s.noteOutliers(plan)
	plan.Quality, plan.Compiled = s.quality(), s.compilerFacts(plan)
	s.prunedQuality(plan)
	s.warnUntiedEmbedding()

	if err := s.planHeadPipelines(ctx, plan); err != nil {
		return err
	}
	if err := s.planBeside(plan); err != nil {
		return err
	}
	if err := s.planDrafts(plan); err != nil {
		return err
	}
	return s.planInFlight(ctx, plan)
}

// checkPlan has the checker examine a plan. It shares no code with the solver, so every finding is a defect of the
// solver, except P027 (more memory than the SoC has).
func (in *Input) checkPlan(plan *planir.Plan) error {
	if err := in.checkQuality(plan.Quality); err != nil {
		return err
	}
	found := check.Plan(plan, in.Model, in.WholeSoC())
	err := found.Err()
	if err == nil {
		return nil
	}

	full := slices.IndexFunc(found, func(d *diag.Diagnostic) bool { return d.Code == "P027" })
	if full < 0 {
		return diag.New(diag.ClassInternal, "BUG: the solved plan is illegal: %w", err)
	}
	return diag.New(diag.ClassInfeasible, "no plan was found that fits the SoC: %s", found[full].Summary).
		WithHint("permit a scheme with fewer bits, or fewer buckets, in the workload")
}

// checkQuality has every phase lose at most what the workload permits, by the calibration. More is a defect of the
// solver, unless the workload itself says which shadow outliers are kept: prunedQuality warns then.
func (in *Input) checkQuality(phases []planir.Quality) error {
	const rounding = 1e-9 // of sums over classes, of the limit
	if in.Workload.Shadows != (workload.Shadows{}) {
		return nil
	}
	for _, quality := range phases {
		if quality.MaxKL == 0 {
			continue
		}
		if quality.KL > quality.MaxKL*(1+rounding)+2*workload.Lossless {
			return diag.New(diag.ClassInternal, "BUG: the schemes of %s lose %g nats a token, want at most %s",
				quality.Phase, quality.KL, workload.KLText(quality.MaxKL))
		}
	}
	return nil
}

// schemeChoice is the schemes that operators may have, and the chosen ones.
type schemeChoice struct {
	pricing
	classes []productClass
	classOf map[string]int // by node
	tied    *tiedEmbedding // nil: the embedding reads rows as they are stored
	phases  [2]*phase      // prefill, decode
	prefill assignment     // chosen
	decode  assignment
}

// session is one solve: programs that keep common bounds. The package comment lists the structs that it embeds.
type session struct {
	planner
	bounds       []bound             // that all programs keep together
	waived       []problem.LimitKind // bounds that do not count
	keepPrograms bool                // no program is given to its best single processor
	reduced      bool                // joint problems do not have all candidates
	tight        bool                // joint problems count buffers, scratch and steps where memory is bounded
	comparisons  int                 // how many more combinations within a bound of memory may have variants compared

	// knownObjective is that of a plan that is known: within a bound of memory only better ones count. 0: none is known.
	knownObjective float64
}

// checkCalibration checks that limits of quality and static scales come with a calibration of this model.
func (s *request) checkCalibration() error {
	if s.in.Calibration == nil {
		return s.checkWithoutCalibration()
	}
	digest, err := s.in.Model.Digest()
	if err != nil {
		return err
	}
	return s.in.Calibration.CheckModel(s.in.Model.Name, digest)
}

// checkWithoutCalibration checks that nothing in the workload needs a calibration.
func (s *request) checkWithoutCalibration() error {
	const hint = "make one with hetc calibrate --model DIR --text FILE -o cal.yaml, " +
		"and give it with --calibration cal.yaml"

	for _, scheme := range slices.Concat(s.want.Prefill, s.want.Decode, s.want.Head, s.want.PrefillHead) {
		if scheme.Static() && s.want.MaxKL == (workload.KLLimit{}) {
			return diag.New(diag.ClassInput,
				"solve: %s permits %q, whose static scales come from a calibration, and none is given",
				s.in.Workload.Title(), scheme).WithHint(hint)
		}
	}
	if s.want.MaxKL.Measured() {
		return diag.New(diag.ClassInput, "solve: %s bounds quality, and no calibration says what the schemes cost",
			s.in.Workload.Title()).WithHint(hint)
	}
	return nil
}

// checkCosts refuses costs of another SoC, unless a what-if has changed the SoC on purpose.
func (in *Input) checkCosts() error {
	if in.Costs.SoC != in.SoC.Name || in.Costs.Fingerprint != in.SoC.Fingerprint {
		return diag.New(diag.ClassInput, "solve: costs are of SoC %q (fingerprint %q), and this is %q (%q)",
			in.Costs.SoC, in.Costs.Fingerprint, in.SoC.Name, in.SoC.Fingerprint).
			WithHint("profile this SoC and fit its costs")
	}

	digest, err := in.WholeSoC().Digest()
	if err != nil {
		return err
	}
	if in.Costs.SoCDigest != digest && !in.WhatIf.OtherSoC {
		return diag.New(diag.ClassInput, "solve: costs are of SoC %q with digest %.12s, want %.12s",
			in.Costs.SoC, in.Costs.SoCDigest, digest).
			WithHint("give the SoC file the costs were fitted with, or profile again")
	}

	// A plan says whether its times were measured: the SoC decides that.
	if in.Costs.Simulated != in.SoC.Simulated() {
		return diag.New(diag.ClassInput, "solve: costs say simulated: %v, and SoC %q says %v",
			in.Costs.Simulated, in.SoC.Name, in.SoC.Simulated()).
			WithHint("fit the costs again from their record")
	}
	return nil
}

// newSession checks that the inputs belong together.
func newSession(in Input) (*session, error) {
	if in.Model == nil || in.SoC == nil || in.Costs == nil || in.Engine == nil {
		panic("BUG: solve needs a model, a SoC, costs and an engine")
	}

	if err := in.checkCosts(); err != nil {
		return nil, err
	}

	if in.Workload == nil {
		in.Workload = workload.Default()
	}
	if err := in.Workload.Validate(); err != nil {
		return nil, err
	}

	if in.TierRule.find() != nil && in.Loads == nil {
		return nil, diag.New(diag.ClassUsage, "solve: capacity tiers by rule %q need the loads of experts",
			in.TierRule.Slots).WithHint("hetc loads counts them; give the file with --loads")
	}

	if err := in.policy().Check(in.SoC); err != nil {
		return nil, err
	}

	want, err := in.Workload.Apply(in.Model.MaxContext)
	if err != nil {
		return nil, err
	}
	want.Cache = cmp.Or(in.cache, want.Cache)

	if err := in.deductCacheLoss(want); err != nil {
		return nil, err
	}
	in.deductAttentionLoss(want)
	in.deductDropLoss(want)

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

// sessionFor returns a session for a demand, which may be only a part of the workload's.
func sessionFor(in Input, want *workload.Demand) (*session, error) {
	if in.Prices == nil || !in.Prices.IsOf(in.Costs) {
		in.Prices = price.NewFitted(in.Costs, in.SoC)
	}

	fresh := &session{}
	fresh.request = request{in: in, graph: in.Model.Graph(), want: want, goal: in.Workload.Minimise,
		prices: in.Prices.With(in.SoC)}

	fresh.warned, fresh.priced = map[string]bool{}, map[string]bool{}
	fresh.candidateSets, fresh.items = map[nodeKey]*candidateSet{}, newItemCache()
	if fresh.budget = in.budget; fresh.budget == nil {
		fresh.budget = newMemoryBudget(&in)
	}

	fresh.dropPrograms()
	if in.WhatIf.AnyScheme {
		fresh.prices = price.AnyScheme{Costs: fresh.prices}
	}

	if in.Targeted() {
		var err error
		if fresh.facts, err = price.NewFacts(in.Facts, in.SoC); err != nil {
			return nil, err
		}
	}

	fresh.batch = fresh.graph.Batch()
	if at := in.attention; at != nil && at.Density > 0 {
		fresh.selecting = fresh.graph.Sparse(at.Sparsity(2))
		fresh.selectingOne = fresh.graph.Sparse(at.Sparsity(1))
	}

	fresh.findClasses()
	var err error
	if fresh.Machine, err = price.NewMachine(in.SoC, in.Only, fresh.prices, fresh.want.Cache, fresh.warn); err != nil {
		return nil, err
	}

	fresh.findTiedEmbedding()
	if err := fresh.findBounds(); err != nil {
		return nil, err
	}
	return fresh, nil
}

// bestWithinBounds returns the best plan whose programs keep all bounds. If no bound is broken, it consists of each
// program's own optimum; else it is the optimum of all programs together.
func (s *session) bestWithinBounds(ctx context.Context) (*planir.Plan, error) {
	plan, err := s.eachAlone(ctx)
	if err != nil {
		return nil, err
	}

	compares, err := s.comparesVariants(plan)
	if err != nil {
		return nil, err
	}
	plans := []*planir.Plan{plan}
	if compares {
		faster, err := s.fasterByTimeline(ctx, plan)
		if err != nil {
			return nil, err
		}
		plans = []*planir.Plan{faster, plan}
	}

	var large *planir.Plan // keeps all bounds but that of memory, which schemes and buckets are chosen for
	for _, plan := range plans {
		taken, err := s.amountsTaken(plan)
		if err != nil {
			return nil, err
		}
		if s.measure() == problem.Memory || len(s.brokenBounds(plan, taken)) > 0 {
			continue
		}
		memory := s.boundOf(quantity{problem.LimitBytes, ""})
		if memory == nil || taken[memory.quantity] <= memory.max {
			return plan, nil
		}
		large = cmp.Or(large, plan)
	}
	if large != nil {
		return large, nil
	}
	return s.solveJointly(ctx, plan)
}

// comparesVariants reports whether the programs of a plan, each by itself, are compared with their variants by the
// timeline. One of many combinations is not, for that takes too long, unless a variant may be what keeps a limit of
// calls or of memory. Without a bound of memory there are few combinations. With one, some plans are compared that
// break such a limit by little.
func (s *session) comparesVariants(plan *planir.Plan) (bool, error) {
	switch {
	case s.measure() != problem.Time:
		return false, nil
	case s.nodes == 0:
		return true, nil
	case !s.isLimited(problem.LimitBytes):
		return s.isLimited(problem.LimitPartNS), nil
	case s.comparisons == 0:
		return false, nil
	}
	taken, err := s.amountsTaken(plan)
	if err != nil {
		return false, err
	}
	broken := false
	for _, bound := range s.bounds {
		if bound.kind != problem.LimitPartNS && bound.kind != problem.LimitBytes || taken[bound.quantity] <= bound.max {
			continue
		}
		if float64(taken[bound.quantity]) > variantSpread*float64(bound.max) {
			return false, nil
		}
		broken = true
	}
	if broken {
		s.comparisons--
	}
	return broken, nil
}
