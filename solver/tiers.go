package solver

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
	"github.com/hetc/hetc/solver/workload"
)

// Capacity tiers. An NPU of static shapes executes an expert in a graph of fixed rows, so that how many rows an expert
// gets has to be guessed. A tier is such a capacity. Experts of one tier form groups, each a graph; rows beyond the
// capacity overflow to the CPU, or are dropped. Experts without a tier stay on the CPU.
//
// The loads say how many rows each expert got in chunks of text. PoseTiers prices all choices by them, an engine
// chooses a tier for every expert, and Plan writes that down.

// TierInstance is a tiers problem with what its indices mean.
type TierInstance struct {
	Problem  *problem.Tiers
	NPU, CPU string
	Schemes  []op.Scheme // of an expert's products, in order
	Loads    *workload.Loads
	Layers   []int // numbers in the model

	want workload.Experts
}

// TierRoom is what the processor of groups has left for them; 0: what the SoC says.
type TierRoom struct {
	Bytes  int64 // of experts
	Graphs int64 // groups, -1: not one
}

// PoseTiers prices the experts of a model by the costs: groups on the SoC's processor of static shapes, rows on its
// control processor. schemes are the products' (see models.Model.ExpertOps). What all choices have in common is left
// out: routing, gathering and summing up. The two processors work at the same time unless they share a core or the
// workload says otherwise.
func PoseTiers(in Input, schemes []op.Scheme, room TierRoom) (*TierInstance, error) {
	if err := in.Loads.Validate(); err != nil {
		return nil, err
	}
	if err := in.Loads.Fits(in.Model); err != nil {
		return nil, err
	}
	work := in.Workload
	if work == nil {
		work = workload.Default()
	}
	x := &TierInstance{Schemes: schemes, Loads: in.Loads, want: work.Experts, CPU: in.SoC.Control,
		Layers: in.Model.ExpertLayers()}
	npu, err := staticProcessor(in.SoC)
	if err != nil {
		return nil, err
	}
	x.NPU = npu.Name
	// What exceeds a tier goes to the control processor, which must be another one.
	if x.CPU == x.NPU {
		return nil, diag.New(diag.ClassInfeasible,
			"capacity tiers: the control processor %q is the one with static shapes, and overflow needs another", x.CPU)
	}
	// Limits: of the input, else of the SoC.
	pr := price.NewFitted(in.Costs, in.SoC)
	p := &problem.Tiers{
		Name: in.Model.Name + " on " + in.SoC.Name, Tile: max(1, npu.Tile.M), MaxTiers: x.want.Tiers,
		ExpertBytes: in.Model.ExpertBytes(schemes), GraphBytes: npu.GraphBytes, RegionBytes: room.Bytes,
		MaxGraphs:     room.Graphs,
		NPUMilliwatts: milliwatts(npu), CPUMilliwatts: milliwatts(in.SoC.Processor(x.CPU)),
	}
	if p.MaxTiers == 0 {
		p.MaxTiers = workload.DefaultTiers
	}
	if room.Bytes == 0 {
		p.RegionBytes = npu.AddressBytes
	}
	if room.Graphs == 0 {
		p.MaxGraphs = int64(npu.MaxGraphs)
	}
	// Processors that share a core cannot work at the same time.
	p.Serial = x.want.Serial || slices.ContainsFunc(npu.Cores,
		func(core int) bool { return slices.Contains(in.SoC.Processor(x.CPU).Cores, core) })
	if err := x.prune(p); err != nil {
		return nil, err
	}
	lengths, err := x.lengths(in.Model)
	if err != nil {
		return nil, err
	}
	// Loads of every chunk length, from the same observed tokens.
	most := 0 // rows of an expert in any chunk
	var loads [][][][]int32
	// Every length observes the same tokens, so that what they send to the CPU can be compared.
	all := multiple(lengths)
	same := in.Loads.Chunks - in.Loads.Chunks%(all/in.Loads.ChunkTokens)
	if same == 0 {
		if same = in.Loads.Chunks; x.want.Prefer == workload.PreferOffload || x.want.Prefer == workload.PreferSaliency {
			return nil, diag.New(diag.ClassInput,
				"experts.chunks: lengths of %v are compared by the rows of the same tokens, %d at least, "+
					"and the loads are of %d", lengths, all, same*in.Loads.ChunkTokens).
				WithHint("want lengths that are multiples of one another, or loads of more chunks")
		}
	}
	for _, n := range lengths {
		m := in.Loads.Merged(n/in.Loads.ChunkTokens, same)
		for l := range m {
			for entry := range m[l] {
				most = max(most, int(slices.Max(m[l][entry])))
			}
		}
		loads = append(loads, m)
	}
	// Capacities to choose from: multiples of the NPU's tile.
	if p.Capacities = x.want.Capacities; len(p.Capacities) == 0 {
		p.Capacities = capacities(p.Tile, most)
	}
	for _, c := range p.Capacities {
		if c%p.Tile != 0 {
			return nil, diag.New(diag.ClassInput,
				"experts.capacities: %d rows are no multiple of %d, the tile of processor %q", c, p.Tile, x.NPU)
		}
	}
	// Prices: groups on the NPU, rows on the CPU, and starting one processor from the other.
	groups, err := groupPrices(pr, x, in.Model, p)
	if err != nil {
		return nil, err
	}
	cpu := make([]int64, most+1)
	// Times of the CPU by number of rows, so that any overflow is a look-up.
	for n := 1; n <= most; n++ {
		for _, operator := range expertOps(in.Model, schemes, n) {
			estimate, err := pr.One(price.Task{Proc: x.CPU, Op: operator})
			if err != nil {
				return nil, fmt.Errorf("price an expert: %w", err)
			}
			cpu[n] += estimate.NS
		}
	}
	var sync int64
	for _, link := range [][2]string{{x.CPU, x.NPU}, {x.NPU, x.CPU}} {
		estimate, err := pr.Handover(link[0], link[1])
		if err != nil {
			return nil, err
		}
		sync += estimate.NS
	}
	for i, n := range lengths {
		c := problem.TierChunk{Tokens: n, Weight: int64(all / n), GroupNS: groups, CPUNS: cpu, SyncNS: sync}
		for l, layer := range x.Layers {
			c.Layers = append(c.Layers, problem.TierLayer{Name: fmt.Sprintf("layers.%d", layer), Rows: loads[i][l],
				Saliency: in.Loads.Layers[l].Curves()})
		}
		p.Chunks = append(p.Chunks, c)
	}
	// What is preferred to time is minimised under a limit of time, per token; all is the tokens that are compared.
	measures := map[string]problem.TierMeasure{
		workload.PreferOffload: problem.TierOff, workload.PreferSaliency: problem.TierLost,
	}
	if measure, ok := measures[x.want.Prefer]; ok {
		p.Minimise = measure
		p.Bounds = map[problem.TierMeasure]int64{problem.TierTime: int64(x.want.MaxUSToken * 1e3 * float64(all))}
	}
	x.Problem = p
	return x, p.Validate()
}

