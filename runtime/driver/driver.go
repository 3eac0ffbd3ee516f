// Package driver knows the contract between the runtime and one processor: opening it,
// loading artifacts onto it, running them on views of shared memory, and what it can do.
//
// A Driver is one library (or pure Go). A Processor is one CPU, GPU or NPU as that driver
// exposes it, in one configuration. The executor drives each Processor from one lane: a
// goroutine locked to its OS thread, which calls Attach once and Run many times.
//
// Read Driver and Processor first, then Bindings: the operands of a call. What only some processors can do are further
// interfaces: Asynchronous (submit.go) for devices that execute calls by themselves, Mirror and Moves for those with
// memory of their own, Virtual (virtual.go) for simulations, Rouser, Bounded and Outlying below. Compiler (compiler.go)
// makes the artifacts that Load takes. Local and State implement what drivers on the host's memory have in common, and
// drivertest tries the whole contract on any driver.
package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
)

// Driver opens processors.
type Driver interface {
	// Name is the word used in SoC files and plans ("host", "sim", "ort").
	Name() string
	// Devices lists what Open accepts on this machine, in a stable order.
	// A driver without its library returns an *Unavailable.
	Devices(ctx context.Context) ([]Device, error)
	// Open opens one processor. A driver without its library returns an *Unavailable;
	// an unknown selector or option is an error that lists the valid ones. Open never panics.
	Open(ctx context.Context, c Config) (Processor, error)
}

// Described is implemented by drivers that can describe the library that they use.
type Described interface {
	// Library is what does the work: the shared library that was loaded, or the program's own kernels. A driver
	// without its library returns an *Unavailable.
	Library(ctx context.Context) (Library, error)
}

// Matcher is implemented by drivers whose artifacts have a vendor's compatibility string.
type Matcher interface {
	// Accepts compares the string of a bundle's artifacts (CompiledGroup.Token) with the libraries here; an error says
	// what does not fit. A driver without its library returns an *Unavailable.
	Accepts(token string) error
}

// Library describes the library of a driver.
type Library struct {
	Name      string   // "ONNX Runtime"
	Version   string   // of a shared library, or the kernel set
	Path      string   // of a shared library
	Build     string   // what the library says about its build
	Providers []string // its execution providers, in its order
	// Skipped are parts of it that fail, each with its reason, while the others can be used: platforms of OpenCL whose
	// devices cannot be listed.
	Skipped []string
}

// Config selects and configures a processor.
type Config struct {
	Select  string            // driver-specific: "0", "0-1"
	Options map[string]string // driver-specific; unknown keys are refused
}

// Device describes something Open accepts.
type Device struct {
	Select      string
	Description string
	Cores       []int // CPU cores it occupies, nil for devices that have their own
}

// Capabilities is what a processor can do. Plans are checked against it before anything is loaded. Kinds lists every
// operator that it executes, and Layouts also plain values ("f32"): biases, gains, and tables in which rows are looked
// up.
type Capabilities struct {
	capability.Set
	// Rerounds are the schemes of Schemes whose products round activations once more on the way, to 8 bits with a scale
	// per block of the weight: at most half a step of their block's largest activation, and near to nothing in quality.
	Rerounds []op.Scheme
	// Imitates are the schemes of Schemes that it computes as other processors would, to show their numbers: without
	// kernels of its own, and never worth planning for. Probing leaves them out.
	Imitates []op.Scheme
	// Usual is the form that products of a scheme have where they name none, if that is one of Forms. Probing leaves it
	// out, so that it is not measured twice.
	Usual map[op.Scheme]op.Form

	Virtual  bool // times are simulated, not measured
	Emulated bool // results are a device's that a program here imitates: times are real, and none of the device's

	Cores []int // CPU cores it occupies while running
}

// Offered returns what plans may use the processor for, as SoC files state it: no schemes that it imitates, no forms
// that products have without one, no layouts but those of its schemes, and no list of kinds where it executes all of
// them.
func (c *Capabilities) Offered() capability.Set {
	out := c.Set.Clone()
	out.Tile.M = max(1, out.Tile.M)
	out.Schemes = slices.DeleteFunc(out.Schemes, func(s op.Scheme) bool { return slices.Contains(c.Imitates, s) })
	for scheme, usual := range c.Usual {
		out.Forms[scheme] = slices.DeleteFunc(out.Forms[scheme], func(f op.Form) bool { return f == usual })
		if len(out.Forms[scheme]) == 0 {
			delete(out.Forms, scheme)
		}
	}
	out.Layouts = map[string]string{}
	for _, scheme := range c.Schemes {
		out.Layouts[scheme.Weight()] = c.Layouts[scheme.Weight()]
	}
	if !slices.ContainsFunc(op.Kinds, func(k op.Kind) bool { return !slices.Contains(c.Kinds, k) }) {
		out.Kinds = nil
	}
	return out
}

