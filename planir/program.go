package planir

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/planir/op"
)

// Buffers the executor reads and writes by name.
const (
	IDs    = "ids"    // i32 [rows,1]: token ids of the call
	Logits = "logits" // f32 [1,vocabulary], of a batch [sequences,vocabulary]
)

// Program is what the executor walks: buffers in one pool, packed weights, graphs, and per phase and bucket the steps
// of every lane. The executor knows operators, not models. Elements refer to each other by name.
type Program struct {
	Buffers []Buffer    `json:"buffers,omitempty" yaml:"buffers,omitempty"`
	Cache   Cache       `json:"cache" yaml:"cache"`
	Weights []op.Weight `json:"weights,omitempty" yaml:"weights,omitempty"`
	Packs   []Pack      `json:"packs,omitempty" yaml:"packs,omitempty"`
	// each for one processor, executed by steps under its name
	Graphs []Graph `json:"graphs,omitempty" yaml:"graphs,omitempty"`
	// each is for one number of rows; the decider says which one takes a call
	Programs []PhaseProgram `json:"programs,omitempty" yaml:"programs,omitempty"`
	// each is executed by one processor alone, while others execute something else (see Beside)
	Beside []PhaseProgram `json:"beside,omitempty" yaml:"beside,omitempty"`
	// each processes several whole chunks of a prompt together (see InFlight)
	InFlight []PhaseProgram `json:"in_flight,omitempty" yaml:"in_flight,omitempty"`
	Decider  []Decide       `json:"decider,omitempty" yaml:"decider,omitempty"`
}

// Buffer is a slot of the pool: [Rows,Cols] of Type. Buffers never overlap.
type Buffer struct {
	Name string  `json:"name" yaml:"name"`
	Type op.Type `json:"type" yaml:"type"`
	Rows int     `json:"rows" yaml:"rows"`
	Cols int     `json:"cols" yaml:"cols"`
}

// Cache is the KV cache [sequence][layer][k|v][kv_head][max_context][row], a row being head_dim numbers as the type
// stores them.
type Cache struct {
	Type       op.Type `json:"type" yaml:"type"`
	Layers     int     `json:"layers" yaml:"layers"`
	KVHeads    int     `json:"kv_heads" yaml:"kv_heads"`
	MaxContext int     `json:"max_context" yaml:"max_context"`
	HeadDim    int     `json:"head_dim" yaml:"head_dim"`
	Sequences  int     `json:"sequences,omitempty" yaml:"sequences,omitempty"` // 0: one
}

// Bytes returns the size of the whole cache.
func (c Cache) Bytes() int64 { return int64(max(1, c.Sequences)) * c.SequenceBytes() }

// SequenceBytes returns the size of the cache of one sequence.
func (c Cache) SequenceBytes() int64 {
	return 2 * int64(c.Layers) * int64(c.KVHeads) * int64(c.MaxContext) * c.Type.CacheRowBytes(c.HeadDim)
}

// Pack is a stored, packed piece of a weight: rows [K0,K1) and columns [N0,N1), quantised and laid
// out for the processors that read it. Of a weight with layers there is one packing per layer; one with
// experts holds all of them, one behind the other.
type Pack struct {
	Name    string `json:"name" yaml:"name"`
	Weight  string `json:"weight" yaml:"weight"`
	Experts int    `json:"experts,omitempty" yaml:"experts,omitempty"`
	// Slotted: it holds of each layer only the experts that have a slot in some program (Plan.Slotted), since its
	// processor computes no others. Experts is then how many a layer has at most.
	Slotted bool   `json:"slotted,omitempty" yaml:"slotted,omitempty"`
	K0      int    `json:"k0" yaml:"k0"`
	K1      int    `json:"k1" yaml:"k1"`
	N0      int    `json:"n0" yaml:"n0"`
	N1      int    `json:"n1" yaml:"n1"`
	Scheme  string `json:"scheme" yaml:"scheme"` // weight scheme: "q8c", or an element type for rows
	Layout  string `json:"layout" yaml:"layout"`
	Bytes   int64  `json:"bytes" yaml:"bytes"` // of one packing
	// InArtifact: it is in no weights blob, because the artifacts of the processor that reads it hold it. It is laid
	// out as that processor's compiler takes it.
	InArtifact bool `json:"in_artifact,omitempty" yaml:"in_artifact,omitempty"`
}