// prune sets the limits of what may be dropped, in parts per million. A limit of the squared norm alone leaves the
// number of rows open, and one of rows alone the norm. A limit of each layer defaults to that of all.
func (x *TierInstance) prune(p *problem.Tiers) error {
	w := &x.want
	if w.Overflow != workload.OverflowPrune {
		return nil
	}
	p.Prune = true
	norm := w.MaxLost > 0 || w.MaxLayerLost > 0 || w.Prefer == workload.PreferSaliency
	if norm && !x.Loads.Salient() {
		return diag.New(diag.ClassInput,
			"experts.max_lost: %s loads of format %s say how many rows experts get, and not what dropping them costs",
			x.Loads.Source, x.Loads.Schema).
			WithHint("trace the model itself with hetc loads --text, or limit rows: max_drop")
	}
	either := func(all, each float64) (int64, int64) {
		switch {
		case each == 0:
			each = all
		case all == 0:
			all = 1
		}
		return ppm(all), ppm(each)
	}
	p.MaxDropPPM, p.MaxLayerDropPPM, p.MaxLostPPM, p.MaxLayerLostPPM = 0, 0, 1e6, 1e6
	if w.MaxLost > 0 || w.MaxLayerLost > 0 {
		p.MaxLostPPM, p.MaxLayerLostPPM = either(w.MaxLost, w.MaxLayerLost)
	}
	if rows := w.MaxDrop > 0 || w.MaxLayerDrop > 0; rows {
		p.MaxDropPPM, p.MaxLayerDropPPM = ppm(w.MaxDrop), ppm(w.MaxDrop)
		if w.MaxLayerDrop > 0 {
			p.MaxLayerDropPPM = ppm(w.MaxLayerDrop)
		}
	} else if norm {
		p.MaxDropPPM, p.MaxLayerDropPPM = 1e6, 1e6
	}
	return nil
}

