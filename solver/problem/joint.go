package problem

import (
	"fmt"
	"slices"
	"strings"
)

// Limits of a joint instance, beside those of its parts.
const (
	maxParts   = 256
	maxAssets  = 1 << 16
	maxRegions = 64
	maxWeight  = 1 << 40
	maxEnergy  = 1 << 50 // nJ of one choice: 13 days at 1 W
	maxSize    = 1 << 50 // bytes of one asset
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
// graph) is the target's byte model, and is settled by the code that poses the problem. What only one choice needs
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
	// Open are, per part, chain and item, the choices, ascending, that the first of the best solutions is made of if it
	// is better than this one, with others; nil: it is not known.
	Open [][][][]int
}

// Limits bound a search. The zero value means the engine's default.
type Limits struct {
	Nodes int64     // deterministic
	Bytes int64     // that a search may keep, as its engine counts them; 0: any
	Start [][][]int // choices of a known solution to a joint problem, nil: none. One that breaks a limit is ignored
	// Most is the largest objective of interest, 0: any. An engine may end with LimitReached and a Bound above Most if
	// every solution to a joint problem costs more. It may ignore it.
	Most int64
}

// Use is how much a combination of choices takes of everything that a joint problem limits or minimises.
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

// LimitKind names a limit of a joint problem.
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

// Limit is one limit of a joint problem, with the amount that a solution takes of it.
type Limit struct {
	Kind  LimitKind
	Index int    // of the part or region, else 0
	Name  string // of the part or region, else empty
	Max   int64
	// Need is what the checked choices take. Of an infeasible problem it is a lower bound of what any choices take,
	// whether they keep other limits or not.
	Need int64
}

// String says by what the limit is exceeded: `region "npu": 3000 bytes, at most 2000`.
func (l Limit) String() string {
	kind := limitText[l.Kind]
	where := ""
	if kind.of != "" {
		where = fmt.Sprintf("%s %q: ", kind.of, l.Name)
	}
	return fmt.Sprintf("%s%d %s, at most %d", where, l.Need, kind.unit, l.Max)
}

// limitText has, for each kind of limit, the thing that it limits and its unit.
var limitText = map[LimitKind]struct{ of, unit string }{
	LimitPartNS:       {"part", "ns"},
	LimitTimeNS:       {"", "ns weighted"},
	LimitEnergyNJ:     {"", "nJ weighted"},
	LimitBytes:        {"", "bytes in all"},
	LimitOpenNS:       {"", "ns to open"},
	LimitRegionBytes:  {"region", "bytes"},
	LimitRegionGraphs: {"region", "graphs"},
	LimitProcs:        {"part", "operators without a choice"},
}

// InfeasibleError is in the chain of the ClassInfeasible errors that engines return for joint problems
// (errors.As): limits that cannot be kept together. Where one is named it cannot be kept at all; where several are
// each of them matters, as far as that was proved: without it the others can be kept.
type InfeasibleError struct{ Limits []Limit }

// Error lists the limits.
func (e *InfeasibleError) Error() string {
	var texts []string
	for _, limit := range e.Limits {
		texts = append(texts, limit.String())
	}
	switch len(texts) {
	case 0:
		return "no combination of choices keeps all limits"
	case 1:
		return texts[0]
	}
	all := strings.Join(texts, "; ")
	return "no combination of choices keeps all of these (beside them what each needs alone): " + all
}

// Validate returns the first reason why the instance has no meaning, as Partition.Validate does, or why a sum over it
// could overflow.
func (j *Joint) Validate() error { return internal("joint", j.Name, j.validate()) }

// validate checks limits, assets and parts. time and energy add up the worst case over all parts.
func (j *Joint) validate() error {
	switch j.Minimise {
	case "", Time, Energy, Memory:
	default:
		return fmt.Errorf("measure %q, want %q, %q or %q", j.Minimise, Time, Energy, Memory)
	}
	if !within(len(j.Parts), 1, maxParts) {
		return fmt.Errorf("%d parts, want 1..%d", len(j.Parts), maxParts)
	}
	if len(j.Assets) > maxAssets || len(j.Regions) > maxRegions {
		return fmt.Errorf("%d assets and %d regions, want at most %d and %d",
			len(j.Assets), len(j.Regions), maxAssets, maxRegions)
	}
	for _, limit := range []int64{j.MaxBytes, j.Resident, j.MaxOpenNS, j.MaxEnergyNJ, j.MaxTimeNS} {
		if !within(limit, 0, 1<<62) {
			return fmt.Errorf("limit %d, want 0..%d", limit, int64(1)<<62)
		}
	}
	if err := j.validateAssets(); err != nil {
		return err
	}
	if j.Resident > 1<<61 {
		return fmt.Errorf("%d resident bytes are out of range", j.Resident)
	}
	var time, energy int64
	for i := range j.Parts {
		if err := j.validatePart(&j.Parts[i], &time, &energy); err != nil {
			return fmt.Errorf("part %d: %v", i, err)
		}
	}
	seen := map[string]bool{}
	for i := range j.Parts {
		name := j.Parts[i].Partition.Name
		if seen[name] {
			return fmt.Errorf("part name %q appears twice", name)
		}
		seen[name] = true
	}
	return nil
}

