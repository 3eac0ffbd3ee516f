package problem

import (
	"fmt"

	"github.com/hetc/hetc/internal/diag"
)

// Limits of a joint instance, beside those of its parts.
const (
	MaxParts   = 256
	MaxAssets  = 1 << 16
	MaxRegions = 64
	MaxWeight  = 1 << 40
	MaxEnergy  = 1 << 50 // nJ of one choice: 13 days at 1 W
	MaxSize    = 1 << 50 // bytes of one asset
)

// Joint is the partition problems of all programs of a plan with what they share: graphs and packed weights
// (assets) that are opened once, whichever programs and layers use them, and whose bytes, number and opening
// times are limited. It minimises one measure under bounds on the others.
type Joint struct {
	Name    string
	Parts   []Part
	Assets  []Asset
	Regions []Region

	MaxBytes  int64 // of all opened assets together and of the resident bytes, 0: no limit
	Resident  int64 // bytes that are held whatever is chosen
	MaxOpenNS int64 // to open all assets that are opened, 0: no limit

	Minimise    Measure
	MaxEnergyNJ int64 // sum of Weight * energy over the parts, 0: no limit
	MaxTimeNS   int64 // sum of Weight * time over the parts, 0: no limit
}

// Measure is what a joint problem minimises.
type Measure string

const (
	Time   Measure = "time"   // sum of Weight * time; the zero Measure means the same
	Energy Measure = "energy" // sum of Weight * energy
	Memory Measure = "memory" // bytes of the opened assets
)

// Part is one program. Its conflicts (Partition.Conflicts) hold within it.
type Part struct {
	Partition *Partition
	Weight    int64 // expected calls, relative to those of the other parts; at least 0
	MaxNS     int64 // of one execution, 0: no limit
}

// Asset is something that has to be opened before choices that name it can be executed: a graph, or packed
// weights that several graphs share. Which bytes belong to which (weights once per weight, or in every
// graph) is the target's byte model, and is settled by whoever poses the problem. What only one choice needs
// (a graph for each of 32 layers) may be one asset with the sum of the bytes and graphs.
type Asset struct {
	Name   string // "npu layers.qkv 256x2048x3072", unique
	Region int    // index into Joint.Regions
	Bytes  int64
	Graphs int   // that count against Region.MaxGraphs: 0 for weights
	OpenNS int64 // to compile or load it on the device
}

// Region is a processor's memory.
type Region struct {
	Name      string // processor
	MaxBytes  int64  // of opened assets, 0: no limit
	MaxGraphs int    // 0: no limit
}

// JointSolution is an engine's answer to a joint problem.
type JointSolution struct {
	Choices   [][][]int // per part, chain and item, index into the item's choices; nil when Status is Limit
	Objective int64     // of the measure: sum of Weight * ns, sum of Weight * nJ, or bytes
	Bound     int64     // no solution is below it
	Status    Status
	Nodes     int64 // of the search tree
	// Open are, per part, chain and item, the choices, ascending, that the first of the best solutions is made of if it is
	// better than this one, with others; nil: nobody knows.
	Open [][][][]int
}

// Limits bound a search. The zero value means the engine's default.
type Limits struct {
	Nodes int64     // deterministic
	Bytes int64     // that a search may keep, as its engine counts them; 0: any
	Start [][][]int // choices of a known solution to a joint problem, nil: none. One that breaks a limit is ignored
}

// Use is what a combination of choices takes: everything that a joint problem limits or minimises.
type Use struct {
	PartNS       []int64 // of one execution of each part
	TimeNS       int64   // sum of Weight * time
	EnergyNJ     int64   // sum of Weight * energy
	Opened       []int   // assets that some choice names, ascending
	Bytes        int64   // of the opened assets, all regions together and without Joint.Resident
	OpenNS       int64
	RegionBytes  []int64
	RegionGraphs []int64
}

// LimitKind says which limit of a joint problem is meant.
type LimitKind string

