package planir

import (
	"fmt"
	"maps"
	"slices"

	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
)

// Memory is the largest memory of a process that executes a plan, by what it is used for: every program has run, and
// the cache is full. All counts are in bytes.
type Memory struct {
	// Weights are the packed weights that steps read, each once; of these PrefillWeights are read by prefill
	// only and DecodeWeights by decode only.
	Weights        int64 `json:"weights_bytes" yaml:"weights_bytes"`
	PrefillWeights int64 `json:"prefill_weights_bytes,omitempty" yaml:"prefill_weights_bytes,omitempty"`
	DecodeWeights  int64 `json:"decode_weights_bytes,omitempty" yaml:"decode_weights_bytes,omitempty"`
	// Tables are the rows of embedding tables that a full context reads, each with the TableStep bytes around
	// it. Other rows stay in the file. A table that is a product's weight too is one of Weights.
	Tables int64 `json:"tables_bytes" yaml:"tables_bytes"`
	// Hot are the copies of rows that shadow outliers are multiplied by most often. Of the other rows Weights counts as
	// many as are expected to be read, each with the TableStep bytes around it (Plan.Hot).
	Hot int64 `json:"hot_bytes,omitempty" yaml:"hot_bytes,omitempty"`
	// Prepacked are the copies of weights that libraries hold in a layout of their own, beside the packed ones.
	Prepacked int64 `json:"prepacked_bytes,omitempty" yaml:"prepacked_bytes,omitempty"`
	Cache     int64 `json:"cache_bytes" yaml:"cache_bytes"`
	Pool      int64 `json:"pool_bytes" yaml:"pool_bytes"` // buffers
	Work      int64 `json:"work_bytes" yaml:"work_bytes"` // temporary values and scratch of the processors
	// Fixed is the program itself: code and collected memory, the loaded steps, the vocabulary.
	Fixed int64 `json:"fixed_bytes" yaml:"fixed_bytes"`
	Total int64 `json:"total_bytes" yaml:"total_bytes"`
	Max   int64 `json:"max_bytes,omitempty" yaml:"max_bytes,omitempty"` // the bound that solve was given, 0: none
}

// FurtherGraph says how little a further graph adds to a binary whose graphs share weights: the size of the binary
// divided by it.
const FurtherGraph = 100

// TableStep is how much of a mapped table becomes resident at most when one row is read: systems map the pages around
// it, up to the largest page in their cache of the file.
const TableStep = 2 << 20

// FixedBytes is the least of Memory.Fixed: the memory of a process that has verified a bundle and loaded nothing. Half
// of it is code and tables of hetrun, an eighth libraries, the rest the runtime, the plan and garbage.
const FixedBytes = 63 << 18

// vocabularyBytes is the tokenizer's memory for one token of the vocabulary, its part of the file and garbage that is not
// collected yet included. Like FixedBytes it is measured (docs/results.md), and the mean of both forms of merges.
const vocabularyBytes = 108

// BufferBytes returns how much of the pool a buffer of that many bytes takes.
func BufferBytes(bytes int64) int64 { return op.RoundUp(bytes, 128) }

// LeastFixed returns Memory.Fixed of a plan without a loaded step.
func LeastFixed(p *Plan) int64 {
	n := int64(FixedBytes)
	for i := range p.Program.Buffers {
		if b := &p.Program.Buffers[i]; b.Name == Logits {
			n += int64(b.Cols) * vocabularyBytes
		}
	}
	return n
}

// MemoryOf computes the memory of a plan whose program is complete.
func MemoryOf(p *Plan) Memory {
	var all []string
	for _, program := range p.Program.All() {
		all = append(all, program.Name)
	}
	return memoryOf(p, all, true)
}