// validateAssets checks regions and assets.
func (j *Joint) validateAssets() error {
	regions, assets := names{}, names{}
	for _, region := range j.Regions {
		if !regions.add(region.Name) {
			return fmt.Errorf("region name %q is empty or appears twice", region.Name)
		}
		if !within(region.MaxBytes, 0, 1<<62) || region.MaxGraphs < 0 {
			return fmt.Errorf("region %q: limits of %d bytes and %d graphs",
				region.Name, region.MaxBytes, region.MaxGraphs)
		}
	}
	var bytes, open int64
	for _, asset := range j.Assets {
		if !assets.add(asset.Name) {
			return fmt.Errorf("asset name %q is empty or appears twice", asset.Name)
		}
		if !within(asset.Region, 0, len(j.Regions)-1) {
			return fmt.Errorf("asset %q: region %d of %d", asset.Name, asset.Region, len(j.Regions))
		}
		if !within(asset.Bytes, 0, maxSize) || !within(asset.Graphs, 0, 1<<30) || !within(asset.OpenNS, 0, maxSize) {
			return fmt.Errorf("asset %q: %d bytes, %d graphs, %d ns to open are out of range",
				asset.Name, asset.Bytes, asset.Graphs, asset.OpenNS)
		}
		bytes, open = bytes+asset.Bytes, open+asset.OpenNS
		if bytes > 1<<61 || open > 1<<61 {
			return fmt.Errorf("asset %q: the sums up to it are out of range", asset.Name)
		}
	}
	return nil
}

// validatePart adds the most that the part can take to time and energy.
func (j *Joint) validatePart(part *Part, time, energy *int64) error {
	if part.Partition == nil {
		return fmt.Errorf("no partition")
	}
	if !within(part.Weight, 0, maxWeight) || !within(part.MaxNS, 0, 1<<62) {
		return fmt.Errorf("weight %d and at most %d ns are out of range", part.Weight, part.MaxNS)
	}
	if err := part.Partition.Validate(); err != nil {
		return err
	}
	for k := range part.Partition.Chains {
		chain := &part.Partition.Chains[k]
		ns, nj, err := j.validateTaken(chain)
		if err != nil {
			return err
		}
		times := max(int64(chain.Repeat)*part.Weight, 1)
		for _, total := range []struct{ sum, one *int64 }{{time, &ns}, {energy, &nj}} {
			if *total.one > (1<<62-*total.sum)/times {
				return fmt.Errorf("chain %q: up to %d, %d times, is out of range", chain.Name, *total.one, times)
			}
			*total.sum += *total.one * times
		}
	}
	return nil
}

// validateTaken returns the most time, below 2^53, and energy, below 2^62, that one execution of a chain can take.
func (j *Joint) validateTaken(chain *Chain) (ns, nj int64, err error) {
	for i := range chain.Items {
		it := &chain.Items[i]
		var cost, edge, energy int64
		for n := range it.Choices {
			choice := &it.Choices[n]
			if !within(choice.EnergyNJ, 0, maxEnergy) {
				return 0, 0, fmt.Errorf("choice %q of item %q takes %d nJ, want 0..%d",
					choice.Label, it.Name, choice.EnergyNJ, int64(maxEnergy))
			}
			if !ascending(choice.Assets, len(j.Assets)) {
				return 0, 0, fmt.Errorf("choice %q of item %q: assets %v, want ascending numbers below %d",
					choice.Label, it.Name, choice.Assets, len(j.Assets))
			}
			cost, energy = max(cost, choice.CostNS), max(energy, choice.EnergyNJ)
		}
		for _, row := range it.EdgeNS {
			edge = max(edge, slices.Max(row))
		}
		ns, nj = ns+cost+edge, nj+energy
	}
	return ns, nj, nil
}

// Size returns the number of choices of all parts.
func (j *Joint) Size() int {
	size := 0
	for i := range j.Parts {
		size += j.Parts[i].Partition.Size()
	}
	return size
}

