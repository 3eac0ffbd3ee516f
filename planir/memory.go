package planir

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
)

// Memory is what a process that executes a plan comes to hold in memory at most, by what it holds: every
// program has run, and the cache is full. All of it is counted in bytes.
type Memory struct {
	// Weights are the packed weights that steps read, each once; of these PrefillWeights are read by prefill
	// only and DecodeWeights by decode only.
	Weights        int64 `json:"weights_bytes" yaml:"weights_bytes"`
	PrefillWeights int64 `json:"prefill_weights_bytes,omitempty" yaml:"prefill_weights_bytes,omitempty"`
	DecodeWeights  int64 `json:"decode_weights_bytes,omitempty" yaml:"decode_weights_bytes,omitempty"`
	// Tables are the rows of embedding tables that a full context reads, each with the TableStep bytes around
	// it. Other rows stay in the file. A table that is a product's weight too is one of Weights.
	Tables int64 `json:"tables_bytes" yaml:"tables_bytes"`
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

// FurtherGraph: where graphs that bake the same weights share one binary, each beyond the first adds one part in so many
// to it.
const FurtherGraph = 100

// TableStep is what reading one row of a mapped table makes resident at most: systems map the pages
// around it with it, up to the largest page they have in their cache of the file.
const TableStep = 2 << 20

// FixedBytes is the least of Memory.Fixed: what a process holds that has verified a bundle and loaded nothing. Half of
// it is code and tables of hetrun, an eighth libraries, the rest the runtime, the plan and what the collector leaves.
const FixedBytes = 63 << 18

// vocabularyBytes is what the tokenizer holds of one token of the vocabulary, its part of the file included. Like
// FixedBytes it is measured (docs/results.md): what is alive, and half as much again that the collector has not come by
// for.
const vocabularyBytes = 224

// BufferBytes is what a buffer of that many bytes takes of the pool.
func BufferBytes(bytes int64) int64 { return roundUp(bytes, 128) }

// LeastFixed is Memory.Fixed of a plan without a loaded step.
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
	for i := range p.Program.Programs {
		all = append(all, p.Program.Programs[i].Name)
	}
	return memoryOf(p, all, true)
}

// memoryOf counts the programs of the names given, and a tokenizer.
func memoryOf(p *Plan, programs []string, tokenizer bool) Memory {
	pr := &p.Program
	var m Memory
	layers := map[string]int64{}
	for i := range pr.Weights {
		layers[pr.Weights[i].Name] = int64(max(1, pr.Weights[i].LayerCount()))
	}
	const prefill, decode = 1, 2
	uses, prepacked := map[string]int{}, map[string]bool{}
	bakedBy := map[string]map[string]int{} // of baked packs, the graphs with the phases that run them
	shared := map[string]bool{}            // graphs that refer to a binary of several
	for i := range pr.Graphs {
		shared[pr.Graphs[i].Name] = pr.Graphs[i].Context != ""
	}
	var steps, library int64 // bytes of what is loaded, a step once for each layer, and of the largest library
	for i := range pr.Programs {
		ph := &pr.Programs[i]
		if !slices.Contains(programs, ph.Name) {
			continue
		}
		phase := prefill
		if ph.Phase == "decode" {
			phase = decode
		}
		for j := range ph.Sections {
			for _, l := range ph.Sections[j].Lanes {
				q := p.Proc(l.Proc)
				prepacks, bakes := q != nil && q.Prepacks, q != nil && q.Bakes
				told := q.memory()
				library = max(library, told.LibraryBytes)
				for k := range l.Steps {
					st := &l.Steps[k]
					steps += told.StepBytes * int64(max(1, ph.Sections[j].Layers))
					for _, w := range st.W {
						uses[w.Pack] |= phase
						prepacked[w.Pack] = prepacked[w.Pack] || prepacks
						if bakes {
							if bakedBy[w.Pack] == nil {
								bakedBy[w.Pack] = map[string]int{}
							}
							bakedBy[w.Pack][st.Run] |= phase
						}
					}
				}
			}
		}
	}
	rows := tables(p)
	for i := range pr.Packs {
		k := &pr.Packs[i]
		bytes := roundUp(k.Bytes, PageBytes) * layers[k.Weight]
		if prepacked[k.Name] && rows[k.Name] == 0 && k.Layout != op.RowsLayout {
			m.Prepacked += bytes
		}
		held := func(use int, bytes int64) {
			switch use {
			case prefill:
				m.PrefillWeights += bytes
			case decode:
				m.DecodeWeights += bytes
			}
			m.Weights += bytes
		}
		switch use, graphs := uses[k.Name], bakedBy[k.Name]; {
		case len(graphs) > 0:
			first := true // of those that share a binary
			for name, phases := range graphs {
				switch {
				case !shared[name]:
					held(phases, bytes)
				case first:
					held(use, bytes)
					first = false
				default:
					held(use, bytes/FurtherGraph)
				}
			}
		case rows[k.Name] > 0:
			m.Tables += touched(bytes, p.MaxContext*p.Sequences())
		case use != 0:
			held(use, bytes)
		}
	}
	m.Cache = pr.Cache.Bytes()
	for _, b := range pr.Buffers {
		m.Pool += BufferBytes(int64(b.Rows) * int64(b.Cols) * int64(b.Type.Bytes()))
	}
	work := map[string]int64{}
	for i := range pr.Graphs {
		g := &pr.Graphs[i]
		if q := p.Proc(g.Proc); q != nil {
			work[g.Proc] = max(work[g.Proc], q.ScratchBytes(&g.Graph))
		}
	}
	for _, n := range work {
		m.Work += n
	}
	m.Fixed = FixedBytes
	if tokenizer {
		m.Fixed = LeastFixed(p)
	}
	m.Fixed += steps + library
	m.Total = m.Weights + m.Prepacked + m.Tables + m.Cache + m.Pool + m.Work + m.Fixed
	return m
}