// memoryOf counts the memory of the named programs, and that of a tokenizer if asked for.
func memoryOf(p *Plan, programs []string, tokenizer bool) Memory {
	var m Memory
	used := usageOf(p, programs)
	m.countWeights(p, used)
	m.Cache = p.Program.Cache.Bytes()
	for _, buffer := range p.Program.Buffers {
		m.Pool += BufferBytes(int64(buffer.Rows) * int64(buffer.Cols) * int64(buffer.Type.Bytes()))
	}
	work := map[string]int64{} // of the largest graph of each processor
	for i := range p.Program.Graphs {
		graph := &p.Program.Graphs[i]
		if proc := p.Proc(graph.Proc); proc != nil {
			work[graph.Proc] = max(work[graph.Proc], proc.ScratchBytes(&graph.Graph))
		}
	}
	for _, bytes := range work {
		m.Work += bytes
	}
	m.Fixed = FixedBytes
	if tokenizer {
		m.Fixed = LeastFixed(p)
	}
	m.Fixed += used.steps + used.library
	m.Total = m.Sum()
	return m
}

// weightUsage collects what programs read and load. Phases are sets of bits: prefillPhase, decodePhase, or both.
type weightUsage struct {
	phases         map[string]int            // of packs
	prepacked      map[string]bool           // packs that a library copies
	embeddedIn     map[string]map[string]int // of packs in artifacts, the graphs with their phases
	slots          map[string]map[string]int // of packs of experts in artifacts, how many each graph has in slots
	layers         map[string]map[int]bool   // of packs, where steps read them
	steps, library int64                     // bytes of loaded steps, one for each layer, and of the largest library
}

const prefillPhase, decodePhase = 1, 2

// usageOf goes through the programs of the names given.
func usageOf(p *Plan, programs []string) *weightUsage {
	used := &weightUsage{phases: map[string]int{}, prepacked: map[string]bool{},
		embeddedIn: map[string]map[string]int{}, slots: map[string]map[string]int{}, layers: map[string]map[int]bool{}}
	for _, program := range p.Program.All() {
		if !slices.Contains(programs, program.Name) {
			continue
		}
		phase := prefillPhase
		if program.Phase == "decode" {
			phase = decodePhase
		}
		for j := range program.Sections {
			section := &program.Sections[j]
			for k := range section.Lanes {
				used.addLane(p.Proc(section.Lanes[k].Proc), &section.Lanes[k], phase, int64(max(1, section.Layers)))
			}
			if len(p.Hot) > 0 {
				used.noteLayers(section)
			}
		}
	}
	return used
}

// addLane adds the steps of a lane in so many layers; its processor is nil where it is unknown.
func (u *weightUsage) addLane(proc *Proc, lane *Lane, phase int, layers int64) {
	prepacks, inArtifact := proc != nil && proc.Prepacks, proc != nil && proc.WeightsInArtifacts
	told := proc.memory()
	u.library = max(u.library, told.LibraryBytes)
	for i := range lane.Steps {
		step := &lane.Steps[i]
		u.steps += told.StepBytes * layers
		for _, weight := range step.W {
			u.phases[weight.Pack] |= phase
			u.prepacked[weight.Pack] = u.prepacked[weight.Pack] || prepacks
			if !inArtifact {
				continue
			}
			if u.embeddedIn[weight.Pack] == nil {
				u.embeddedIn[weight.Pack] = map[string]int{}
			}
			u.embeddedIn[weight.Pack][step.Run] |= phase
		}
		if inArtifact {
			u.countSlots(step)
		}
	}
}

// noteLayers notes in which layers the steps of a section read packs.
func (u *weightUsage) noteLayers(section *Section) {
	for i := range section.Lanes {
		for j := range section.Lanes[i].Steps {
			for _, weight := range section.Lanes[i].Steps[j].W {
				if u.layers[weight.Pack] == nil {
					u.layers[weight.Pack] = map[int]bool{}
				}
				for layer := range max(1, section.Layers) {
					u.layers[weight.Pack][section.First+layer] = true
				}
			}
		}
	}
}

// countSlots counts the experts that a step of a processor with weights in artifacts has in slots.
func (u *weightUsage) countSlots(step *Step) {
	counts := map[string]int{}
	for _, weight := range step.W {
		if weight.Tiers > 0 {
			counts[weight.Pack]++
		}
	}
	for name, count := range counts {
		if u.slots[name] == nil {
			u.slots[name] = map[string]int{}
		}
		u.slots[name][step.Run] = count
	}
}

