package roofline

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/source"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/socs/timeline"
)

// Load is an operator that runs on a processor while others run elsewhere.
type Load struct {
	Proc string
	Op   op.Op
	Cold bool
}

// Concurrent returns the slowdown (>= 1) of each load when all start together on distinct processors, and its source.
// While others run, the memory decides (see Memory); a load that is left alone proceeds at full speed.
func (c *Costs) Concurrent(loads ...Load) ([]float64, source.Source, error) {
	procs, phases := make([]string, len(loads)), make([][]timeline.Phase, len(loads))
	for i, load := range loads {
		phase, err := c.Phase(load)
		if err != nil {
			return nil, "", err
		}
		if slices.Contains(procs[:i], load.Proc) {
			return nil, "", diag.New(diag.ClassInput,
				"predict %d operators at once: two of them run on processor %q, want one each", len(loads), load.Proc)
		}
		procs[i], phases[i] = load.Proc, []timeline.Phase{phase}
	}
	out := slices.Repeat([]float64{1}, len(loads))
	if len(loads) < 2 {
		return out, source.Measured, nil
	}
	ends := timeline.Together(&timeline.Machine{Memory: *c.Memory()}, procs, phases)
	for i := range out {
		if alone := phases[i][0].NS(); alone > 0 {
			out[i] = max(ends[i]/alone, 1)
		}
	}
	return out, c.sharingSource(procs, phases), nil
}

// sharingSource returns the source of slowdowns: measurements of this very pair of operators, or else the joint rates
// of all sets among the processors, the whole set included. A pair of operators without measurements is interpolated
// between those to which a measured rate was fitted. More than two processors whose joint rate is unknown are
// extrapolated from the pairs.
func (c *Costs) sharingSource(procs []string, phases [][]timeline.Phase) source.Source {
	if len(procs) == 2 {
		measured := func(own, other int) bool {
			_, ok := c.Memory().Pairs[timeline.Pair{Proc: procs[own], Key: phases[own][0].Key, Beside: procs[other],
				BesideKey: phases[other][0].Key}]
			return ok
		}
		if measured(0, 1) && measured(1, 0) {
			return source.Measured
		}
	}
	weakest, pairs, whole := source.Interpolated, 0, false
	for i := range c.Sharing {
		set := &c.Sharing[i]
		if slices.ContainsFunc(set.Procs, func(name string) bool { return !slices.Contains(procs, name) }) {
			continue
		}
		weakest = source.Weakest(weakest, set.Source)
		if len(set.Procs) == 2 {
			pairs++
		}
		whole = whole || len(set.Procs) == len(procs)
	}
	if pairs < len(procs)*(len(procs)-1)/2 {
		return source.Described // some two are taken not to slow each other down
	}
	if !whole {
		weakest = source.Weakest(weakest, source.Extrapolated)
	}
	return weakest
}

// Memory returns how the processors share memory: the joint rate of each set, and for measured pairs the time of one
// operator while the other one runs.
func (c *Costs) Memory() *timeline.Memory {
	c.shared.Do(func() {
		c.memory.Pairs, c.memory.Alike = map[timeline.Pair]float64{}, map[timeline.Alike]float64{}
		for i := range c.Sharing {
			set := &c.Sharing[i]
			c.memory.Sets = append(c.memory.Sets,
				timeline.Set{Procs: set.Procs, BytesPerNS: set.BytesPerNS, Compute: set.Compute})
			if len(set.Procs) != 2 {
				continue
			}
			other := map[string]string{set.Procs[0]: set.Procs[1], set.Procs[1]: set.Procs[0]}
			for _, pair := range set.Pairs {
				c.memory.Pairs[timeline.Pair{Proc: pair.Proc, Key: pair.Key, Beside: other[pair.Proc],
					BesideKey: pair.Beside}] = cmp.Or(pair.Overlap, pair.Factor)
			}
			for _, alike := range set.Alike {
				class := timeline.Class{Kind: string(alike.Kind), Scheme: alike.Scheme, Rows: alike.Rows}
				c.memory.Alike[timeline.Alike{Proc: alike.Proc, Beside: other[alike.Proc], Class: class}] = alike.Factor
			}
		}
	})
	return &c.memory
}