// staticProcessor is the processor that groups of experts run on: the first NPU of static shapes, else any such.
func staticProcessor(soc *socs.SoC) (*socs.Processor, error) {
	var out *socs.Processor
	for i := range soc.Processors {
		if proc := &soc.Processors[i]; proc.StaticShapes && (out == nil || out.Kind != "npu" && proc.Kind == "npu") {
			out = proc
		}
	}
	if out == nil {
		return nil, diag.New(diag.ClassInfeasible,
			"capacity tiers: no processor of SoC %q has static shapes only, and tiers are for those", soc.Name).
			WithHint("leave --loads out, or plan for a SoC with such an NPU: hetc socs list")
	}
	return out, nil
}

// milliwatts is a processor's power in whole milliwatts.
func milliwatts(p *socs.Processor) int64 { return int64(math.Round(p.PowerW * 1000)) }

// ppm is a share in parts per million.
func ppm(share float64) int64 { return int64(math.Round(share * 1e6)) }

// lengths are the chunk lengths to choose from: those of which at least two were observed.
func (x *TierInstance) lengths(model *models.Model) (out []int, err error) {
	list, base := x.want.Chunks, x.Loads.ChunkTokens
	if len(list) == 0 {
		for _, n := range []int{256, 512, 1024} {
			if n%base == 0 && n <= model.MaxContext && x.Loads.Chunks*base >= 2*n {
				list = append(list, n)
			}
		}
		if len(list) == 0 {
			list = []int{base}
		}
	}
	for _, n := range list {
		if n%base != 0 || x.Loads.Chunks*base < n {
			return nil, diag.New(diag.ClassInput,
				"experts.chunks: %d tokens, and the loads are of %d chunks of %d tokens", n, x.Loads.Chunks, base).
				WithHint("want multiples of %d up to %d", base, x.Loads.Chunks*base)
		}
	}
	if all := multiple(list); all/list[0] > 1<<16 {
		return nil, diag.New(diag.ClassInput, "experts.chunks: %v have no common multiple of a sensible size", list).
			WithHint("want powers of two, or multiples of one another")
	}
	return list, nil
}

// multiple is the least common multiple of all, or something larger than any sensible one.
func multiple(list []int) int {
	all := 1
	for _, n := range list {
		if all = leastMultiple(all, n); all > 1<<40 {
			break
		}
	}
	return all
}

// tileSteps are the capacities to choose from, in tiles.
var tileSteps = []int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}

// capacities are tileSteps up to what holds the most rows.
func capacities(tile, most int) (out []int) {
	for _, n := range tileSteps {
		out = append(out, n*tile)
		if n*tile >= most {
			break
		}
	}
	return out
}

// expertOps are an expert's operators with their schemes, and the quantisation of rows that those need.
func expertOps(model *models.Model, schemes []op.Scheme, rows int) (out []op.Op) {
	k := 0
	for _, operator := range model.ExpertOps(rows) {
		if operator.Kind == op.MatMul {
			operator.Scheme = schemes[k]
			if k++; operator.Scheme.QuantisedRows() {
				out = append(out, operator.Scheme.QuantRows(rows, operator.K, 1))
			}
		}
		out = append(out, operator)
	}
	return out
}

// maxGroup is the most experts of a group where no limit says.
const maxGroup = 64