// countWeights adds up packs, the tables among them, and their copies in libraries and artifacts.
func (m *Memory) countWeights(p *Plan, used *weightUsage) {
	layers, shared := map[string]int64{}, map[string]bool{} // shared: graphs that refer to a binary of several
	weights := map[string]*op.Weight{}
	for i := range p.Program.Weights {
		weight := &p.Program.Weights[i]
		weights[weight.Name], layers[weight.Name] = weight, int64(max(1, weight.LayerCount()))
	}
	var byRow map[string]bool
	if len(p.Hot) > 0 {
		byRow = p.Program.ReadByRow()
	}
	for i := range p.Program.Graphs {
		shared[p.Program.Graphs[i].Name] = p.Program.Graphs[i].Context != ""
	}
	rows := embeddingTables(p)
	for i := range p.Program.Packs {
		packed := &p.Program.Packs[i]
		bytes := op.RoundUp(packed.Bytes, PageBytes) * layers[packed.Weight]
		if used.prepacked[packed.Name] && rows[packed.Name] == 0 && packed.Layout != op.RowsLayout {
			m.Prepacked += bytes
		}
		switch phases, graphs := used.phases[packed.Name], used.embeddedIn[packed.Name]; {
		case len(used.slots[packed.Name]) > 0:
			for graph, count := range used.slots[packed.Name] {
				m.addWeights(graphs[graph], bytes/int64(packed.Experts)*int64(count))
			}
		case len(graphs) > 0:
			m.countInArtifacts(graphs, shared, phases, bytes)
		case rows[packed.Name] > 0:
			m.Tables += residentBytes(bytes, p.MaxContext*p.Sequences())
		case phases != 0 && byRow[packed.Name] && weights[packed.Weight] != nil:
			m.addRowWeights(p, packed, used.layersOf(packed, weights[packed.Weight]), phases)
		case phases != 0:
			m.addWeights(phases, bytes)
		}
	}
}

// addWeights adds weights that are read in some phases.
func (m *Memory) addWeights(phases int, bytes int64) {
	switch phases {
	case prefillPhase:
		m.PrefillWeights += bytes
	case decodePhase:
		m.DecodeWeights += bytes
	}
	m.Weights += bytes
}

// countInArtifacts adds a pack for each graph whose artifact holds it. Of those that share a binary, each beyond the
// first adds little.
func (m *Memory) countInArtifacts(graphs map[string]int, shared map[string]bool, phases int, bytes int64) {
	first := true
	for name, own := range graphs {
		switch {
		case !shared[name]:
			m.addWeights(own, bytes)
		case first:
			m.addWeights(phases, bytes)
			first = false
		default:
			m.addWeights(phases, bytes/FurtherGraph)
		}
	}
}

// layersOf returns the layers in which steps read a pack of a weight, -1 alone for one that belongs to none.
func (u *weightUsage) layersOf(packed *Pack, weight *op.Weight) []int {
	if len(weight.Layers) == 0 {
		return []int{-1}
	}
	return slices.Sorted(maps.Keys(u.layers[packed.Name]))
}

// addRowWeights adds a pack of which single rows are read, in some layers. Those of which the plan names no hot rows
// are counted whole.
func (m *Memory) addRowWeights(p *Plan, packed *Pack, layers []int, phases int) {
	bytes, row := op.RoundUp(packed.Bytes, PageBytes), packed.Bytes/int64(max(1, packed.K1-packed.K0))
	for _, layer := range layers {
		hot := p.HotRows(packed.Weight, layer)
		if hot == nil {
			m.addWeights(phases, bytes)
			continue
		}
		m.Hot += op.RoundUp(int64(len(hot.Within(packed)))*row, PageBytes)
		if hot.Others > 0 {
			m.addWeights(phases, residentBytes(bytes, hot.Others))
		}
	}
}

// Sum adds up what a process holds.
func (m *Memory) Sum() int64 {
	return m.Weights + m.Hot + m.Prepacked + m.Tables + m.Cache + m.Pool + m.Work + m.Fixed
}

// sizes returns all numbers of the memory, to be checked alike.
func (m *Memory) sizes() []int64 {
	return []int64{m.Weights, m.PrefillWeights, m.DecodeWeights, m.Hot, m.Prepacked, m.Tables, m.Cache, m.Pool, m.Work,
		m.Fixed, m.Total, m.Max}
}