// Phase divides a load into its phases by its family's roofline, scaled to its predicted time. During its memory part
// it reads as fast as its processor does alone.
func (c *Costs) Phase(load Load) (timeline.Phase, error) {
	load.Op = load.Op.OfDensity()
	asked := load.Op
	load.Op = c.priced(load.Proc, load.Op)
	phase, err := c.phase(load)
	_, _, between := c.densities(load.Proc, asked)
	if err != nil || asked.Kind != op.GroupMatMul && asked.Channels == load.Op.Channels && !between {
		return phase, err
	}
	// The parts of its products one after another, behind one launch; or those of a density, or of a number of
	// channels, that was measured.
	whole, err := c.Op(load.Proc, asked, load.Cold)
	if alone := phase.NS(); err == nil && alone > 0 {
		phase = phase.Times(float64(whole.NS) / alone)
	}
	return phase, err
}

// loadKey names an operator as pairs of a costs file do.
func loadKey(load Load) string {
	if load.Cold {
		return load.Op.Key() + " cold"
	}
	return load.Op.Key()
}

// phase is Phase of a load in the scheme that it is priced in.
func (c *Costs) phase(load Load) (timeline.Phase, error) {
	predicted, err := c.Op(load.Proc, load.Op, load.Cold)
	if err != nil {
		return timeline.Phase{}, err
	}
	index := c.look()
	want, rows, along, across := familyOf(load.Proc, load.Op, load.Cold)
	family := index.families[want.key()]
	// A time was predicted above, so one of both families exists, and it is the one that the time rests on.
	if family == nil {
		want.Cold = !load.Cold
		family = index.families[want.key()]
	}
	work, traffic := family.work(rows, along, across, family.Step)
	ops, bytes := family.OpsPerNS, family.BytesPerNS
	// A curve of this very size knows better than the family how fast it computes and reads.
	if curve := family.curve(along, across); curve != nil {
		ops, bytes = curve.OpsPerNS, curve.BytesPerNS
	}
	phase := timeline.Phase{SetupNS: family.SetupNS, ComputeNS: work / ops, MemoryNS: traffic / bytes,
		Sharp: family.Sharpness, Rate: bytes, Key: loadKey(load),
		Class: timeline.Class{Kind: string(load.Op.Kind), Scheme: string(load.Op.Scheme), Rows: load.Op.Rows()}}
	whole := phase.NS()
	if whole == 0 {
		phase.SetupNS = float64(predicted.NS)
		return phase, nil
	}
	// The roofline gives proportions; how long all of it takes is what was measured.
	phase = phase.Times(float64(predicted.NS) / whole)
	if own := index.processors[load.Proc]; own != nil && own.BytesPerNS > 0 {
		phase.Rate = own.BytesPerNS
		// What fits into the last cache is not read from memory, and says nothing against the stream.
		if load.Cold || traffic > float64(c.CacheBytes) {
			plausible(&phase, traffic/phase.Rate, family.reads)
		}
	}
	return phase, nil
}

// slowest is the largest ratio of a memory-bound operator's time to that of a stream of the same bytes: kernels reach
// half of the stream, and a processor may read weights wider than they are stored.
const slowest = 2

// plausible corrects the memory part of an operator whose bytes a stream reads in the given time. Where arithmetic
// takes longer at all sizes (reads is false), samples do not tell how long reading takes. Where reading seems to take
// many times as long as a stream, something else takes the time. The time of the whole stays.
func plausible(phase *timeline.Phase, stream float64, reads bool) {
	work := phase.NS() - phase.SetupNS
	switch {
	case !reads:
		phase.MemoryNS = min(stream, work)
	case phase.MemoryNS > slowest*stream:
		phase.MemoryNS = slowest * stream
	default:
		return
	}
	phase.ComputeNS, phase.Sharp = work, maxSharpness
}