// groupPrices are the times of groups in ns, by tier and number of experts: one launch, the operators of every expert
// less their own launches, and what links copy in and out. A group has at most as many experts as a graph's bytes hold.
func groupPrices(pr *price.Fitted, x *TierInstance, model *models.Model, p *problem.Tiers) (out [][]int64, err error) {
	size := min(maxGroup, model.Experts)
	if p.GraphBytes > 0 {
		size = min(size, problem.MostExperts(p.GraphBytes, p.ExpertBytes))
	}
	launch, err := pr.Launch(x.NPU)
	if err != nil {
		return nil, err
	}
	for _, rows := range p.Capacities {
		var each int64
		for _, operator := range expertOps(model, x.Schemes, rows) {
			estimate, err := pr.Cheapest(price.Task{Proc: x.NPU, Op: operator})
			if err != nil {
				return nil, fmt.Errorf("price an expert of %d rows: %w", rows, err)
			}
			each += max(0, estimate.NS-launch.NS)
		}
		var list []int64
		for g := 1; g <= size; g++ {
			ns := launch.NS + int64(g)*each
			for _, link := range [][2]string{{x.CPU, x.NPU}, {x.NPU, x.CPU}} {
				moved, err := pr.Copy(link[0], link[1], int64(g)*int64(rows)*int64(model.Hidden)*4)
				if err != nil {
					return nil, err
				}
				ns += moved.NS
			}
			list = append(list, ns)
		}
		out = append(out, list)
	}
	return out, nil
}

// ExpertsError is about what a token's experts take at least, where that is above the limit: a little more, because
// of the least itself few choices of tiers are left, which take long to find.
type ExpertsError struct {
	LeastUS float64
	text    string
}

// Error is the sentence.
func (e *ExpertsError) Error() string { return e.text }

// Solve has an engine decide the tiers. Where something is preferred to time, the fastest choice comes first: it
// proves that the limit of time can be kept, and is where the search starts.
func (x *TierInstance) Solve(ctx context.Context, engine problem.Engine) (problem.TierSolution, error) {
	var s problem.TierSolution
	var err error
	switch x.want.Prefer {
	case workload.PreferOffload, workload.PreferSaliency:
		fastest := *x.Problem
		fastest.Minimise, fastest.Bounds = problem.TierTime, nil
		if s, err = engine.Tiers(ctx, &fastest, problem.Limits{}); err != nil {
			return s, err
		}
		if limit := x.Problem.Bounds[problem.TierTime]; s.Bound > limit {
			tokens := float64(fastest.Chunks[0].Tokens) * float64(fastest.Chunks[0].Weight) * 1e3
			text := fmt.Sprintf("%s: the experts of a token may take %.4g us, and they take at least %.4g us",
				workload.KeyExperts, float64(limit)/tokens, float64(s.Bound)/tokens)
			return s, diag.New(diag.ClassInfeasible, "%w", &ExpertsError{1.005 * float64(s.Bound) / tokens, text}).
				WithHint("raise the latency target, or prefer time")
		} else if s.Choices != nil && s.Objective <= limit {
			x.Problem.Start = &s
		}
	}
	s, err = x.inOrder(ctx, engine)
	if err == nil && s.Choices == nil {
		return s, diag.New(diag.ClassInfeasible,
			"tiers %q: no choice of tiers was found that keeps every limit, in %d nodes, "+
				"and none was proved impossible", x.Problem.Name, s.Nodes).
			WithHint("raise a limit of workload experts, or let engine auto or highs look for one: --engine")
	}
	return s, err
}

// order is what is minimised, one after the other.
func (x *TierInstance) order() []problem.TierMeasure {
	switch x.want.Prefer {
	case workload.PreferOffload:
		return problem.PaperOrder
	case workload.PreferSaliency:
		return []problem.TierMeasure{problem.TierLost, problem.TierTime}
	}
	return []problem.TierMeasure{problem.TierTime}
}

// inOrder minimises the measures of order, each within what the ones before it leave.
func (x *TierInstance) inOrder(ctx context.Context, engine problem.Engine) (problem.TierSolution, error) {
	if order := x.order(); len(order) > 1 {
		return x.Problem.InOrder(ctx, engine, order, problem.Limits{})
	}
	return engine.Tiers(ctx, x.Problem, problem.Limits{})
}