const (
	LimitPartNS       LimitKind = "part-ns"       // Part.MaxNS
	LimitTimeNS       LimitKind = "time-ns"       // Joint.MaxTimeNS
	LimitEnergyNJ     LimitKind = "energy-nj"     // Joint.MaxEnergyNJ
	LimitBytes        LimitKind = "bytes"         // Joint.MaxBytes
	LimitOpenNS       LimitKind = "open-ns"       // Joint.MaxOpenNS
	LimitRegionBytes  LimitKind = "region-bytes"  // Region.MaxBytes
	LimitRegionGraphs LimitKind = "region-graphs" // Region.MaxGraphs
	LimitProcs        LimitKind = "processors"    // Partition.Conflicts: an item has no choice without them
)

// Limit is one limit of a joint problem, with what a solution takes of it.
type Limit struct {
	Kind  LimitKind
	Index int    // of the part or region, else 0
	Name  string // of the part or region, else empty
	Max   int64
	// Need is what is needed: of choices that were checked what they take; of an infeasible problem a bound below what
	// any choices take, whether they keep other limits or not.
	Need int64
}

// String says what is too much: `region "npu": 3000 bytes, at most 2000`.
func (l Limit) String() string {
	unit := map[LimitKind]string{LimitPartNS: "ns", LimitTimeNS: "ns weighted", LimitEnergyNJ: "nJ weighted", LimitBytes: "bytes in all",
		LimitOpenNS: "ns to open", LimitRegionBytes: "bytes", LimitRegionGraphs: "graphs", LimitProcs: "operators without a choice"}[l.Kind]
	where := ""
	switch l.Kind {
	case LimitPartNS, LimitProcs:
		where = fmt.Sprintf("part %q: ", l.Name)
	case LimitRegionBytes, LimitRegionGraphs:
		where = fmt.Sprintf("region %q: ", l.Name)
	}
	return fmt.Sprintf("%s%d %s, at most %d", where, l.Need, unit, l.Max)
}

// InfeasibleError is in the chain of the ClassInfeasible errors that engines return for joint problems
// (errors.As): limits that cannot be kept together. Where one is named it cannot be kept at all; where several are
// each of them matters, as far as that was proved: without it the others can be kept.
type InfeasibleError struct{ Limits []Limit }

// Error lists the limits.
func (e *InfeasibleError) Error() string {
	switch len(e.Limits) {
	case 0:
		return "no combination of choices keeps all limits"
	case 1:
		return e.Limits[0].String()
	}
	s := "no combination of choices keeps all of these (beside them what each needs alone): "
	for i, l := range e.Limits {
		if i > 0 {
			s += "; "
		}
		s += l.String()
	}
	return s
}

// Validate reports the first thing that makes the instance meaningless, as Partition.Validate does, and that no
// sum over it can overflow.
func (j *Joint) Validate() error {
	fail := func(format string, args ...any) error {
		return diag.New(diag.ClassInternal, "joint %q: %s", j.Name, fmt.Sprintf(format, args...))
	}
	switch j.Minimise {
	case "", Time, Energy, Memory:
	default:
		return fail("measure %q, want %q, %q or %q", j.Minimise, Time, Energy, Memory)
	}
	if len(j.Parts) == 0 || len(j.Parts) > MaxParts {
		return fail("%d parts, want 1..%d", len(j.Parts), MaxParts)
	}
	if len(j.Assets) > MaxAssets || len(j.Regions) > MaxRegions {
		return fail("%d assets and %d regions, want at most %d and %d", len(j.Assets), len(j.Regions), MaxAssets, MaxRegions)
	}
	for _, n := range []int64{j.MaxBytes, j.Resident, j.MaxOpenNS, j.MaxEnergyNJ, j.MaxTimeNS} {
		if n < 0 || n > 1<<62 {
			return fail("limit %d, want 0..%d", n, int64(1)<<62)
		}
	}
	regions := map[string]bool{}
	for _, r := range j.Regions {
		switch {
		case r.Name == "" || regions[r.Name]:
			return fail("region name %q is empty or appears twice", r.Name)
		case r.MaxBytes < 0 || r.MaxBytes > 1<<62 || r.MaxGraphs < 0:
			return fail("region %q: limits of %d bytes and %d graphs", r.Name, r.MaxBytes, r.MaxGraphs)
		}
		regions[r.Name] = true
	}
	assets := map[string]bool{}
	var bytes, open int64
	for i := range j.Assets {
		a := &j.Assets[i]
		switch {
		case a.Name == "" || assets[a.Name]:
			return fail("asset name %q is empty or appears twice", a.Name)
		case a.Region < 0 || a.Region >= len(j.Regions):
			return fail("asset %q: region %d of %d", a.Name, a.Region, len(j.Regions))
		case a.Bytes < 0 || a.Bytes > MaxSize || a.Graphs < 0 || a.Graphs > 1<<30 || a.OpenNS < 0 || a.OpenNS > MaxSize:
			return fail("asset %q: %d bytes, %d graphs, %d ns to open are out of range", a.Name, a.Bytes, a.Graphs, a.OpenNS)
		}
		assets[a.Name] = true
		bytes, open = bytes+a.Bytes, open+a.OpenNS
		if bytes > 1<<61 || open > 1<<61 {
			return fail("asset %q: the sums up to it are out of range", a.Name)
		}
	}
	if j.Resident > 1<<61 {
		return fail("%d resident bytes are out of range", j.Resident)
	}
	var time, energy int64
	for i := range j.Parts {
		if err := j.validatePart(&j.Parts[i], &time, &energy); err != nil {
			return fail("part %d: %v", i, err)
		}
	}
	names := map[string]bool{}
	for i := range j.Parts {
		name := j.Parts[i].Partition.Name
		if names[name] {
			return fail("part name %q appears twice", name)
		}
		names[name] = true
	}
	return nil
}