// Spec describes the packing to drivers.
func (p *Pack) Spec() op.WeightSpec {
	return op.WeightSpec{Name: p.Name, Experts: p.Experts, K: p.K1 - p.K0, N: p.N1 - p.N0, Scheme: p.Scheme,
		Layout: p.Layout}
}

// Graph is a piece of the model compiled for one processor.
type Graph struct {
	Name  string   `json:"name" yaml:"name"`
	Proc  string   `json:"proc" yaml:"proc"`
	Graph op.Graph `json:"graph" yaml:"graph"`
	// blob that holds what the compiler made of it; of a graph whose artifact holds its weights see GraphGroup
	Artifact string `json:"artifact" yaml:"artifact"`
	// Context names the binary to which its artifact refers, with those of all graphs that hold the same weights; "":
	// the artifact holds what it needs.
	Context string `json:"context,omitempty" yaml:"context,omitempty"`
}

// PhaseProgram is the program of one phase and bucket. Sections run one after another; all lanes meet
// between them. The rows of a call are tokens of one sequence, or, where decode has several, of a sequence each.
type PhaseProgram struct {
	Name  string `json:"name" yaml:"name"`   // "prefill@256", "decode", "decode@4", "decode@4/cpu"
	Phase string `json:"phase" yaml:"phase"` // prefill, decode
	Rows  int    `json:"rows" yaml:"rows"`   // most rows of one call
	// On is the processor that executes all of it, in buffers of its own: of programs in Beside, else "".
	On       string    `json:"on,omitempty" yaml:"on,omitempty"`
	Sections []Section `json:"sections,omitempty" yaml:"sections,omitempty"`
}

// Own returns the name of a program's buffer: those of a program of one processor begin with its name.
func (p *PhaseProgram) Own(buffer string) string {
	if p.On == "" {
		return buffer
	}
	return p.On + "/" + buffer
}

// Batch reports whether the rows are of a sequence each.
func (p *PhaseProgram) Batch() bool { return p.Phase == "decode" && p.Rows > 1 }

// Section is a sequence of steps per lane, repeated once per layer when Layers > 0, for the layers from
// First. Flags are numbered from 0 within the section; each is set by one step, once per iteration.
// Sections of one name are the same decisions for different layers.
type Section struct {
	Name   string `json:"name" yaml:"name"` // "embed", "layers", "head"
	First  int    `json:"first,omitempty" yaml:"first,omitempty"`
	Layers int    `json:"layers,omitempty" yaml:"layers,omitempty"`
	// run only for rows whose logits are wanted, once per row
	Logits bool   `json:"logits,omitempty" yaml:"logits,omitempty"`
	Flags  int    `json:"flags,omitempty" yaml:"flags,omitempty"`
	Lanes  []Lane `json:"lanes,omitempty" yaml:"lanes,omitempty"` // ascending by processor
}

// Lane is one processor's sequence of steps.
type Lane struct {
	Proc  string `json:"proc" yaml:"proc"`
	Steps []Step `json:"steps,omitempty" yaml:"steps,omitempty"`
}

// For returns the program that takes the next of n tokens of one sequence, nil when the decider names none.
func (p *Program) For(n int) *PhaseProgram {
	for _, choice := range p.Decider {
		if n < choice.Min || n > choice.Max {
			continue
		}
		for _, program := range p.All() {
			if program.Name == choice.Program {
				return program
			}
		}
	}
	return nil
}

// Step waits for flags, runs a graph, and sets a flag. R0 is the first row of the call it covers: a
// call with fewer rows runs it with the rest, or skips it.
type Step struct {
	Node string `json:"node" yaml:"node"` // see Nodes
	Wait []Wait `json:"wait,omitempty" yaml:"wait,omitempty,flow"`
	Run  string `json:"run" yaml:"run"` // graph
	R0   int    `json:"r0,omitempty" yaml:"r0,omitempty"`
	// Behind is how many layers the step is behind the section's first: in iteration i it works on layer i-Behind, if
	// the section has it.
	Behind int         `json:"behind,omitempty" yaml:"behind,omitempty"`
	In     []View      `json:"in,omitempty" yaml:"in,omitempty,flow"`
	W      []WeightRef `json:"w,omitempty" yaml:"w,omitempty,flow"`
	Out    []View      `json:"out,omitempty" yaml:"out,omitempty,flow"`
	// Full: its rows are no tokens, and every call executes all of them. R0 counts them; those of a second chunk in
	// flight follow those of the first.
	Full bool `json:"full,omitempty" yaml:"full,omitempty"`
	// cache heads [from,to) of a graph with state
	Heads    *[2]int `json:"heads,omitempty" yaml:"heads,omitempty,flow"`
	Set      *int    `json:"set,omitempty" yaml:"set,omitempty"`
	ExpectNS int64   `json:"expect_ns,omitempty" yaml:"expect_ns,omitempty"`
}