// Plan is a solution in the words of a plan: what was posed and decided, what it is expected to take in all layers
// and in each, and for every group the next best place of its experts.
func (x *TierInstance) Plan(s problem.TierSolution) *planir.Tiers {
	p, t := x.Problem, x.Problem.Table(s.Chunk)
	source := x.Loads.Source
	if x.Loads.Generator != "" {
		source += " " + x.Loads.Generator
	}
	out := &planir.Tiers{
		Loads: source, NPU: x.NPU, CPU: x.CPU, Experts: x.Loads.Experts, Schemes: x.Schemes,
		ExpertBytes: p.ExpertBytes, GraphBytes: p.GraphBytes, RegionBytes: p.RegionBytes,
		Tile: p.Tile, MaxTiers: p.MaxTiers, Overflow: workload.OverflowExact, Prefer: workload.PreferTime,
		ChunkTokens: p.Chunks[s.Chunk].Tokens, Objective: s.Objective, Bound: s.Bound, Status: string(s.Status),
	}
	for _, y := range s.Stages {
		out.Stages = append(out.Stages, planir.TierStage{Measure: string(y.Measure), Objective: y.Objective,
			Bound: y.Bound})
	}
	out.Serial, out.SyncNS, out.MaxGraphs = p.Serial, t.SyncNS, max(0, p.MaxGraphs)
	if p.Prune {
		out.Overflow = workload.OverflowPrune
		out.MaxDrop, out.MaxLayerDrop = float64(p.MaxDropPPM)/1e6, float64(p.MaxLayerDropPPM)/1e6
		if _, ok := t.TotalLost(); ok {
			out.MaxLost, out.MaxLayerLost = float64(p.MaxLostPPM)/1e6, float64(p.MaxLayerLostPPM)/1e6
		}
	}
	if x.want.Prefer != "" {
		out.Prefer = x.want.Prefer
	}
	// Capacities in use, ascending.
	used := map[int]bool{}
	for _, list := range s.Choices {
		for _, k := range list {
			if k > 0 && !used[k] {
				used[k] = true
				out.Capacities = append(out.Capacities, p.Capacities[k-1])
			}
		}
	}
	slices.Sort(out.Capacities)
	total := t.Total(s.Choices)
	out.ExpectNS, out.Drop = total.NS, share(float64(total.Drop), float64(total.Rows))
	out.Lost = share(float64(total.Lost), problem.SaliencyOne*float64(len(s.Choices)))
	// Layer by layer. Shares are rounded, so that equal solutions read alike on every machine.
	mostLost, salient := t.LayerLost()
	for l, choices := range s.Choices {
		loads := p.Chunks[s.Chunk].Layers[l].MeanLoads()
		c := t.Layer(l, choices)
		unused, reserved := p.Padding(s.Chunk, l, choices)
		y := planir.TierLayer{
			Layer: x.Layers[l], ExpectNS: c.NS, NPUNS: c.NPUNS, CPUNS: c.CPUNS, Lost: share(float64(c.Lost),
				problem.SaliencyOne), Imbalance: round6(problem.ImbalanceRatio(loads)),
			Overflow: share(float64(c.Overflow), float64(c.Rows)), Drop: share(float64(c.Drop), float64(c.Rows)),
			Padding: share(unused, reserved),
		}
		for entry, k := range choices {
			if k == 0 {
				y.Resident = append(y.Resident, entry)
			}
		}
		// Experts of a tier are divided into groups by their load, as the cost table has counted them.
		for _, g := range t.GroupsOf(loads, choices) {
			z := planir.TierGroup{Rows: p.Capacities[g.Tier], Experts: g.Experts,
				ExpectNS: p.Chunks[s.Chunk].GroupNS[g.Tier][len(g.Experts)-1], NextNS: math.MaxInt64}
			// The next best: all experts of the group in another tier that is in use, or on the CPU, within the
			// limits of a layer.
			other := slices.Clone(choices)
			for k := range len(p.Capacities) + 1 {
				if k == g.Tier+1 || k > 0 && !used[k] {
					continue
				}
				for _, entry := range g.Experts {
					other[entry] = k
				}
				d := t.Layer(l, other)
				if ns := d.NS; ns < z.NextNS && (d.Drop == 0 || d.Drop <= t.LayerDrop(l)) && (!salient || d.Lost <= mostLost) {
					z.NextNS, z.NextRows = ns, 0
					if k > 0 {
						z.NextRows = p.Capacities[k-1]
					}
				}
			}
			y.Groups = append(y.Groups, z)
		}
		out.Layers = append(out.Layers, y)
	}
	return out
}