// validatePart adds the most that the part can take to time and energy.
func (j *Joint) validatePart(p *Part, time, energy *int64) error {
	if p.Partition == nil {
		return fmt.Errorf("no partition")
	}
	if p.Weight < 0 || p.Weight > MaxWeight || p.MaxNS < 0 || p.MaxNS > 1<<62 {
		return fmt.Errorf("weight %d and at most %d ns are out of range", p.Weight, p.MaxNS)
	}
	if err := p.Partition.Validate(); err != nil {
		return err
	}
	for k := range p.Partition.Chains {
		c := &p.Partition.Chains[k]
		var ns, nj int64
		for i := range c.Items {
			it := &c.Items[i]
			var cost, edge, e int64
			for n := range it.Choices {
				ch := &it.Choices[n]
				if ch.EnergyNJ < 0 || ch.EnergyNJ > MaxEnergy {
					return fmt.Errorf("choice %q of item %q takes %d nJ, want 0..%d", ch.Label, it.Name, ch.EnergyNJ, int64(MaxEnergy))
				}
				for i, a := range ch.Assets {
					if a < 0 || a >= len(j.Assets) || i > 0 && ch.Assets[i-1] >= a {
						return fmt.Errorf("choice %q of item %q: assets %v, want ascending numbers below %d", ch.Label, it.Name, ch.Assets, len(j.Assets))
					}
				}
				cost, e = max(cost, ch.CostNS), max(e, ch.EnergyNJ)
			}
			for _, row := range it.EdgeNS {
				for _, ns := range row {
					edge = max(edge, ns)
				}
			}
			ns, nj = ns+cost+edge, nj+e // below 2^53 and 2^62
		}
		for _, x := range []struct{ sum, one *int64 }{{time, &ns}, {energy, &nj}} {
			times := max(int64(c.Repeat)*p.Weight, 1)
			if *x.one > (1<<62-*x.sum)/times {
				return fmt.Errorf("chain %q: up to %d, %d times, is out of range", c.Name, *x.one, times)
			}
			*x.sum += *x.one * times
		}
	}
	return nil
}

// Size is the number of choices of all parts.
func (j *Joint) Size() int {
	n := 0
	for i := range j.Parts {
		n += j.Parts[i].Partition.Size()
	}
	return n
}

// Use recomputes what one choice per item takes.
func (j *Joint) Use(choices [][][]int) Use {
	u := Use{RegionBytes: make([]int64, len(j.Regions)), RegionGraphs: make([]int64, len(j.Regions))}
	open := make([]bool, len(j.Assets))
	for i := range j.Parts {
		p := &j.Parts[i]
		ns := p.Partition.ObjectiveNS(choices[i])
		u.PartNS = append(u.PartNS, ns)
		u.TimeNS += p.Weight * ns
		for k := range p.Partition.Chains {
			c := &p.Partition.Chains[k]
			var nj int64
			for n := range c.Items {
				ch := &c.Items[n].Choices[choices[i][k][n]]
				nj += ch.EnergyNJ
				for _, a := range ch.Assets {
					open[a] = true
				}
			}
			u.EnergyNJ += p.Weight * int64(c.Repeat) * nj
		}
	}
	for a, is := range open {
		if !is {
			continue
		}
		as := &j.Assets[a]
		u.Opened = append(u.Opened, a)
		u.Bytes, u.OpenNS = u.Bytes+as.Bytes, u.OpenNS+as.OpenNS
		u.RegionBytes[as.Region] += as.Bytes
		u.RegionGraphs[as.Region] += int64(as.Graphs)
	}
	return u
}