// The laws of timeline.Memory hold two kinds of numbers for every set of processors that work side by side: the joint
// rate at which all of them read memory together, and for each the factor by which its arithmetic slows down.
// fitSharing determines both from measured bandwidths and from measured slowdowns of operators beside operators:
//
//  1. The joint rate starts as the sum of what the members read side by side in the largest pass; unmeasured, as what the
//     SoC states, or else as the sum of what each reads alone.
//  2. A member's factor of arithmetic is the median slowdown of its operators that hardly read.
//  3. The joint rate moves to where it explains best the slowdowns of operators that mostly read: the minimum of a robust
//     loss plus a quadratic penalty for leaving the rate of step 1 (a maximum a posteriori estimate), searched on a grid
//     of rates.
//  4. Every measured pair also keeps its own slowdown, for predictions of that very pair.
//  5. Parts of an operator beside each other slow down as much more than that as the median of pairs of that kind,
//     scheme and number of rows: a kernel that is bound by neither arithmetic nor the stream, but waits for each line of
//     memory, waits longer while another processor reads.
//
// Every candidate rate simulates each pair of a set once: sharingBelow+sharingAbove+1 simulations a pair.
const (
	// hardlyReads is the share of its arithmetic's time that an operator of step 2 reads at most.
	hardlyReads = 1. / 4
	// leastPairs is how many operators that mostly read it takes to correct the rate of streams.
	leastPairs = 2
	// ratePenalty weighs the square of the log of the correction against the loss of the slowdowns: as if the rate of
	// streams were known within 20 % and slowdowns within 2 %. Operators that never read at the same time do not show a
	// rate; it then stays that of streams.
	ratePenalty = 0.05
	// The grid of corrections has sharingOctave steps to a doubling, 1.75 % each, from a quarter to twice the rate.
	sharingOctave, sharingBelow, sharingAbove = 40, 80, 40
	// leastAlike is how many pairs of a class step 5 takes, and leastBeyond what it then leaves to the law.
	leastAlike, leastBeyond = 3, 0.1
	// maxFactor is the greatest slowdown that a costs file may state.
	maxFactor = 1e3
)

// sharingFit collects the measurements of each set of processors, by setKey.
type sharingFit struct {
	costs *Costs
	sets  map[string]*Sharing
	pairs map[string][]measuredPair
}

// measuredPair is the slowdown of an operator while another one was repeated beside it.
type measuredPair struct {
	own, other timeline.Phase
	member     int // own's processor in the set
	factor     float64
	index      int // in the set's Pairs
}

// fitSharing fits joint rates and slowdowns of every measured or described set.
func (c *Costs) fitSharing(soc *socs.SoC, all []sample) {
	fit := sharingFit{costs: c, sets: map[string]*Sharing{}, pairs: map[string][]measuredPair{}}
	for _, joint := range soc.Joint {
		fit.set(joint.Processors).BytesPerNS = joint.BandwidthGBps
	}
	fit.bandwidths(all)
	fit.slowdowns(soc, all)
	for _, key := range slices.Sorted(maps.Keys(fit.sets)) {
		set, pairs := fit.sets[key], fit.pairs[key]
		if set.BytesPerNS == 0 { // nothing known: all read as fast as alone
			for _, name := range set.Procs {
				if proc := c.look().processors[name]; proc != nil {
					set.BytesPerNS += proc.BytesPerNS
				}
			}
		}
		if set.BytesPerNS == 0 {
			continue
		}
		set.fitCompute(pairs)
		set.fitRate(pairs)
		for i := range pairs {
			pair := &pairs[i]
			set.Pairs[pair.index].Overlap = round(set.overlap(pair))
		}
		set.fitAlike(pairs)
		slices.SortFunc(set.Pairs, func(a, b Pair) int {
			return cmp.Or(cmp.Compare(a.Proc, b.Proc), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Beside, b.Beside))
		})
		c.Sharing = append(c.Sharing, *set)
	}
}

