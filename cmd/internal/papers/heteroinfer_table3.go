package papers

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/problem"
)

// stageRows is the width of an NPU's stage (HeteroInfer sec. 3.2): sizes within one cost the same.
func stageRows() int {
	return int(fact("heteroinfer", "hw_npu_tile").at("values", "systolic_array", 0).num())
}

// point is a printed latency of a whole weight at a number of tokens.
type point struct {
	tokens int
	ns     int64
}

// curve is the line through printed points, beyond the last one with the slope of the last two (GPU-1, "linear
// performance"); with one point it is proportional to the tokens.
type curve []point

// at is the time on the line through the points on both sides, beyond the ends through the nearest two.
func (c curve) at(tokens int) int64 {
	if len(c) == 1 {
		return c[0].ns * int64(tokens) / int64(c[0].tokens)
	}
	after := 1
	for after < len(c)-1 && tokens > c[after].tokens {
		after++
	}
	left, right := c[after-1], c[after]
	return left.ns + int64(math.Round(float64(right.ns-left.ns)*float64(tokens-left.tokens)/
		float64(right.tokens-left.tokens)))
}

// shape is a weight of Table 3 with what it takes on both processors.
type shape struct {
	name   string
	rows   int // of the weight, [rows, K]
	k      int
	gpu    curve
	npu    curve
	stage  int
	lookup map[string][]int64 // per set of standard lengths, the cheapest NPU pieces that make up each length

	// catalog prices so many rows of the weight on a processor instead of the curves, alone or beside the other
	// one; nil: the curves.
	catalog func(proc string, tokens, rows int, beside bool) int64
}

// gpuNS is linear in the tokens.
func (s *shape) gpuNS(tokens int) int64 {
	if s.catalog != nil {
		return s.catalog("gpu", tokens, s.rows, false)
	}
	return s.gpu.at(tokens)
}

// npuNS is a staircase (NPU-1, "stage performance"): the line at the end of the stage. Decode is a graph of its own.
func (s *shape) npuNS(tokens int) int64 {
	if s.catalog != nil {
		return s.catalog("npu", tokens, s.rows, false)
	}
	if tokens > 1 {
		tokens = op.RoundUp(tokens, s.stage)
	}
	return s.npu.at(tokens)
}

// table3Row is a row of the table: a weight at a length or a range of them.
type table3Row struct {
	name     string // "ffn_down-256"
	shape    *shape
	from, to int
	printed  decision
	cell     value
}

// dynamic reports whether a row is about a range of lengths, whose times are estimates.
func (r *table3Row) dynamic() bool { return r.from != r.to }

// roles are the transcriber's readings of the weights' shapes.
var roles = map[[2]int]string{{4096, 4096}: "attn_proj", {28672, 4096}: "gate_up", {4096, 14336}: "ffn_down"}

// table3 reads the table.
func table3() []table3Row {
	var out []table3Row
	shapes := map[string]*shape{}
	for _, cell := range fact("heteroinfer", "table3").at("values").list() {
		rows, reduction := int(cell.at("weight", 0).num()), int(cell.at("weight", 1).num())
		// rows of the same weight share one shape, whose curves grow by each measured length
		role := roles[[2]int{rows, reduction}]
		weight := shapes[role]
		if weight == nil {
			weight = &shape{name: role, rows: rows, k: reduction, stage: stageRows(), lookup: map[string][]int64{}}
			shapes[role] = weight
		}
		row := table3Row{
			shape: weight, cell: cell,
			printed: decision{strategy: cell.at("strategy").text(), ratio: cell.at("ratio").text()},
		}
		tokens := fmt.Sprint(cell.at("activation", 1).v)
		from, to, dynamic := strings.Cut(tokens, "-")
		row.from, _ = strconv.Atoi(from)
		row.to = row.from
		if dynamic {
			row.to, _ = strconv.Atoi(to)
		} else {
			weight.gpu = append(weight.gpu, point{row.from, us(cell.at("gpu_us").num())})
			weight.npu = append(weight.npu, point{row.from, us(cell.at("npu_us").num())})
		}
		row.name = role + "-" + tokens
		out = append(out, row)
	}
	return out
}

// us turns microseconds into whole nanoseconds.
func us(x float64) int64 { return int64(math.Round(x * 1000)) }