// NodeSeparator stands between the nodes of a step.
const NodeSeparator = "+"

// Nodes returns the names of the nodes that a step executes, in order: one for each node of its graph, or a single one
// for all of them. The sum of partial products has the name of the product.
func (st *Step) Nodes() []string { return strings.Split(st.Node, NodeSeparator) }

// nodeOf returns the name of the node that stands for node i of the step's graph.
func (st *Step) nodeOf(graph *op.Graph, i int) string {
	if names := st.Nodes(); len(names) == len(graph.Nodes) {
		return names[i]
	}
	return st.Node
}

// Decide picks the program for a number of tokens still to process: the first entry with
// Min <= n <= Max. The program takes min(n, its rows) of them.
type Decide struct {
	Min     int    `json:"min" yaml:"min"`
	Max     int    `json:"max" yaml:"max"`
	Program string `json:"program" yaml:"program"`
}

// View is a rectangle of a buffer, written "buffer[r0:r1,c0:c1]".
type View struct {
	Buffer         string
	R0, R1, C0, C1 int
}

// Overlaps reports whether two views share an element.
func (v View) Overlaps(other View) bool {
	return v.Buffer == other.Buffer && v.R0 < other.R1 && other.R0 < v.R1 && v.C0 < other.C1 && other.C0 < v.C1
}

// String returns the written form.
func (v View) String() string {
	text := make([]byte, 0, len(v.Buffer)+24)
	text = appendRange(append(append(text, v.Buffer...), '['), v.R0, v.R1)
	text = appendRange(append(text, ','), v.C0, v.C1)
	return string(append(text, ']'))
}

// MarshalText implements encoding.TextMarshaler.
func (v View) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText accepts the written form only.
func (v *View) UnmarshalText(data []byte) error {
	name, numbers, err := parseIndexed(string(data), 4)
	if err != nil {
		return fmt.Errorf("view %q: %w, want name[r0:r1,c0:c1]", data, err)
	}
	*v = View{name, numbers[0], numbers[1], numbers[2], numbers[3]}
	// One written form for each value, or equal plans could have different bytes.
	if v.String() != string(data) {
		return fmt.Errorf("view %q is not in canonical form %q", data, v)
	}
	return nil
}

// Wait names a flag of the section; Back waits for the setting of the iteration before
// (nothing to wait for in the first one). Written "3" or "3-1".
type Wait struct {
	Flag int
	Back bool
}

// MarshalText implements encoding.TextMarshaler.
func (w Wait) MarshalText() ([]byte, error) {
	text := strconv.Itoa(w.Flag)
	if w.Back {
		text += "-1"
	}
	return []byte(text), nil
}

// UnmarshalText accepts the written form only.
func (w *Wait) UnmarshalText(data []byte) error {
	number, back := strings.CutSuffix(string(data), "-1")
	numbers, err := strconv.Atoi(number)
	if err != nil || numbers < 0 {
		return fmt.Errorf("wait %q: want a flag number, with -1 for the iteration before", data)
	}
	*w = Wait{numbers, back}
	if canonical, _ := w.MarshalText(); string(canonical) != string(data) {
		return fmt.Errorf("wait %q is not in canonical form %q", data, canonical)
	}
	return nil
}

// WeightRef is a column range of a pack, relative to the pack, written "pack[c0:c1]". With Tiers it is the expert of
// the pack that is in a slot of the layer, by the tiers of the program of so many rows, written
// "pack[c0:c1,tiers:slot]".
type WeightRef struct {
	Pack   string
	C0, C1 int
	Tiers  int
	Slot   int
}

// String returns the written form.
func (w WeightRef) String() string {
	text := append(make([]byte, 0, len(w.Pack)+16), w.Pack...)
	text = appendRange(append(text, '['), w.C0, w.C1)
	if w.Tiers > 0 {
		text = appendRange(append(text, ','), w.Tiers, w.Slot)
	}
	return string(append(text, ']'))
}