// set finds the numbers of a set of processors, given in any order, and starts them where there are none.
func (f *sharingFit) set(procs []string) *Sharing {
	procs = slices.Sorted(slices.Values(procs))
	key := setKey(procs)
	if f.sets[key] == nil {
		f.sets[key] = &Sharing{Procs: procs, Source: source.Described,
			Compute: slices.Repeat([]float64{1}, len(procs))}
	}
	return f.sets[key]
}

// bandwidths adds up what each member reads while the others read, if every member was measured.
func (f *sharingFit) bandwidths(all []sample) {
	type reading struct {
		bytes int64 // of the largest pass, which no cache helps
		rate  float64
	}
	reads := map[string]map[string]reading{} // by set and processor
	besideOp := func(partner record.Partner) bool { return partner.Op != nil }
	for _, taken := range all {
		measured := taken.m
		if measured.Kind != record.Bandwidth || len(measured.Concurrent) == 0 ||
			slices.ContainsFunc(measured.Concurrent, besideOp) {
			continue
		}
		key := setKey(f.set(members(measured)).Procs)
		if reads[key] == nil {
			reads[key] = map[string]reading{}
		}
		if measured.Bytes >= reads[key][measured.Proc].bytes {
			reads[key][measured.Proc] = reading{measured.Bytes, float64(measured.Bytes) / taken.ns}
		}
	}
	for key, readings := range reads {
		set := f.sets[key]
		if len(readings) < len(set.Procs) {
			continue
		}
		sum := 0.0
		for _, name := range set.Procs {
			sum += readings[name].rate
		}
		set.BytesPerNS, set.Source = round(sum), source.Measured
	}
}

// slowdowns collects the operators measured beside one other operator that were measured alone as well.
func (f *sharingFit) slowdowns(soc *socs.SoC, all []sample) {
	alone := map[string]float64{} // by processor and operator
	for _, taken := range all {
		if taken.m.Kind == record.Op && len(taken.m.Concurrent) == 0 {
			alone[taken.m.Proc+" "+loadKey(Load{Op: *taken.m.Op, Cold: taken.m.Cold})] = taken.ns
		}
	}
	for _, taken := range all {
		measured := taken.m
		if measured.Kind != record.Op || len(measured.Concurrent) != 1 || measured.Concurrent[0].Op == nil ||
			!layoutFits(soc, measured) {
			continue
		}
		partner := measured.Concurrent[0]
		own, other := Load{measured.Proc, *measured.Op, measured.Cold}, Load{partner.Proc, *partner.Op, partner.Cold}
		ns, ok := alone[own.Proc+" "+loadKey(own)]
		if !ok {
			continue
		}
		set := f.set(members(measured))
		factor := round(taken.ns / ns)
		if factor <= 0 || factor > maxFactor {
			continue
		}
		set.Pairs = append(set.Pairs, Pair{Proc: own.Proc, Key: loadKey(own), Beside: loadKey(other), Factor: factor})
		ownPhase, errOwn := f.costs.phase(own)
		otherPhase, errOther := f.costs.phase(other)
		if errOwn == nil && errOther == nil {
			key, member := setKey(set.Procs), slices.Index(set.Procs, own.Proc)
			pair := measuredPair{ownPhase, otherPhase, member, factor, len(set.Pairs) - 1}
			f.pairs[key] = append(f.pairs[key], pair)
		}
	}
}

// fitCompute sets each member's factor of arithmetic.
func (s *Sharing) fitCompute(pairs []measuredPair) {
	for member := range s.Procs {
		var factors []float64
		for i := range pairs {
			pair := &pairs[i]
			if pair.member == member && pair.own.MemoryNS < pair.own.ComputeNS*hardlyReads {
				factors = append(factors, pair.factor)
			}
		}
		if len(factors) > 0 {
			s.Compute[member] = round(max(stat.Median(factors), 1))
		}
	}
}

