package problem

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
// graph) is the target's byte model, and is settled by whoever poses the problem.
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
	MaxBytes  int64  // 0: no limit
	MaxGraphs int    // 0: no limit
}

// JointSolution is an engine's answer to a joint problem.
type JointSolution struct {
	Choices   [][][]int // per part, chain and item, index into the item's choices
	Objective int64     // of the measure: sum of Weight * ns, sum of Weight * nJ, or bytes
	Bound     int64     // no solution is below it
	Status    Status
	Nodes     int64 // of the search tree
}

// Limits bound a search. The zero value means the engine's default.
type Limits struct {
	Nodes int64 // deterministic
}