// Supports reports whether the processor executes an operator, with the reason if not.
func (c *Capabilities) Supports(operator op.Op) error {
	if len(c.Kinds) == 0 || !c.Executes(operator.Kind) {
		return fmt.Errorf("operator %q is not supported", operator.Kind)
	}
	if operator.HasScheme() {
		if operator.Kind != op.MatMul && !operator.Scheme.Experts() {
			return fmt.Errorf("scheme %q is one of products by a single matrix", operator.Scheme)
		}
		if !slices.Contains(c.Schemes, operator.Scheme) {
			return fmt.Errorf("scheme %q is not supported", operator.Scheme)
		}
		if !c.HasForm(operator.Scheme, operator.Form) {
			return fmt.Errorf("form %q of scheme %q is not supported", operator.Form, operator.Scheme)
		}
		return nil
	}
	if scheme := operator.Scheme.Weight(); scheme != "" && c.Layouts[scheme] != op.TilesLayout {
		return fmt.Errorf("scheme %q: weights %q are not read in layout %q, in which rows are looked up",
			operator.Scheme, scheme, op.TilesLayout)
	}
	if operator.Kind.Has("kv") {
		if slices.Contains(c.KV, operator.KV) {
			return nil
		}
		return fmt.Errorf("cache type %q is not supported", operator.KV)
	}
	return nil
}

// Tick is a time in nanoseconds on a processor's clock: monotonic for real processors, virtual
// for simulated ones. Only differences mean anything.
type Tick int64

// Span is when a call ran.
type Span struct{ Start, End Tick }

// Processor is one open processor. All methods but Close are called from one goroutine at a time.
type Processor interface {
	Capabilities() *Capabilities
	// Attach binds the calling OS thread (already locked) to the processor: pins it, starts helpers.
	// It is called once, before the first Run, on the thread that will call Run. The caller never
	// unlocks the thread, so that a pinned one ends with its goroutine. A processor that has Cores pins the thread
	// to the first of them; several with the same first core may be attached to one thread, and then take turns.
	Attach() error
	// Alloc returns zeroed memory visible to the host and to this processor, 64-byte aligned at least. A processor
	// with memory of its own may share what it allocates; where it does not, the Buffer is a Mirror.
	Alloc(bytes int64) (Buffer, error)
	// Import makes host memory (64-byte aligned) usable by this processor: without a copy, or, on a processor with
	// memory of its own (OwnMemory), as a Mirror. The caller keeps it alive and unmoved until the Buffer is closed.
	Import(b []byte) (Buffer, error)
	// Load prepares an artifact with its weights for Run. The weights' bytes stay valid and unchanged until the
	// Executable is closed. Weights match the graph's by position, shape, scheme and layout; their names may differ,
	// because one artifact serves every layer. Artifacts are already verified; a driver still refuses one whose graph
	// or weights it cannot execute, by name, and one that holds another graph than Artifact.Graph.
	Load(ctx context.Context, a Artifact, w Weights) (Executable, error)
	// Run executes synchronously; processors that can do otherwise are Asynchronous too. Rows beyond Scalars.Rows of
	// outputs are written as zeros or left alone. Values without an answer are errors that name node and row: NaN or an
	// infinity given to QuantRows, a token id outside the table, a key too large for the cache type. After an error the
	// outputs are undefined and the processor stays usable.
	Run(exe Executable, b *Bindings) (Span, error)
	// Now is the current time of the processor's clock.
	Now() Tick
	// WaitUntil moves a virtual clock forward to t (waiting for a flag takes the maximum of both
	// lanes' times); on real processors it does nothing.
	WaitUntil(t Tick)
	// Close may come from any goroutine; it waits for a running call, and later calls fail. Closing
	// again does nothing, here as for executables and buffers.
	Close() error
}