// sizes are all numbers of it.
func (m *Memory) sizes() []int64 {
	return []int64{m.Weights, m.PrefillWeights, m.DecodeWeights, m.Prepacked, m.Tables, m.Cache, m.Pool, m.Work, m.Fixed,
		m.Total, m.Max}
}

// String lists the parts: "1.1GiB of weights, 66MiB of cache, ...".
func (m Memory) String() string {
	copies := ""
	if m.Prepacked > 0 {
		copies = fmt.Sprintf("%v of a library's copies, ", unit.Bytes(m.Prepacked))
	}
	return fmt.Sprintf("%v of weights, %s%v of embeddings, %v of cache, %v of buffers, %v of scratch, %v of program",
		unit.Bytes(m.Weights), copies, unit.Bytes(m.Tables), unit.Bytes(m.Cache), unit.Bytes(m.Pool), unit.Bytes(m.Work), unit.Bytes(m.Fixed))
}

// Extent is how far an execution has gone.
type Extent struct {
	Programs  []string // those it has loaded
	Positions int      // in the caches
	Rows      int      // of the largest call
	Tokenizer bool     // it has one
}

// MemoryAt is the memory of an execution that does not go as far as it could. What nobody has touched of weights,
// cache, tables and buffers is not resident.
func MemoryAt(p *Plan, e Extent) Memory {
	m, positions, rows := memoryOf(p, e.Programs, e.Tokenizer), e.Positions, e.Rows
	share := func(bytes int64, part, all int) int64 {
		if part >= all || all < 1 {
			return bytes
		}
		return int64(float64(bytes) * float64(max(0, part)) / float64(all))
	}
	most := 1
	for i := range p.Program.Programs {
		most = max(most, p.Program.Programs[i].Rows)
	}
	if positions < p.MaxContext*p.Sequences() {
		m.Tables = 0
		for _, bytes := range tables(p) {
			m.Tables += touched(bytes, positions)
		}
	}
	m.Cache = share(m.Cache, positions, p.MaxContext*p.Sequences())
	m.Pool = share(m.Pool, rows, most)
	m.Total = m.Weights + m.Prepacked + m.Tables + m.Cache + m.Pool + m.Work + m.Fixed
	return m
}

// tables are the packs that nothing but embeddings reads, with their sizes.
func tables(p *Plan) map[string]int64 {
	embeds := map[string]bool{}
	for i := range p.Program.Graphs {
		if g := &p.Program.Graphs[i]; g.Graph.Nodes[0].Op.Kind == op.Embed {
			embeds[g.Name] = true
		}
	}
	read, product := map[string]bool{}, map[string]bool{}
	for i := range p.Program.Programs {
		for _, s := range p.Program.Programs[i].Sections {
			for _, l := range s.Lanes {
				for _, st := range l.Steps {
					for _, w := range st.W {
						if embeds[st.Run] {
							read[w.Pack] = true
						} else {
							product[w.Pack] = true
						}
					}
				}
			}
		}
	}
	out := map[string]int64{}
	for i := range p.Program.Packs {
		if k := &p.Program.Packs[i]; read[k.Name] && !product[k.Name] {
			out[k.Name] = roundUp(k.Bytes, PageBytes)
		}
	}
	return out
}

// touched is what reading rows of a table, anywhere in it, makes resident of it on average. Only products
// and differences: the same number on every machine.
func touched(bytes int64, rows int) int64 {
	if bytes <= TableStep {
		return bytes
	}
	left := 1.0 // the share that no row has touched
	for power := 1 - TableStep/float64(bytes); rows > 0; rows >>= 1 {
		if rows&1 != 0 {
			left *= power
		}
		power *= power
	}
	return bytes - int64(left*float64(bytes))
}

// PageBytes is what packed weights are rounded up to, in each layer.
const PageBytes = 4 << 10

func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }

// memory is what the processor's driver told of it: nothing for a processor that is not there.
func (p *Proc) memory() capability.Memory {
	if p == nil || p.Memory == nil {
		return capability.Memory{}
	}
	return *p.Memory
}

// ScratchBytes is the temporary memory that the processor needs for a graph, an upper bound.
func (p *Proc) ScratchBytes(g *op.Graph) int64 {
	if told := p.memory(); told.Scratch != nil {
		return told.Scratch.Bytes(g, max(1, len(p.Cores)))
	}
	return 0
}