// share is part of all, rounded; 0 of nothing.
func share(part, all float64) float64 {
	if all == 0 {
		return 0
	}
	return round6(part / all)
}

// round6 rounds to six digits behind the point.
func round6(v float64) float64 { return math.Round(v*1e6) / 1e6 }

// tiers adds capacity tiers to a plan, for the schemes that its largest program gives the experts. Without loads
// there are none, which is mentioned where the workload asks for some.
func (s *request) tiers(ctx context.Context, plan *planir.Plan) error {
	if s.in.Loads == nil {
		if x, empty := s.in.Workload.Experts, (workload.Experts{}); !reflect.DeepEqual(x, empty) {
			s.note("%s says how capacity tiers of experts are chosen, and without --loads none are",
				s.in.Workload.Title())
		}
		return nil
	}
	digest, err := s.in.Loads.Digest()
	if err != nil {
		return err
	}
	var schemes []op.Scheme
	rows := s.want.Rows()
	for i := range s.graph.Sections {
		sec := &s.graph.Sections[i]
		if len(schemes) > 0 {
			break
		}
		for _, node := range sec.Nodes {
			if slices.Contains(models.ExpertNodes, node.Name) {
				// Tiers serve prompts, so the largest program's schemes count.
				decision := plan.DecisionFor(sec.Name+"."+node.Name, rows[len(rows)-1])
				if decision != nil && decision.Scheme != "" {
					schemes = append(schemes, decision.Scheme)
				}
			}
		}
	}
	if err := s.in.Loads.Fits(s.in.Model); err != nil {
		return err
	}
	npu, err := staticProcessor(s.in.SoC)
	if err != nil {
		return err
	}
	x, err := PoseTiers(s.in, schemes, s.tierRoom(plan, npu))
	if err != nil {
		return err
	}
	sol, err := x.Solve(ctx, s.in.Engine)
	if err != nil {
		return err
	}
	plan.Inputs = append(plan.Inputs, planir.Input{Kind: "loads", Digest: digest})
	plan.Tiers = x.Plan(sol)
	return nil
}

// tierRoom is what a plan leaves for groups of experts on a processor: bytes of its address space, and the fewest
// graphs that its limits and the time to open graphs allow.
func (s *request) tierRoom(plan *planir.Plan, npu *socs.Processor) (out TierRoom) {
	used := check.Load(plan, npu)
	least := func(graphs int64) {
		if graphs = max(graphs, -1); graphs == 0 {
			graphs = -1
		}
		if out.Graphs == 0 || graphs < out.Graphs {
			out.Graphs = graphs
		}
	}
	limits := &s.in.Workload.Limits
	if most := npu.AddressBytes; most > 0 || limits.AddressBytes[npu.Name] > 0 {
		if own := int64(limits.AddressBytes[npu.Name]); own > 0 && (most == 0 || own < most) {
			most = own
		}
		out.Bytes = max(1, most-used.Bytes)
	}
	for _, most := range []int{npu.MaxGraphs, limits.MaxGraphs[npu.Name]} {
		if most > 0 {
			least(int64(most - used.Graphs))
		}
	}
	if each := openNS(npu); limits.OpenMS > 0 && each > 0 {
		left := price.Whole(limits.OpenMS * 1e6)
		for i := range plan.Program.Graphs {
			left -= openNS(s.in.SoC.Processor(plan.Program.Graphs[i].Proc))
		}
		least(left / each)
	}
	return out
}

// leastMultiple is the least common multiple of two numbers, by Euclid's algorithm.
func leastMultiple(a, b int) int {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}
