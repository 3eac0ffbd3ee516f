package roofline

import (
	"math"
	"slices"
	"sort"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/profiler/stat"
	"github.com/hetc/hetc/socs"
)

// Load is an operator that runs on a processor while others run elsewhere.
type Load struct {
	Proc string
	Op   op.Op
	Cold bool
}

// Concurrent returns by how much each load slows down (>= 1) while all run together on distinct
// processors. A measured pair answers for itself. Otherwise all together read at most what the set
// reads jointly: the memory part of each is stretched by one common factor until they fit, the
// compute part by what was measured for the set. Sets of which nothing is known do not slow down.
func (c *Costs) Concurrent(loads ...Load) ([]float64, error) {
	loads = slices.Clone(loads)
	out := make([]float64, len(loads))
	parts := make([]part, len(loads))
	procs := make([]string, len(loads))
	for i, l := range loads {
		out[i] = 1
		procs[i] = l.Proc
		l.Op = c.priced(l.Proc, l.Op)
		loads[i] = l
		var err error
		if parts[i], err = c.part(l); err != nil {
			return nil, err
		}
	}
	slices.Sort(procs)
	if n := len(slices.Compact(slices.Clone(procs))); n != len(loads) {
		return nil, diag.New(diag.ClassInput, "predict %d operators at once: they run on %d processors, want one each", len(loads), n)
	}
	if len(loads) < 2 {
		return out, nil
	}
	var s *Sharing
	for i := range c.Sharing {
		if slices.Equal(c.Sharing[i].Procs, procs) {
			s = &c.Sharing[i]
		}
	}
	if s == nil {
		return out, nil
	}
	compute := make([]float64, len(loads))
	for i, l := range loads {
		at, _ := slices.BinarySearch(s.Procs, l.Proc)
		compute[i] = s.Compute[at]
	}
	factors := share(parts, compute, s.BytesPerNS)
	for i, l := range loads {
		out[i] = factors[i]
		if len(loads) == 2 {
			for _, p := range s.Pairs {
				if p.Proc == l.Proc && p.Key == loadKey(l) && p.Beside == loadKey(loads[1-i]) {
					out[i] = max(p.Factor, 1)
				}
			}
		}
	}
	return out, nil
}

func loadKey(l Load) string {
	if l.Cold {
		return l.Op.Key() + " cold"
	}
	return l.Op.Key()
}

// part is an operator taken apart: T = setup + norm(compute, memory), scaled to its predicted time.
type part struct {
	total, setup, compute, memory, sharp float64 // ns
	bytes                                float64
}

func (p *part) time(compute, memory float64) float64 {
	return p.setup + norm(p.compute*compute, p.memory*memory, p.sharp)
}

// part predicts a load and divides its time by its family's roofline.
func (c *Costs) part(l Load) (part, error) {
	t, err := c.Op(l.Proc, l.Op, l.Cold)
	if err != nil {
		return part{}, err
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
	p := part{setup: f.SetupNS, compute: w / ops, memory: q / bytes, sharp: f.Sharpness, bytes: q}
	scale := float64(t.NS) / p.time(1, 1)
	p.total, p.setup, p.compute, p.memory = float64(t.NS), p.setup*scale, p.compute*scale, p.memory*scale
	return p, nil
}

// share stretches the memory parts by one factor until all together read at most joint bytes per ns.
func share(parts []part, compute []float64, joint float64) []float64 {
	rate := func(stretch float64) float64 {
		sum := 0.0
		for i := range parts {
			sum += parts[i].bytes / parts[i].time(compute[i], stretch)
		}
		return sum
	}
	lo, hi := 1.0, 1.0
	if rate(1) > joint {
		for hi < 1e15 && rate(hi) > joint {
			hi *= 2
		}
		for range 80 {
			mid := (lo + hi) / 2
			if rate(mid) > joint {
				lo = mid
			} else {
				hi = mid
			}
		}
	}
	out := make([]float64, len(parts))
	for i := range parts {
		out[i] = max(parts[i].time(compute[i], hi)/parts[i].total, 1)
	}
	return out
}

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
		a, b   part
		at     int // of a in the set
		factor float64
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
		a, errA := c.part(la)
		b, errB := c.part(lb)
		if errA == nil && errB == nil {
			at, _ := slices.BinarySearch(set.Procs, la.Proc)
			pairs[setKey(set.Procs)] = append(pairs[setKey(set.Procs)], pair{a, b, at, factor})
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
				if p.at == at && p.a.memory < p.a.compute/4 {
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
			if p.a.memory > p.a.compute {
				bound = append(bound, p)
			}
		}
		if len(bound) >= 2 {
			loss := func(joint float64) float64 {
				sum := 0.0
				for _, p := range bound {
					other := 1 - p.at
					f := share([]part{p.a, p.b}, []float64{set.Compute[p.at], set.Compute[other]}, joint)
					sum += huber(math.Log(f[0] / max(p.factor, 1)))
				}
				return sum
			}
			best, at := math.Inf(1), set.BytesPerNS
			for i := -80; i <= 40; i++ { // a quarter to twice, in steps of 1.75 %
				joint := set.BytesPerNS * math.Pow(2, float64(i)/40)
				if l := loss(joint); l < best-1e-9 {
					best, at = l, joint
				}
			}
			set.BytesPerNS, set.Source = round(at), Measured
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

func members(m *record.Measurement) []string {
	out := []string{m.Proc}
	for _, p := range m.Concurrent {
		out = append(out, p.Proc)
	}
	return out
}