// share is the part of a weight's rows that the GPU computes: gpu/(gpu+npu).
type share struct{ gpu, npu int }

func (s share) String() string { return fmt.Sprintf("%d:%d", s.gpu, s.npu) }

// reduced is the share in lowest terms.
func (s share) reduced() share {
	gpu, npu := s.gpu, s.npu
	for npu != 0 {
		gpu, npu = npu, gpu%npu
	}
	return share{s.gpu / gpu, s.npu / gpu}
}

// uniform are the shares with a denominator.
func uniform(n int) []share {
	var out []share
	for g := 1; g < n; g++ {
		out = append(out, share{g, n - g})
	}
	return out
}

// assumptions are what the paper's objective needs and Table 3 does not print.
type assumptions struct {
	syncNS   int64 // T_sync + T_copy, of every choice but GPU-only
	splitNS  int64 // more than that when both compute
	gpuFixed int64 // ns of a weight's latency that its part takes as well, however small
	npuFixed int64
	shares   []share // of a divided weight; nil: every stage of its rows
	standard []int   // lengths that graphs exist for, beside 1
	anyCut   bool    // the GPU may take more of the tokens than what no standard length fits into
	pipe     bool    // several standard lengths in sequence are a choice
}

// decision is what a row of the table says.
type decision struct {
	strategy, ratio string
	ns              int64
}

// same reports whether two decisions have one strategy and one ratio.
func (d decision) same(e decision) bool { return d.strategy == e.strategy && d.ratio == e.ratio }

// pieces returns, per number of tokens up to the longest standard length twice, the least NPU time of standard
// lengths that add up to it, -1 where none do.
//
// This is the unbounded knapsack by dynamic programming: a length is a standard one added to a shorter length.
func (s *shape) pieces(standard []int) []int64 {
	key := fmt.Sprint(standard)
	if c, ok := s.lookup[key]; ok {
		return c
	}
	cost := make([]int64, 2*standard[len(standard)-1]+1)
	for length := 1; length < len(cost); length++ {
		cost[length] = -1
		for _, l := range standard {
			if l <= length && cost[length-l] >= 0 && (cost[length] < 0 || cost[length-l]+s.npuNS(l) < cost[length]) {
				cost[length] = cost[length-l] + s.npuNS(l)
			}
		}
	}
	s.lookup[key] = cost
	return cost
}

// item poses the choice of one operator at one length (sec. 4.4: the objective; sec. 4.2: the strategies) and what each
// choice stands for.
//
// The choices are those of sec. 4.2: the GPU alone; the NPU alone, padded to a standard length; the weight divided
// by rows; several standard lengths in sequence; and standard lengths on the NPU beside the rest of the tokens on
// the GPU. A choice of both processors costs the longer of its parts, and what synchronising takes.
func (s *shape) item(tokens int, dynamic bool, assumed *assumptions) (problem.Item, []decision) {
	it := problem.Item{Name: s.name, Before: []string{"shared"}, After: []string{"shared"}}
	var ds []decision
	const gpu, npu = 0, 1
	add := func(strategy, ratio string, ns int64, procs ...int) {
		it.Choices = append(it.Choices, problem.Choice{Label: strategy + " " + ratio, Procs: procs, CostNS: ns})
		ds = append(ds, decision{strategy, ratio, ns})
	}
	add("no partition", "GPU-only", s.gpuNS(tokens), gpu)
	pad := tokens // the length whose graph computes them
	if tokens > 1 {
		k, _ := slices.BinarySearch(assumed.standard, tokens)
		pad = 0
		if k < len(assumed.standard) {
			pad = assumed.standard[k]
		}
	}
	cost := s.pieces(assumed.standard)
	if pad > 0 {
		strategy := "no partition"
		if pad != tokens {
			strategy = "padding"
		}
		add(strategy, "NPU-only", s.npuNS(pad)+assumed.syncNS, npu)
		split := "weight-centric"
		if pad != tokens || dynamic {
			split = "hybrid"
		}
		shares := assumed.shares
		if shares == nil {
			shares = uniform(s.rows / s.stage)
		}
		for _, share := range shares {
			// part is linear in the rows beyond what is fixed.
			part := func(whole, fixed int64, rows int) int64 {
				n := int64(share.gpu + share.npu)
				fixed = min(fixed, whole)
				return fixed + ((whole-fixed)*int64(rows)+n/2)/n
			}
			ratio := share.reduced().String()
			if split == "hybrid" {
				ratio += " (weight)"
			}
			gpuNS, npuNS := part(s.gpuNS(pad), assumed.gpuFixed, share.gpu), part(s.npuNS(pad), assumed.npuFixed,
				share.npu)
			if s.catalog != nil {
				rows := s.rows * share.gpu / (share.gpu + share.npu)
				gpuNS, npuNS = s.catalog("gpu", pad, rows, true), s.catalog("npu", pad, s.rows-rows, true)
			}
			add(split, ratio, max(gpuNS, npuNS)+assumed.syncNS+assumed.splitNS, gpu, npu)
		}
	}
	if tokens > 1 {
		// Several standard lengths in sequence, the last one padded.
		best, at := int64(-1), 0
		for m := tokens; m < len(cost); m++ {
			if cost[m] >= 0 && (best < 0 || cost[m] < best) {
				best, at = cost[m], m
			}
		}
		if assumed.pipe && best >= 0 && (pad == 0 || best < s.npuNS(pad)) { // otherwise it is one piece
			add("NPU-pipe", strconv.Itoa(at), best+assumed.syncNS, npu)
		}
		// Standard lengths on the NPU beside the rest on the GPU.
		for length := min(tokens-1, len(cost)-1); length > 0; length-- {
			if cost[length] < 0 {
				continue
			}
			add("activation-centric", fmt.Sprintf("dynamic:%d", length), max(cost[length], s.gpuNS(tokens-length))+
				assumed.syncNS+assumed.splitNS, gpu, npu)
			if !assumed.anyCut {
				break
			}
		}
	}
	return it, ds
}