// String lists the parts: "1.1GiB of weights, 66MiB of cache, ...".
func (m Memory) String() string {
	copies := ""
	if m.Prepacked > 0 {
		copies = fmt.Sprintf("%v of a library's copies, ", unit.Bytes(m.Prepacked))
	}
	if m.Hot > 0 {
		copies += fmt.Sprintf("%v of copied hot rows, ", unit.Bytes(m.Hot))
	}
	return fmt.Sprintf("%v of weights, %s%v of embeddings, %v of cache, %v of buffers, %v of scratch, %v of program",
		unit.Bytes(m.Weights), copies, unit.Bytes(m.Tables), unit.Bytes(m.Cache), unit.Bytes(m.Pool),
		unit.Bytes(m.Work), unit.Bytes(m.Fixed))
}

// Extent is how far an execution has come.
type Extent struct {
	Programs  []string // those it has loaded
	Positions int      // in the caches
	Rows      int      // of the largest call
	Tokenizer bool     // it has one
}

// MemoryAt returns the memory of an execution that has not come as far as it could. Parts of weights, cache, tables and
// buffers that were not touched are not resident.
func MemoryAt(p *Plan, e Extent) Memory {
	m, positions, rows := memoryOf(p, e.Programs, e.Tokenizer), e.Positions, e.Rows
	// Cache and buffers become resident in proportion to what of them is used.
	share := func(bytes int64, part, all int) int64 {
		if part >= all || all < 1 {
			return bytes
		}
		return int64(float64(bytes) * float64(max(0, part)) / float64(all))
	}
	most := 1
	for _, program := range p.Program.All() {
		most = max(most, program.Rows)
	}
	if positions < p.MaxContext*p.Sequences() {
		m.Tables = 0
		for _, bytes := range embeddingTables(p) {
			m.Tables += residentBytes(bytes, positions)
		}
	}
	m.Cache = share(m.Cache, positions, p.MaxContext*p.Sequences())
	m.Pool = share(m.Pool, rows, most)
	m.Total = m.Sum()
	return m
}

// embeddingTables returns the packs that nothing but embeddings reads, with their sizes.
func embeddingTables(p *Plan) map[string]int64 {
	embeds := map[string]bool{}
	for i := range p.Program.Graphs {
		if g := &p.Program.Graphs[i]; g.Graph.Nodes[0].Op.Kind == op.Embed {
			embeds[g.Name] = true
		}
	}
	read, product := map[string]bool{}, map[string]bool{}
	for st := range p.Program.steps() {
		for _, w := range st.W {
			if embeds[st.Run] {
				read[w.Pack] = true
			} else {
				product[w.Pack] = true
			}
		}
	}
	out := map[string]int64{}
	for i := range p.Program.Packs {
		if k := &p.Program.Packs[i]; read[k.Name] && !product[k.Name] {
			out[k.Name] = op.RoundUp(k.Bytes, PageBytes)
		}
	}
	return out
}

// residentBytes returns how much of a table becomes resident on average when rows at random places are read. One read
// leaves a share of 1 - TableStep/bytes untouched, so many reads leave that share to the power of their number. The
// power is computed by squaring, from products and differences only, so that it is the same on every machine.
func residentBytes(bytes int64, rows int) int64 {
	if bytes <= TableStep {
		return bytes
	}
	left := 1.0 // untouched share
	for power := 1 - TableStep/float64(bytes); rows > 0; rows >>= 1 {
		if rows&1 != 0 {
			left *= power
		}
		power *= power
	}
	return bytes - int64(left*float64(bytes))
}

// PageBytes is the unit to which packed weights are rounded up, in each layer.
const PageBytes = 4 << 10

// memory returns what the processor's driver reported of its memory, zeros for a processor that does not exist.
func (p *Proc) memory() capability.Memory {
	if p == nil || p.Memory == nil {
		return capability.Memory{}
	}
	return *p.Memory
}

// ScratchBytes returns the temporary memory that the processor needs for a graph, an upper bound.
func (p *Proc) ScratchBytes(g *op.Graph) int64 {
	if told := p.memory(); told.Scratch != nil {
		return told.Scratch.Bytes(g, max(1, len(p.Cores)))
	}
	return 0
}
