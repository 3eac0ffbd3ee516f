package roofline

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/source"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/socs/timeline"
)

// timeline.Memory says how processors that work side by side slow each other down. It takes two kinds of numbers for
// every set of them: the joint rate at which all of them read memory together, and for each of them the factor by which
// its arithmetic slows down. fitSharing determines both from measured bandwidths, and from measured slowdowns of
// operators beside operators:
//
//  1. The joint rate starts as the sum of what the members read side by side in the largest pass. Where that was not
//     measured it is what the SoC states, or else the sum of what each reads alone.
//  2. A member's factor of arithmetic is the median slowdown of its operators that hardly read.
//  3. The joint rate moves to where it best explains the slowdowns of operators that mostly read. That is the minimum of
//     a robust loss plus a quadratic penalty for leaving the rate of step 1 (a maximum a posteriori estimate), searched
//     on a grid of rates.
//  4. Every measured pair also keeps its own slowdown, for predictions of that very pair.
//  5. Parts of one operator beside each other may slow down by more than these numbers explain. A kernel that waits for
//     each line of memory is bound by neither arithmetic nor the stream, and waits longer while another processor reads.
//     What is left unexplained is a factor: the median over the measured pairs of a kind, scheme and number of rows.
//
// Step 3 simulates each pair of a set once for every candidate rate: sharingBelow+sharingAbove+1 simulations a pair.
const (
	// hardlyReads is the largest ratio of an operator's time of reading to that of its arithmetic in step 2.
	hardlyReads = 1. / 4
	// leastPairs is the least number of operators that mostly read in step 3.
	leastPairs = 2
	// ratePenalty weighs the square of the correction's logarithm against the loss of the slowdowns, as if the rate of
	// streams were known within 20 % and slowdowns within 2 %. Operators that never read at the same time show no rate,
	// and leave it as it was.
	ratePenalty = 0.05
	// The grid of corrections has sharingOctave steps to a doubling, 1.75 % each, from a quarter to twice the rate.
	sharingOctave, sharingBelow, sharingAbove = 40, 80, 40
	// leastAlike is the least number of pairs of a class in step 5. A factor that differs from 1 by less than
	// leastBeyond is noise.
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
		if taken.m.Kind == record.Op && taken.m.GLU == nil && len(taken.m.Concurrent) == 0 {
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

// fitRate moves the joint rate to the one of the grid that best explains the slowdowns of operators that mostly read.
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

// fitAlike determines by what factor parts of one operator beside each other slow down more than is explained.
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

// memory returns how this set alone shares memory, at a joint rate.
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