// fitRate moves the joint rate to the one of the grid that explains the slowdowns of operators that mostly read.
func (s *Sharing) fitRate(pairs []measuredPair) {
	var reading []*measuredPair
	for i := range pairs {
		if pairs[i].own.MemoryNS > pairs[i].own.ComputeNS {
			reading = append(reading, &pairs[i])
		}
	}
	if len(reading) < leastPairs {
		return
	}
	best, correction := math.Inf(1), 0.0
	for i := -sharingBelow; i <= sharingAbove; i++ {
		shift := math.Ln2 * float64(i) / sharingOctave
		loss := 0.0
		for _, pair := range reading {
			loss += huber(math.Log(s.explained(pair, s.BytesPerNS*math.Exp(shift)) / max(pair.factor, 1)))
		}
		if loss += float64(ratePenalty * float64(shift*shift)); loss < best-1e-9 {
			best, correction = loss, shift
		}
	}
	if correction != 0 {
		s.BytesPerNS, s.Source = round(s.BytesPerNS*math.Exp(correction)), source.Measured
	}
}

// fitAlike determines the slowdown of parts of one operator beside each other that the law does not explain.
func (s *Sharing) fitAlike(pairs []measuredPair) {
	type class struct {
		member int
		timeline.Class
	}
	beyond := map[class][]float64{}
	for i := range pairs {
		pair := &pairs[i]
		setup, explained := pair.own.SetupNS/pair.own.NS(), s.explained(pair, s.BytesPerNS)
		if pair.own.Class == pair.other.Class && explained > setup && pair.factor > setup {
			key := class{pair.member, pair.own.Class}
			beyond[key] = append(beyond[key], (pair.factor-setup)/(explained-setup))
		}
	}
	for key, factors := range beyond {
		factor := stat.Median(factors)
		if len(factors) >= leastAlike && math.Abs(factor-1) >= leastBeyond {
			s.Alike = append(s.Alike, Alike{s.Procs[key.member], op.Kind(key.Kind), key.Scheme, key.Rows, round(factor)})
		}
	}
	slices.SortFunc(s.Alike, func(a, b Alike) int {
		return cmp.Or(cmp.Compare(a.Proc, b.Proc), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Scheme, b.Scheme),
			cmp.Compare(a.Rows, b.Rows))
	})
}

// memory returns the law of sharing of this set alone, at a joint rate.
func (s *Sharing) memory(joint float64) timeline.Memory {
	return timeline.Memory{Sets: []timeline.Set{{Procs: s.Procs, BytesPerNS: joint, Compute: s.Compute}}}
}

// explained returns the slowdown of a pair if the set reads at the joint rate.
func (s *Sharing) explained(pair *measuredPair, joint float64) float64 {
	machine := timeline.Machine{Memory: s.memory(joint)}
	ns := timeline.Beside(&machine, []string{s.Procs[pair.member], s.Procs[1-pair.member]},
		[][]timeline.Phase{{pair.own}, {pair.other}})
	return ns / pair.own.NS()
}

// overlap returns by how much a pair's operator slows down while the other one works. The measured slowdown was that of
// the whole operator while the other one was repeated, set-ups of both included.
func (s *Sharing) overlap(pair *measuredPair) float64 {
	memory, explained := s.memory(s.BytesPerNS), s.explained(pair, s.BytesPerNS)
	working := memory.Slow([]timeline.Activity{
		{Proc: s.Procs[pair.member], Phase: &pair.own}, {Proc: s.Procs[1-pair.member], Phase: &pair.other},
	}, nil)[0]
	setup := pair.own.SetupNS / pair.own.NS()
	if explained <= setup {
		return max(pair.factor, 1)
	}
	return max(float64(working*(pair.factor-setup))/(explained-setup), 1)
}

// members lists the processors of a measurement, its own first.
func members(measured *record.Measurement) []string {
	out := []string{measured.Proc}
	for _, partner := range measured.Concurrent {
		out = append(out, partner.Proc)
	}
	return out
}