// appendRange writes "from:to".
func appendRange(text []byte, from, to int) []byte {
	return strconv.AppendInt(append(strconv.AppendInt(text, int64(from), 10), ':'), int64(to), 10)
}

// MarshalText implements encoding.TextMarshaler.
func (w WeightRef) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText accepts the written form only.
func (w *WeightRef) UnmarshalText(data []byte) error {
	name, numbers, err := parseIndexed(string(data), 2)
	if strings.Contains(string(data[max(0, strings.LastIndexByte(string(data), '[')):]), ",") {
		name, numbers, err = parseIndexed(string(data), 4)
	}
	if err != nil {
		return fmt.Errorf("weight reference %q: %w, want pack[c0:c1] or pack[c0:c1,tiers:slot]", data, err)
	}
	*w = WeightRef{Pack: name, C0: numbers[0], C1: numbers[1]}
	if len(numbers) == 4 {
		w.Tiers, w.Slot = numbers[2], numbers[3]
	}
	if w.String() != string(data) {
		return fmt.Errorf("weight reference %q is not in canonical form %q", data, w)
	}
	return nil
}

// parseIndexed splits "name[a:b,c:d]" into its name and want numbers.
func parseIndexed(text string, want int) (string, []int, error) {
	open := strings.LastIndexByte(text, '[')
	if open < 1 || !strings.HasSuffix(text, "]") {
		return "", nil, fmt.Errorf("no [range]")
	}
	parts := strings.FieldsFunc(text[open+1:len(text)-1], func(r rune) bool { return r == ':' || r == ',' })
	if len(parts) != want {
		return "", nil, fmt.Errorf("%d numbers, want %d", len(parts), want)
	}
	n := make([]int, want)
	for i, part := range parts {
		number, err := strconv.Atoi(part)
		if err != nil || number < 0 {
			return "", nil, fmt.Errorf("bad number %q", part)
		}
		n[i] = number
	}
	return text[:open], n, nil
}

// Blob alignment of packed tensors: one page on machines with 16 KiB pages.
const tensorAlign = 16 << 10

// Placement is where a pack's bytes for one layer lie: offset within a weights blob.
type Placement struct {
	Pack   *Pack
	Layer  int // -1 for a pack without layers
	Offset int64
}

// WeightBlob is one weights blob of the bundle: packs in order, each at a multiple of 16 KiB.
type WeightBlob struct {
	Name  string
	Size  int64
	Packs []Placement
}

// WeightBlobs computes the weights blobs: "weights/shared" for packs without layers, then one "weights/layer.NNN" per
// layer, and "weights/rows" for packs of which single rows are read. InArtifact packs are in none. No offset is stored
// anywhere: it follows from the packs' sizes.
// RATIONALE: Which rows of a weight do shadow outliers find in memory?
func (p *Program) WeightBlobs() []WeightBlob {
	weights := map[string]*op.Weight{}
	layers := 0
	for i := range p.Weights {
		weight := &p.Weights[i]
		weights[weight.Name] = weight
		for _, span := range weight.Layers {
			layers = max(layers, span.To)
		}
	}
	const shared = -1 // the layer of packs without layers
	byRow := p.ReadByRow()
	fill := func(name string, rows bool, first, end int) WeightBlob {
		blob := WeightBlob{Name: name}
		for layer := first; layer < end; layer++ {
			for i := range p.Packs {
				pack := &p.Packs[i]
				weight := weights[pack.Weight]
				if weight == nil || pack.InArtifact || byRow[pack.Name] != rows ||
					(layer == shared) != (len(weight.Layers) == 0) || layer != shared && !weight.InLayer(layer) {
					continue
				}
				blob.Packs = append(blob.Packs, Placement{Pack: pack, Layer: layer, Offset: blob.Size})
				blob.Size += op.RoundUp(pack.Bytes, tensorAlign)
			}
		}
		return blob
	}
	blobs := []WeightBlob{fill("weights/shared", false, shared, 0)}
	for layer := range layers {
		blobs = append(blobs, fill(fmt.Sprintf("weights/layer.%03d", layer), false, layer, layer+1))
	}
	blobs = append(blobs, fill("weights/rows", true, shared, layers))
	return slices.DeleteFunc(blobs, func(blob WeightBlob) bool { return blob.Size == 0 })
}