// Rouser is implemented by processors with threads of their own that sleep after a while without a call.
type Rouser interface {
	// Rouse returns when all of them are awake, as they are between two steps of a lane, or after a few milliseconds,
	// when another process has their cores. It is called on the thread that calls Run.
	Rouse()
}

// TableReader is implemented by processors whose embeddings take Packed.Rows too, if ReadsTables says so: then a table
// is not verified as a whole before a few rows of it are read.
type TableReader interface{ ReadsTables() bool }

// Bounded is implemented by processors made of CPU cores: what bounds their kernels can be measured.
type Bounded interface{ Bounds() Bounds }

// Bounds are loops in the instructions of a processor's kernels, for one core each. They use no processor: any
// thread may call them, several at a time.
type Bounds struct {
	Kernels string // instruction set
	// PeakI8 and PeakF32 do at least ops operations, two per multiply-add, on registers alone, and
	// return how many they did.
	PeakI8, PeakF32 func(ops int64) (done int64)
	// Stream fetches memory, whole lines of 64 bytes, and returns the sum of their first 8-byte words.
	Stream func(b []byte) uint64
	// Issue does at least n instructions that wait for nothing, and returns how many it did: as many a second as the
	// core begins, which are fewer while another hardware thread of the core works. nil: it is not written for this
	// CPU.
	Issue func(n int64) (done int64)
}

// Executable is a loaded artifact.
type Executable interface{ Close() error }

// Outlying is implemented by executables that can say how many channels exceeded static scales (op.OutlierMatMul).
type Outlying interface {
	// Outliers is what was counted since the executable was loaded. Any goroutine may ask while nothing runs.
	Outliers() OutlierCount
}

// OutlierCount is how many channels exceeded the static scale of a product with shadow outliers.
type OutlierCount struct {
	Calls    int64 `json:"calls"`    // of the operator
	Channels int64 `json:"channels"` // that some row exceeded the scale in, of all calls together
	Most     int64 `json:"most"`     // of one call
	// Cold are the channels of Channels whose row of the weight was read from the bundle, because it is none of those
	// that are held in memory.
	Cold   int64 `json:"cold"`
	Beyond int64 `json:"beyond"` // calls with more than op.Op.Gathered, which were computed in several passes
}

// Add adds the counts of another executable.
func (c *OutlierCount) Add(other OutlierCount) {
	c.Calls, c.Channels, c.Beyond = c.Calls+other.Calls, c.Channels+other.Channels, c.Beyond+other.Beyond
	c.Cold += other.Cold
	c.Most = max(c.Most, other.Most)
}

// Buffer is memory shared with a processor.
type Buffer interface {
	Bytes() []byte
	Close() error
}

// View is a [Rows,Cols] window of a buffer; element [r,c] is at byte Offset + (r*Stride+c)*Type.Bytes().
type View struct {
	Buffer Buffer
	Type   op.Type
	Offset int64
	Rows   int
	Cols   int
	Stride int // elements from one row to the next, >= Cols
}

// Bytes returns the memory from the view's first to its last element.
func (v View) Bytes() []byte {
	size := int64(v.Type.Bytes())
	length := (int64(v.Rows-1)*int64(v.Stride) + int64(v.Cols)) * size
	return v.Buffer.Bytes()[v.Offset : v.Offset+length]
}

// Scalars are the values that change from call to call, shared by all steps of a program run.
type Scalars struct {
	Pos   int // position of row 0 in the context
	Rows  int // tokens in use: a node of M tokens computes min(M, Rows) of them
	KVLen int // cached positions including the new rows: Pos + Rows
	Seq   int // positions once the whole prompt or token is processed that this call is part of; Rope depends on it
	Row   int // SelectRow: the row to copy
	// Sequence is which of the cached sequences the rows are of, below Bindings.Sequences.
	Sequence int
	// Batch are the places of the rows of nodes with Batch (see op.Op), whose rows are of a sequence each: at least
	// as many as such a node computes rows, no sequence twice. To those nodes Pos, KVLen, Seq and Sequence mean
	// nothing; to all others Batch does. A graph has nodes of one kind only.
	Batch []Place
}

// Place is the place of a row of a batch: position Pos of one of the cached sequences, which has Pos+1 positions once
// the call is done.
type Place struct{ Sequence, Pos int }