// decide solves one operator at one length with the engine that solve uses.
func (s *shape) decide(ctx context.Context, tokens int, dynamic bool, a *assumptions) (decision, error) {
	it, ds := s.item(tokens, dynamic, a)
	partition := &problem.Partition{
		Name: s.name, Procs: []string{"gpu", "npu"},
		Chains: []problem.Chain{{Name: "op", Repeat: 1, Items: []problem.Item{it}}},
	}
	sol, err := solvePartition(ctx, partition)
	if err != nil {
		return decision{}, err
	}
	return ds[sol.Choices[0][0]], nil
}

// solvePartition returns a proved and verified optimum.
func solvePartition(ctx context.Context, p *problem.Partition) (problem.Solution, error) {
	sol, err := exact.Engine{}.Partition(ctx, p)
	if err != nil {
		return sol, err
	}
	if err := p.Verify(sol); err != nil {
		return sol, err
	}
	if sol.Status != problem.Optimal {
		return sol, diag.New(diag.ClassInternal, "partition %q: status %q, want %q", p.Name, sol.Status,
			problem.Optimal)
	}
	return sol, nil
}

// span is a range of lengths with one decision.
type span struct {
	from, to int
	decision
}

// spans decides every length of a range.
func (s *shape) spans(
	ctx context.Context, from, to int, dynamic bool, a *assumptions, same func(a, b decision) bool,
) ([]span, error) {
	var out []span
	for length := from; length <= to; length++ {
		decision, err := s.decide(ctx, length, dynamic, a)
		if err != nil {
			return nil, err
		}
		if k := len(out) - 1; k >= 0 && same(out[k].decision, decision) {
			out[k].to = length
			continue
		}
		out = append(out, span{length, length, decision})
	}
	return out, nil
}

// sameStrategy reports whether two decisions have one strategy, whatever the ratio.
func sameStrategy(a, b decision) bool { return a.strategy == b.strategy }

// textOf writes spans: what holds throughout, or each with its lengths.
func textOf(list []span, of func(d decision) string) string {
	var parts []string
	for i := 0; i < len(list); i++ {
		to := list[i].to
		for i+1 < len(list) && of(list[i+1].decision) == of(list[i].decision) {
			i++
			to = list[i].to
		}
		from := list[i].from
		for j := i; j > 0 && of(list[j-1].decision) == of(list[i].decision); j-- {
			from = list[j-1].from
		}
		if from == list[0].from && to == list[len(list)-1].to {
			return of(list[i].decision)
		}
		if from == to {
			parts = append(parts, fmt.Sprintf("%s at %d", of(list[i].decision), from))
		} else {
			parts = append(parts, fmt.Sprintf("%s at %d-%d", of(list[i].decision), from, to))
		}
	}
	return strings.Join(parts, ", ")
}