// Objective is the measure that the problem minimises.
func (j *Joint) Objective(u *Use) int64 {
	switch j.Minimise {
	case Energy:
		return u.EnergyNJ
	case Memory:
		return u.Bytes
	}
	return u.TimeNS
}

// Limits lists the limits that the problem has, each with what u takes of it.
func (j *Joint) Limits(u *Use) []Limit {
	var out []Limit
	add := func(l Limit) {
		if l.Max > 0 {
			out = append(out, l)
		}
	}
	for i := range j.Parts {
		add(Limit{LimitPartNS, i, j.Parts[i].Partition.Name, j.Parts[i].MaxNS, u.PartNS[i]})
	}
	add(Limit{Kind: LimitTimeNS, Max: j.MaxTimeNS, Need: u.TimeNS})
	add(Limit{Kind: LimitEnergyNJ, Max: j.MaxEnergyNJ, Need: u.EnergyNJ})
	add(Limit{Kind: LimitBytes, Max: j.MaxBytes, Need: u.Bytes + j.Resident})
	add(Limit{Kind: LimitOpenNS, Max: j.MaxOpenNS, Need: u.OpenNS})
	for r := range j.Regions {
		add(Limit{LimitRegionBytes, r, j.Regions[r].Name, j.Regions[r].MaxBytes, u.RegionBytes[r]})
		add(Limit{LimitRegionGraphs, r, j.Regions[r].Name, int64(j.Regions[r].MaxGraphs), u.RegionGraphs[r]})
	}
	return out
}

// Broken lists the limits that u does not keep.
func (j *Joint) Broken(u *Use) []Limit {
	var out []Limit
	for _, l := range j.Limits(u) {
		if l.Need > l.Max {
			out = append(out, l)
		}
	}
	return out
}

// Keeps reports whether choices are a solution: they exist, are free of conflicts and keep every limit.
func (j *Joint) Keeps(choices [][][]int) bool {
	if len(choices) != len(j.Parts) {
		return false
	}
	for i := range j.Parts {
		if j.Parts[i].Partition.verifyChoices(choices[i]) != nil {
			return false
		}
	}
	u := j.Use(choices)
	return j.Broken(&u) == nil
}

// Verify recomputes a solution from the instance, whatever engine it came from: every choice exists, no
// conflict within a part, every limit is kept, the objective is what the choices take, and the bound does
// not exceed it. A solution whose status is Limit has no choices.
func (j *Joint) Verify(s JointSolution) error {
	fail := func(format string, args ...any) error {
		return diag.New(diag.ClassInternal, "verify solution of joint %q: %s", j.Name, fmt.Sprintf(format, args...))
	}
	switch s.Status {
	case LimitReached:
		if s.Choices != nil {
			return fail("status %q with choices", s.Status)
		}
		return nil
	case Optimal, Feasible:
	default:
		return fail("status %q", s.Status)
	}
	if len(s.Choices) != len(j.Parts) {
		return fail("choices for %d parts, want %d", len(s.Choices), len(j.Parts))
	}
	for i := range j.Parts {
		if err := j.Parts[i].Partition.verifyChoices(s.Choices[i]); err != nil {
			return fail("part %q: %v", j.Parts[i].Partition.Name, err)
		}
	}
	u := j.Use(s.Choices)
	if broken := j.Broken(&u); broken != nil {
		return fail("%v", &InfeasibleError{broken})
	}
	if got := j.Objective(&u); got != s.Objective {
		return fail("objective is %d, and its choices take %d", s.Objective, got)
	}
	if s.Bound > s.Objective || s.Status == Optimal && s.Bound != s.Objective {
		return fail("status %q with objective %d and bound %d", s.Status, s.Objective, s.Bound)
	}
	return nil
}