// Use recomputes how much one choice per item takes.
func (j *Joint) Use(choices [][][]int) Use {
	use := Use{RegionBytes: make([]int64, len(j.Regions)), RegionGraphs: make([]int64, len(j.Regions))}
	open := make([]bool, len(j.Assets))
	for i := range j.Parts {
		part := &j.Parts[i]
		ns := part.Partition.ObjectiveNS(choices[i])
		use.PartNS = append(use.PartNS, ns)
		use.TimeNS += part.Weight * ns
		for k := range part.Partition.Chains {
			chain := &part.Partition.Chains[k]
			var nj int64
			for n := range chain.Items {
				choice := &chain.Items[n].Choices[choices[i][k][n]]
				nj += choice.EnergyNJ
				for _, asset := range choice.Assets {
					open[asset] = true
				}
			}
			use.EnergyNJ += part.Weight * int64(chain.Repeat) * nj
		}
	}
	for a := range j.Assets {
		if !open[a] {
			continue
		}
		asset := &j.Assets[a]
		use.Opened = append(use.Opened, a)
		use.Bytes, use.OpenNS = use.Bytes+asset.Bytes, use.OpenNS+asset.OpenNS
		use.RegionBytes[asset.Region] += asset.Bytes
		use.RegionGraphs[asset.Region] += int64(asset.Graphs)
	}
	return use
}

// Objective returns the measure that the problem minimises.
func (j *Joint) Objective(use *Use) int64 {
	switch j.Minimise {
	case Energy:
		return use.EnergyNJ
	case Memory:
		return use.Bytes
	}
	return use.TimeNS
}

// Limits lists the limits of the problem, each with the amount that use takes of it.
func (j *Joint) Limits(use *Use) []Limit {
	var out []Limit
	add := func(limit Limit) {
		if limit.Max > 0 {
			out = append(out, limit)
		}
	}
	for i := range j.Parts {
		add(Limit{LimitPartNS, i, j.Parts[i].Partition.Name, j.Parts[i].MaxNS, use.PartNS[i]})
	}
	add(Limit{Kind: LimitTimeNS, Max: j.MaxTimeNS, Need: use.TimeNS})
	add(Limit{Kind: LimitEnergyNJ, Max: j.MaxEnergyNJ, Need: use.EnergyNJ})
	add(Limit{Kind: LimitBytes, Max: j.MaxBytes, Need: use.Bytes + j.Resident})
	add(Limit{Kind: LimitOpenNS, Max: j.MaxOpenNS, Need: use.OpenNS})
	for r := range j.Regions {
		add(Limit{LimitRegionBytes, r, j.Regions[r].Name, j.Regions[r].MaxBytes, use.RegionBytes[r]})
		add(Limit{LimitRegionGraphs, r, j.Regions[r].Name, int64(j.Regions[r].MaxGraphs), use.RegionGraphs[r]})
	}
	return out
}

// Broken lists the limits that use does not keep.
func (j *Joint) Broken(use *Use) []Limit {
	var out []Limit
	for _, limit := range j.Limits(use) {
		if limit.Need > limit.Max {
			out = append(out, limit)
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
	use := j.Use(choices)
	return j.Broken(&use) == nil
}

// Verify recomputes a solution from the instance, whatever engine it came from: every choice exists, no
// conflict within a part, every limit is kept, the objective is what the choices take, and the bound does
// not exceed it. A solution whose status is Limit has no choices.
func (j *Joint) Verify(solution JointSolution) error {
	return internal("verify solution of joint", j.Name, j.verify(&solution))
}

// verify does the work of Verify; its error has no class.
func (j *Joint) verify(solution *JointSolution) error {
	switch solution.Status {
	case LimitReached:
		if solution.Choices != nil {
			return fmt.Errorf("status %q with choices", solution.Status)
		}
		return nil
	case Optimal, Feasible:
	default:
		return fmt.Errorf("status %q", solution.Status)
	}
	if len(solution.Choices) != len(j.Parts) {
		return fmt.Errorf("choices for %d parts, want %d", len(solution.Choices), len(j.Parts))
	}
	for i := range j.Parts {
		if err := j.Parts[i].Partition.verifyChoices(solution.Choices[i]); err != nil {
			return fmt.Errorf("part %q: %v", j.Parts[i].Partition.Name, err)
		}
	}
	use := j.Use(solution.Choices)
	if broken := j.Broken(&use); broken != nil {
		return &InfeasibleError{broken}
	}
	if got := j.Objective(&use); got != solution.Objective {
		return fmt.Errorf("objective is %d, and its choices take %d", solution.Objective, got)
	}
	return checkBound(solution.Status, solution.Objective, solution.Bound)
}