// holds reports whether a row comes out as printed at each of its lengths: the strategy, and the ratio unless only the
// strategy is asked for.
func (r *table3Row) holds(ctx context.Context, a *assumptions, ratio bool) (bool, error) {
	for m := r.from; m <= r.to; m++ {
		decision, err := r.shape.decide(ctx, m, r.dynamic(), a)
		if err != nil {
			return false, err
		}
		if decision.strategy != r.printed.strategy || ratio && decision.ratio != r.printed.ratio || !ratio &&
			strings.HasSuffix(r.printed.ratio, "-only") && decision.ratio != r.printed.ratio {
			return false, nil
		}
	}
	return true, nil
}

// interval finds by bisection the integers from 0 to most for which ok holds; ok holds on one interval at most. probes
// are where it is looked for first; found is false when it holds at none of them.
//
// From a probe at which ok holds, each edge is found by bisection: good holds, bad does not, and they approach
// each other.
func interval(most int64, probes []int64, ok func(int64) (bool, error)) (low, high int64, found bool, err error) {
	at := int64(-1)
	for _, probe := range probes {
		good, err := ok(probe)
		if err != nil {
			return 0, 0, false, err
		}
		if good {
			at = probe
			break
		}
	}
	if at < 0 {
		return 0, 0, false, nil
	}
	// edge is the last integer towards far for which ok holds.
	edge := func(far int64) (int64, error) {
		good, bad := at, far
		if h, err := ok(far); err != nil || h {
			return far, err
		}
		for bad-good > 1 || good-bad > 1 {
			mid := good + (bad-good)/2
			holds, err := ok(mid)
			if err != nil {
				return 0, err
			}
			if holds {
				good = mid
			} else {
				bad = mid
			}
		}
		return good, nil
	}
	if low, err = edge(0); err != nil {
		return 0, 0, false, err
	}
	high, err = edge(most)
	return low, high, true, err
}

// mostNS is up to where intervals are looked for.
const mostNS = 1_000_000_000

// probesNS are where an interval is looked for: from nothing to a second.
var probesNS = []int64{0, 5_000, 20_000, 50_000, 100_000, 150_000, 200_000, 300_000, 400_000, 600_000, 1_000_000,
	2_000_000, 5_000_000, 20_000_000, 1_000_000_000}

// usText writes nanoseconds in microseconds.
func usText(ns int64) string { return strconv.FormatFloat(float64(ns)/1000, 'f', -1, 64) }

// rangeText writes an interval of nanoseconds in microseconds.
func rangeText(low, high int64, found bool) string {
	switch {
	case !found:
		return "nowhere"
	case low == 0 && high == mostNS:
		return "everywhere"
	case high == mostNS:
		return "from " + usText(low) + " us"
	}
	return usText(low) + ".." + usText(high) + " us"
}

// joinInts writes a list without brackets.
func joinInts(list []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ", "), "[]")
}

// standardSets are sets of lengths that graphs may exist for; the paper names three lengths and no set.
func standardSets() []struct {
	name    string
	lengths []int
} {
	multiples := func(of int) (out []int) {
		for m := of; m <= 512; m += of {
			out = append(out, m)
		}
		return out
	}
	var named []int
	for _, x := range fact("heteroinfer", "m_standard_sequence_lengths").at("values", "examples").nums() {
		named = append(named, int(x))
	}
	return []struct {
		name    string
		lengths []int
	}{
		{"named", named}, {"powers of two", []int{32, 64, 128, 256, 512}}, {"multiples of 128", multiples(128)},
		{"multiples of 64", multiples(64)}, {"multiples of 32", multiples(32)},
	}
}

// flagNS is T_sync + T_copy of the paper's fast synchronisation, as the catalog has it: a few microseconds.
func flagNS() (int64, error) {
	soc, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		return 0, err
	}
	link, _ := soc.Link("npu", "gpu")
	return us(link.HandoverUS), nil
}

