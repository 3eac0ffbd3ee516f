package roofline

import (
	"cmp"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/source"
	"github.com/hetc/hetc/socs/timeline"
)

// Load is an operator that runs on a processor while others run elsewhere.
type Load struct {
	Proc string
	Op   op.Op
	Cold bool
}

// Concurrent returns the slowdown (>= 1) of each load when all start together on distinct processors, and the source of
// the slowdowns. Loads slow each other down as Memory says, and a load that is left alone proceeds at full speed.
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

// sharingSource returns the source of slowdowns. A pair of operators that was measured is measured. Everything else
// follows from the joint rates of the sets among the processors:
//   - interpolated: the joint rate of all of them was fitted to measured operators, or was measured;
//   - extrapolated: only the joint rates of pairs are known, and there are more than two processors;
//   - described: a joint rate is that of the SoC file, or that of some pair is not known.
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

// Phase returns the parts of a load's predicted time: set-up, arithmetic and reading, in the proportion of its family's
// roofline. While it reads, it reads as fast as its processor does alone.
func (c *Costs) Phase(load Load) (timeline.Phase, error) {
	load.Op = load.Op.OfDensity()
	asked := load.Op
	load.Op = c.priced(load.Proc, load.Op)
	phase, err := c.phase(load)
	_, _, between := c.densities(load.Proc, asked)
	if err != nil || asked.Kind != op.GroupMatMul && asked.Channels == load.Op.Channels && !between {
		return phase, err
	}
	// The operator was priced by another one: one product of its group, or a measured density or number of channels.
	// That tells in which proportion it computes and reads. Its own prediction tells how long all of it takes.
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

// phase is Phase of an operator that is priced as it is.
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