// Bindings are the operands of one call, in the order of the graph's Inputs and Outputs.
// K and V are the caches of this layer and head range, [KVHeads*MaxContext, cols] each, dense, of the elements and
// columns that op.Type.CacheRow says:
// head h, position p is row h*MaxContext+p. They are those of sequence 0; those of sequence s lie s*SequenceBytes
// further in the same buffers, for s up to Sequences-1 (0: one sequence). They are zero for graphs without state.
// A value that is both input and output is bound to one view in both lists; an input that a node
// updates in place without being an output is undefined afterwards.
type Bindings struct {
	In, Out    []View
	K, V       View
	MaxContext int
	Scalars    *Scalars

	Sequences     int
	SequenceBytes int64

	// Next is the next executable of the same lane that multiplies by a weight, nil where none is known. A processor
	// may ask memory for that weight while it has nothing to compute.
	Next Executable

	// Moves says what travels between the host and a processor with memory of its own, for which alone it means
	// something. nil: everything that the call reads, before it, with the cached positions below Pos+Rows, and
	// everything that it writes, after it, with the positions Pos to Pos+Rows of the cache. That is always right, and
	// slow.
	Moves *Moves
}

// Packed is one weight of a graph: its description and its packed bytes (64-byte aligned). Of a weight
// with experts Bytes reaches from the first one to the end of the last, Stride bytes apart.
type Packed struct {
	Spec   op.WeightSpec
	Bytes  []byte
	Stride int64
	// Rows, if set, yields single rows of the weight instead of Bytes, which are nil: of weights that a graph reads so
	// (op.Graph.ReadsRows; op.Graph.ReadsTable, for a TableReader alone).
	Rows Rows
}

// Rows yields rows of a packed weight when they are needed. Any goroutine may ask.
type Rows interface {
	// Row is the bytes of row k, from 0, verified: they stay valid and unchanged until the executable is closed, and
	// are aligned to their elements. copied: they lie in memory that was filled when the weight was loaded, and not in
	// a file. A row that cannot be verified is an error, and is not given out.
	Row(k int) (row []byte, copied bool, err error)
}

// Weights are the packed weights of a graph in the order of Graph.Weights.
type Weights []Packed

// Artifact is what a compiler made of a graph for one driver.
type Artifact struct {
	Driver string           // driver that loads it
	Code   []byte           // driver-specific; canonical JSON of the graph for host and sim
	Shared []byte           // CompiledGroup.Shared of its group, which Code refers to; nil when Code holds all
	Facts  map[string]int64 // what the compiler reported, e.g. "bytes"; never a time
	// Graph is what the plan says that Code computes: Load refuses code of any other graph, with class verify. nil: the
	// caller has compiled Code itself, and there is nothing to compare.
	Graph *op.Graph
}

// Unavailable says that a driver cannot work here: what was tried, what was found, and what to do.
type Unavailable struct {
	Driver   string
	Tried    []string // paths or names, in order
	Found    string   // what was found and why it does not do, may be empty
	Override string   // environment variable that names the library, may be empty
	Get      string   // how to get the library, may be empty: "make deps fetches it"
}

// Error names the driver and everything that was tried.
func (e *Unavailable) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "driver %q is not available", e.Driver)
	if len(e.Tried) > 0 {
		fmt.Fprintf(&text, ": tried %s", strings.Join(e.Tried, ", "))
	}
	if e.Found != "" {
		fmt.Fprintf(&text, ": found %s", e.Found)
	}
	if e.Override != "" {
		fmt.Fprintf(&text, "; set %s to the library's path", e.Override)
	}
	return text.String()
}

// ErrIncapable is the error of a driver for a device that lacks what it needs, whatever is installed.
var ErrIncapable = errors.New("the device lacks instructions for it")

// ErrUnavailable matches every *Unavailable with errors.Is.
var ErrUnavailable = errors.New("driver is not available")

// Is makes errors.Is(err, ErrUnavailable) true.
func (e *Unavailable) Is(target error) bool { return target == ErrUnavailable }

// As makes the error one of class diag.ClassUnavailable wherever it is wrapped.
func (e *Unavailable) As(target any) bool {
	diagnostic, ok := target.(**diag.Diagnostic)
	if ok {
		*diagnostic = diag.New(diag.ClassUnavailable, "%s", e.Error()).WithHint("%s", e.Get)
	}
	return ok
}