// table3Base are the assumptions that the table is recomputed under, and then varied one by one.
func table3Base() (*assumptions, error) {
	sync, err := flagNS()
	return &assumptions{syncNS: sync, standard: standardSets()[2].lengths}, err
}

// smallestGrid is the smallest set of shares, of those with small denominators, on which most rows of the table
// come out as printed.
func smallestGrid(ctx context.Context, rows []table3Row, base *assumptions) ([]share, int, error) {
	const most = 8 // of gpu + npu
	var all []share
	for n := 2; n <= most; n++ {
		for _, share := range uniform(n) {
			if share.reduced() == share {
				all = append(all, share)
			}
		}
	}
	best, bestHeld := []share(nil), -1
	var err error
	// Sets of one, two and three shares, in order. A set is left when it cannot hold as many rows
	// as the best one.
	var try func(from int, set []share, size int)
	try = func(from int, set []share, size int) {
		if err != nil {
			return
		}
		if len(set) == size {
			assumed := *base
			assumed.shares = set
			held := 0
			for i := range rows {
				var ok bool
				if ok, err = rows[i].holds(ctx, &assumed, true); err != nil {
					return
				}
				if ok {
					held++
				} else if held+len(rows)-i-1 <= bestHeld {
					return
				}
			}
			if held > bestHeld {
				best, bestHeld = slices.Clone(set), held
			}
			return
		}
		for k := from; k < len(all); k++ {
			try(k+1, append(set, all[k]), size)
		}
	}
	for size := 1; size <= 3 && bestHeld < len(rows); size++ {
		try(0, nil, size)
	}
	return best, bestHeld, err
}

// table3OnGrids returns the assumptions with every stage as a ratio, and with the smallest grid that gives the
// printed ratios.
func table3OnGrids(ctx context.Context, rows []table3Row) (base *assumptions, onGrid assumptions, err error) {
	if base, err = table3Base(); err != nil {
		return nil, onGrid, err
	}
	grid, _, err := smallestGrid(ctx, rows, base)
	if err != nil {
		return nil, onGrid, err
	}
	onGrid = *base
	onGrid.shares = grid
	return base, onGrid, nil
}

// heteroTable3 decides Table 3's operators with the solver from the printed latencies, and says for which
// assumptions about what is not printed the decisions come out as printed.
func heteroTable3(ctx context.Context, out *sheet) error {
	rows := table3()
	base, onGrid, err := table3OnGrids(ctx, rows)
	if err != nil {
		return err
	}
	model := fmt.Sprintf("latencies are the printed ones, linear in the weight's rows, between lengths on the line "+
		"through printed points (NPU: at the end of its stage of %d); T_sync + T_copy %s us, standard lengths %s "+
		"(384 because row 9 ends there)",
		stageRows(), usText(base.syncNS), joinInts(base.standard))
	stageNote := model + "; ratios from every stage"
	// decisions of each row with both grids
	var names []string
	for _, share := range onGrid.shares {
		names = append(names, share.String())
	}
	gridNote := model + "; ratios from the smallest grid that gives the printed ones: " + strings.Join(names, ", ")
	limits := map[string][]held{}
	for i := range rows {
		row := &rows[i]
		add := func(name string, paper, ours any, note string) {
			out.add(Modelled, row.name+"/"+name, paper, ours, "%s", note)
		}
		for _, variant := range []struct {
			suffix string
			a      *assumptions
			note   string
		}{{"", base, stageNote}, {"-smallest-grid", &onGrid, gridNote}} {
			list, err := row.shape.spans(ctx, row.from, row.to, row.dynamic(), variant.a, decision.same)
			if err != nil {
				return err
			}
			strategy := textOf(list, func(d decision) string { return d.strategy })
			ratio := textOf(list, func(d decision) string { return d.ratio })
			add("strategy"+variant.suffix, row.printed.strategy, strategy, variant.note+
				reason(row, strategy != row.printed.strategy, variant.a))
			add("ratio"+variant.suffix, row.printed.ratio, ratio, variant.note+
				reason(row, ratio != row.printed.ratio, variant.a))
			worst := int64(0)
			for _, span := range list {
				worst = max(worst, span.ns)
			}
			add("us"+variant.suffix, nil, float64(worst)/1000, variant.note+
				"; microseconds, the longest of the row's lengths")
		}
		// Where the printed decision holds, one assumption moved at a time.
		for _, move := range table3Moves(base, &onGrid) {
			assumed := *move.a
			low, high, found, err := interval(mostNS, probesNS, func(ns int64) (bool, error) {
				move.set(&assumed, ns)
				return row.holds(ctx, &assumed, move.ratio)
			})
			if err != nil {
				return err
			}
			limits[move.name] = append(limits[move.name], held{row.name, low, high, found})
			add(move.name, nil, rangeText(low, high, found), move.note+
				"; looked for from 0 to 1 s, ends by bisection to 1 ns")
		}
		if err := table3Choices(ctx, row, base, &onGrid, add); err != nil {
			return err
		}
	}
	return table3Together(ctx, out, rows, base, &onGrid, limits)
}

