package roofline

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
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

// Concurrent returns by how much each load slows down (>= 1) when all start together on distinct processors: while others
// run, the memory decides (see Memory), and who is left alone proceeds at full speed.
func (c *Costs) Concurrent(loads ...Load) ([]float64, error) {
	procs, phases := make([]string, len(loads)), make([][]timeline.Phase, len(loads))
	for i, l := range loads {
		p, err := c.Phase(l)
		if err != nil {
			return nil, err
		}
		if slices.Contains(procs[:i], l.Proc) {
			return nil, diag.New(diag.ClassInput, "predict %d operators at once: two of them run on processor %q, want one each", len(loads), l.Proc)
		}
		procs[i], phases[i] = l.Proc, []timeline.Phase{p}
	}
	out := slices.Repeat([]float64{1}, len(loads))
	if len(loads) < 2 {
		return out, nil
	}
	ends := timeline.Together(&timeline.Machine{Memory: *c.Memory()}, procs, phases)
	for i := range out {
		if alone := phases[i][0].NS(); alone > 0 {
			out[i] = max(ends[i]/alone, 1)
		}
	}
	return out, nil
}

// Memory is how the processors share memory: what each set reads together, and of measured pairs what one takes while the
// other runs.
func (c *Costs) Memory() *timeline.Memory {
	c.shared.Do(func() {
		c.memory.Pairs = map[timeline.Pair]float64{}
		for i := range c.Sharing {
			s := &c.Sharing[i]
			c.memory.Sets = append(c.memory.Sets, timeline.Set{Procs: s.Procs, BytesPerNS: s.BytesPerNS, Compute: s.Compute})
			if len(s.Procs) != 2 {
				continue
			}
			for _, p := range s.Pairs {
				other := s.Procs[0]
				if other == p.Proc {
					other = s.Procs[1]
				}
				c.memory.Pairs[timeline.Pair{Proc: p.Proc, Key: p.Key, Beside: other, BesideKey: p.Beside}] = cmp.Or(p.Overlap, p.Factor)
			}
		}
	})
	return &c.memory
}

// Phase is a load taken apart as its family's roofline says, scaled to its predicted time. It reads as fast as its
// processor does alone while its memory part lasts.
func (c *Costs) Phase(l Load) (timeline.Phase, error) {
	l.Op = c.priced(l.Proc, l.Op)
	return c.phase(l)
}

func loadKey(l Load) string {
	if l.Cold {
		return l.Op.Key() + " cold"
	}
	return l.Op.Key()
}

// phase is Phase of a load in the scheme that it is priced in.
func (c *Costs) phase(l Load) (timeline.Phase, error) {
	t, err := c.Op(l.Proc, l.Op, l.Cold)
	if err != nil {
		return timeline.Phase{}, err
	}
	x := c.look()
	want, m, a, b := familyOf(l.Proc, l.Op, l.Cold)
	f := x.families[want.Key()]
	if f == nil {
		want.Cold = !l.Cold
		f = x.families[want.Key()]
	}
	w, q := f.size(m, a, b, f.Step)
	ops, bytes := f.OpsPerNS, f.BytesPerNS
	if k := f.curve(a, b); k != nil {
		ops, bytes = k.OpsPerNS, k.BytesPerNS
	}
	p := timeline.Phase{SetupNS: f.SetupNS, ComputeNS: w / ops, MemoryNS: q / bytes, Sharp: f.Sharpness, Rate: bytes, Key: loadKey(l)}
	whole := p.NS()
	if whole == 0 {
		p.SetupNS = float64(t.NS)
		return p, nil
	}
	p = p.Times(float64(t.NS) / whole)
	if own := x.processors[l.Proc]; own != nil && own.BytesPerNS > 0 {
		p.Rate = own.BytesPerNS
		if l.Cold || q > float64(c.CacheBytes) {
			plausible(&p, q/p.Rate, f.reads)
		}
	}
	return p, nil
}

// slowest is how many times as long as a stream an operator reads that is bound by memory: kernels reach half of it, and
// a processor may read weights wider than they are stored.
const slowest = 2