// table3Choices says for which grids, standard lengths and rules a row comes out as printed.
func table3Choices(
	ctx context.Context, row *table3Row, base, onGrid *assumptions, add func(name string, paper, ours any, note string),
) error {
	var denominators []int
	finest := row.shape.rows / row.shape.stage
	for denominator := 2; denominator <= finest; denominator++ {
		if denominator > mostDenominator && denominator != finest {
			continue
		}
		assumed := *base
		assumed.shares = uniform(denominator)
		ok, err := row.holds(ctx, &assumed, true)
		if err != nil {
			return err
		}
		if ok {
			denominators = append(denominators, denominator)
		}
	}
	add("holds-grid", nil, ranges(denominators),
		fmt.Sprintf("n for which strategy and ratio come out as printed when ratios are multiples of 1/n; 2..%d "+
			"and every stage (rows / %d) are tried", mostDenominator, stageRows()))
	var sets []string
	for _, set := range standardSets() {
		assumed := *onGrid
		assumed.standard = set.lengths
		ok, err := row.holds(ctx, &assumed, true)
		if err != nil {
			return err
		}
		if ok {
			sets = append(sets, set.name)
		}
	}
	if len(sets) == len(standardSets()) {
		sets = []string{"all"}
	}
	add("holds-lengths", nil, orNowhere(strings.Join(sets, "; ")), "sets of standard lengths up to 512 (named: "+
		joinInts(standardSets()[0].lengths)+
		") for which strategy and ratio come out as printed, on the smallest grid")
	for _, variant := range []struct {
		name string
		set  func(a *assumptions)
		note string
	}{
		{"holds-any-cut", func(a *assumptions) { a.anyCut = true },
			"whether it comes out as printed on the smallest grid when the GPU may take more of the tokens than " +
				"what no standard length fits into (sec. 4.2.2 takes as little as possible)"},
		{"holds-pipe", func(a *assumptions) { a.pipe = true },
			"whether it comes out as printed on the smallest grid when NPU-pipe is a choice as well (a baseline " +
				"in sec. 5.3.2, not a term of the objective): two printed runs of 128 tokens take less than one " +
				"of 256"},
	} {
		assumed := *onGrid
		variant.set(&assumed)
		ok, err := row.holds(ctx, &assumed, true)
		if err != nil {
			return err
		}
		add(variant.name, nil, map[bool]string{true: "holds", false: "does not hold"}[ok], variant.note)
	}
	return nil
}

// mostDenominator bounds the uniform grids that are tried.
const mostDenominator = 40

// held is where an assumption leaves a row as printed.
type held struct {
	row       string
	low, high int64
	found     bool
}

// move is an assumption that is varied.
type move struct {
	name  string
	a     *assumptions // the others
	ratio bool         // the ratio has to be the printed one as well
	set   func(a *assumptions, ns int64)
	note  string
}

// table3Moves are the assumptions that are varied, one at a time.
func table3Moves(base, onGrid *assumptions) []move {
	sync := func(a *assumptions, ns int64) { a.syncNS = ns }
	return []move{
		{"holds-sync", onGrid, true, sync,
			"T_sync + T_copy for which strategy and ratio come out as printed, on the smallest grid"},
		{"holds-sync-stage-grid", base, false, sync,
			"T_sync + T_copy for which the strategy comes out as printed, ratios from every stage"},
		{"holds-gpu-fixed", base, false, func(a *assumptions, ns int64) { a.gpuFixed = ns },
			"time of the GPU that does not shrink with its part of the weight for which the strategy comes out as " +
				"printed, ratios from every stage"},
		{"holds-npu-fixed", base, false, func(a *assumptions, ns int64) { a.npuFixed = ns },
			"time of the NPU that does not shrink with its part of the weight for which the strategy comes out as " +
				"printed, ratios from every stage"},
		{"holds-split", base, false, func(a *assumptions, ns int64) { a.splitNS = ns },
			"what a division costs beyond the synchronisation of NPU-only for which the strategy comes out as " +
				"printed, ratios from every stage"},
	}
}

// table3Together is about all rows at once.
func table3Together(
	ctx context.Context, out *sheet, rows []table3Row, base, onGrid *assumptions, limits map[string][]held,
) error {
	count := func(a *assumptions, ratio bool) (count int, err error) {
		for i := range rows {
			ok, err := rows[i].holds(ctx, a, ratio)
			if err != nil {
				return 0, err
			}
			if ok {
				count++
			}
		}
		return count, nil
	}
	// how many rows come out as printed: on the smallest grid, on every stage, on the best uniform
	// grid
	onGridRows, err := count(onGrid, true)
	if err != nil {
		return err
	}
	out.noted(Modelled, "all/rows-smallest-grid", len(rows), onGridRows, "all/rows_smallest_grid")
	if onGridRows, err = count(base, false); err != nil {
		return err
	}
	out.noted(Modelled, "all/rows-stage-grid", len(rows), onGridRows, "all/rows_stage_grid")
	best, first := 0, 0
	for denominator := 2; denominator <= mostDenominator; denominator++ {
		assumed := *base
		assumed.shares = uniform(denominator)
		held, err := count(&assumed, true)
		if err != nil {
			return err
		}
		if held > best {
			best, first = held, denominator
		}
	}
	out.noted(Modelled, "all/rows-uniform-grid", len(rows), best, "all/rows_uniform_grid", mostDenominator, first)
	for _, move := range table3Moves(base, onGrid) {
		// the intersection of the rows' intervals, with the rows that bound it
		low, high := held{low: -1}, held{high: mostNS + 1}
		none := ""
		for _, held := range limits[move.name] {
			switch {
			case !held.found:
				none = held.row
			default:
				if held.low > low.low {
					low = held
				}
				if held.high < high.high {
					high = held
				}
			}
		}
		note := "every row at once: " + move.note
		switch {
		case none != "":
			note += "; " + none + " comes out as printed nowhere"
		case low.low > high.high:
			note += fmt.Sprintf("; %s needs at least %s us and %s permits at most %s us, so no such cost explains "+
				"the table: it implies a coarse grid", low.row, usText(low.low), high.row, usText(high.high))
		default:
			note += fmt.Sprintf("; the upper end is that of %s: a wait of %v us by clFinish (sec. 3.1) is beyond "+
				"it, so the table rests on fast synchronisation", high.row,
				fact("heteroinfer", "hw_sync_clfinish").at("values", "clFinish_fixed").num())
		}
		out.add(Modelled, "all/"+move.name, nil, rangeText(low.low, high.high, none == "" && low.low <= high.high),
			"%s", note)
	}
	return nil
}

// reason says why a row differs from the table.
func reason(r *table3Row, differs bool, a *assumptions) string {
	switch {
	case !differs:
		return ""
	case a.shares == nil && strings.HasSuffix(r.printed.ratio, "-only"):
		return "; differs because a division that is fine enough always pays: NPU-only has the same " +
			"synchronisation, and the GPU alone takes longer"
	case a.shares == nil:
		return "; differs because the printed ratio is not the one that balances the two printed latencies"
	}
	return "; differs: see holds-*"
}

// orNowhere shows an empty range.
func orNowhere(s string) string {
	if s == "" {
		return "nowhere"
	}
	return s
}

// ranges writes ascending numbers with runs joined: "2-4, 8".
func ranges(numbers []int) string {
	var parts []string
	for i := 0; i < len(numbers); i++ {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		if j > i {
			parts = append(parts, fmt.Sprintf("%d-%d", numbers[i], numbers[j]))
		} else {
			parts = append(parts, strconv.Itoa(numbers[i]))
		}
		i = j
	}
	return orNowhere(strings.Join(parts, ", "))
}