// plausible corrects the memory part of an operator whose bytes a stream reads in the given time. Where arithmetic takes longer at
// all sizes (reads is false) samples do not tell how long reading takes, and where reading seems to take many times as long as a
// stream it is something else that takes long. The time of the whole stays.
func plausible(p *timeline.Phase, stream float64, reads bool) {
	work := p.NS() - p.SetupNS
	switch {
	case !reads:
		p.MemoryNS = min(stream, work)
	case p.MemoryNS > slowest*stream:
		p.MemoryNS = slowest * stream
	default:
		return
	}
	p.ComputeNS, p.Sharp = work, maxSharpness
}

// streams is the loss of a joint rate of operators that is e times, or an e-th of, what streams read together: as if that were known within
// 20 % and slowdowns within 2 %. Operators that never read at the same time do not show a rate; it then stays that of streams.
const streams = 0.05

// fitSharing collects joint bandwidths and slowdowns of every measured or described set.
func (c *Costs) fitSharing(s *socs.SoC, all []sample) {
	sets := map[string]*Sharing{}
	get := func(procs []string) *Sharing {
		procs = slices.Clone(procs)
		slices.Sort(procs)
		key := setKey(procs)
		if sets[key] == nil {
			sets[key] = &Sharing{Procs: procs, Source: Bound, Compute: slices.Repeat([]float64{1}, len(procs))}
		}
		return sets[key]
	}
	for _, j := range s.Joint {
		get(j.Processors).BytesPerNS = j.BandwidthGBps
	}
	// Joint bandwidth: what each member reads while the others read, of the largest pass.
	type reading struct {
		bytes int64
		rate  float64
	}
	reads := map[string]map[string]reading{}
	alone := map[string]float64{} // operators alone, by processor and load key
	for _, k := range all {
		if k.m.Kind == record.Op && len(k.m.Concurrent) == 0 {
			alone[k.m.Proc+" "+loadKey(Load{Op: *k.m.Op, Cold: k.m.Cold})] = k.ns
		}
		if k.m.Kind != record.Bandwidth || len(k.m.Concurrent) == 0 || slices.ContainsFunc(k.m.Concurrent, func(p record.Partner) bool { return p.Op != nil }) {
			continue
		}
		set := get(members(k.m))
		key := setKey(set.Procs)
		if reads[key] == nil {
			reads[key] = map[string]reading{}
		}
		if old := reads[key][k.m.Proc]; k.m.Bytes >= old.bytes {
			reads[key][k.m.Proc] = reading{k.m.Bytes, float64(k.m.Bytes) / k.ns}
		}
	}
	for key, r := range reads {
		set := sets[key]
		if len(r) < len(set.Procs) {
			continue
		}
		sum := 0.0
		for _, p := range set.Procs {
			sum += r[p].rate
		}
		set.BytesPerNS, set.Source = round(sum), Measured
	}
	// Slowdowns of operators beside operators.
	type pair struct {
		a, b   timeline.Phase
		at     int // of a in the set
		factor float64
		index  int // in the set's pairs
	}
	pairs := map[string][]pair{}
	for _, k := range all {
		if k.m.Kind != record.Op || len(k.m.Concurrent) != 1 || k.m.Concurrent[0].Op == nil || !layoutFits(s, k.m) {
			continue
		}
		other := k.m.Concurrent[0]
		la, lb := Load{k.m.Proc, *k.m.Op, k.m.Cold}, Load{other.Proc, *other.Op, other.Cold}
		t, ok := alone[la.Proc+" "+loadKey(la)]
		if !ok {
			continue
		}
		set := get(members(k.m))
		factor := round(k.ns / t)
		if factor <= 0 || factor > 1e3 {
			continue
		}
		set.Pairs = append(set.Pairs, Pair{Proc: la.Proc, Key: loadKey(la), Beside: loadKey(lb), Factor: factor})
		a, errA := c.phase(la)
		b, errB := c.phase(lb)
		if errA == nil && errB == nil {
			at, _ := slices.BinarySearch(set.Procs, la.Proc)
			pairs[setKey(set.Procs)] = append(pairs[setKey(set.Procs)], pair{a, b, at, factor, len(set.Pairs) - 1})
		}
	}
	keys := make([]string, 0, len(sets))
	for key := range sets {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		set := sets[key]
		if set.BytesPerNS == 0 { // nothing known: everybody reads as alone
			for _, p := range set.Procs {
				if q := c.look().processors[p]; q != nil {
					set.BytesPerNS += q.BytesPerNS
				}
			}
		}
		if set.BytesPerNS == 0 {
			continue
		}
		list := pairs[key]
		// Compute: the median slowdown of operators that hardly read.
		for at := range set.Procs {
			var f []float64
			for _, p := range list {
				if p.at == at && p.a.MemoryNS < p.a.ComputeNS/4 {
					f = append(f, p.factor)
				}
			}
			if len(f) > 0 {
				set.Compute[at] = round(max(stat.Median(f), 1))
			}
		}
		// Memory: the joint rate that explains best the slowdowns of operators that mostly read.
		var bound []pair
		for _, p := range list {
			if p.a.MemoryNS > p.a.ComputeNS {
				bound = append(bound, p)
			}
		}
		// explained is the slowdown of a pair if the set reads so much together.
		explained := func(p *pair, joint float64) float64 {
			m := timeline.Machine{Memory: timeline.Memory{Sets: []timeline.Set{{Procs: set.Procs, BytesPerNS: joint, Compute: set.Compute}}}}
			t := timeline.Beside(&m, []string{set.Procs[p.at], set.Procs[1-p.at]}, [][]timeline.Phase{{p.a}, {p.b}})
			return t / p.a.NS()
		}
		if len(bound) >= 2 {
			loss := func(joint float64) float64 {
				sum := 0.0
				for i := range bound {
					sum += huber(math.Log(explained(&bound[i], joint) / max(bound[i].factor, 1)))
				}
				return sum
			}
			best, at := math.Inf(1), 0.0
			for i := -80; i <= 40; i++ { // a quarter to twice, in steps of 1.75 %
				shift := math.Ln2 * float64(i) / 40
				if l := loss(set.BytesPerNS*math.Exp(shift)) + float64(streams*float64(shift*shift)); l < best-1e-9 {
					best, at = l, shift
				}
			}
			if at != 0 {
				set.BytesPerNS, set.Source = round(set.BytesPerNS*math.Exp(at)), Measured
			}
		}
		for i := range list {
			p := &list[i]
			set.Pairs[p.index].Overlap = round(overlap(set, p.at, p.a, p.b, p.factor, explained(p, set.BytesPerNS)))
		}
		sort.Slice(set.Pairs, func(i, j int) bool {
			a, b := set.Pairs[i], set.Pairs[j]
			if a.Proc != b.Proc {
				return a.Proc < b.Proc
			}
			if a.Key != b.Key {
				return a.Key < b.Key
			}
			return a.Beside < b.Beside
		})
		c.Sharing = append(c.Sharing, *set)
	}
}

// overlap is by how much the work of a slows down while b works beside it. What was measured is the slowdown of a as a whole while b was
// repeated, set-ups of both included; explained is the same as the set explains it.
func overlap(set *Sharing, at int, a, b timeline.Phase, measured, explained float64) float64 {
	m := timeline.Memory{Sets: []timeline.Set{{Procs: set.Procs, BytesPerNS: set.BytesPerNS, Compute: set.Compute}}}
	law := m.Slow([]timeline.Activity{{Proc: set.Procs[at], Phase: &a}, {Proc: set.Procs[1-at], Phase: &b}}, nil)[0]
	setup := a.SetupNS / a.NS()
	if explained <= setup {
		return max(measured, 1)
	}
	return max(float64(law*(measured-setup))/(explained-setup), 1)
}

func members(m *record.Measurement) []string {
	out := []string{m.Proc}
	for _, p := range m.Concurrent {
		out = append(out, p.Proc)
	}
	return out
}
