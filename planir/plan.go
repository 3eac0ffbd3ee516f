// Package planir knows what a deployment plan is: its types, its one canonical encoding,
// its digest, and the numbered rules (P001...) that every plan obeys whatever a caller
// believes about time. SPEC.md describes the same for readers without Go.
//
// Read Plan (plan.go) first: decisions, and what they were made from. Program (program.go) is what follows from the
// decisions and is executed: sections of lanes of steps, which call graphs on views of buffers and ranges of packed
// weights. Rules (rules.go) lists what every plan keeps; each rule is one method of checker, in rules_*.go or in the
// file of its feature (beside.go, experts.go, heads.go).
package planir

import (
	"slices"
	"strings"

	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/source"
)

// Schema identifies the plan format. A change that an older reader would misunderstand gets a new number.
const Schema = "hetc.plan/2"

// Plan is the output of solve: what was decided, why, and the program that carries it out.
type Plan struct {
	Schema string   `json:"schema" yaml:"schema"`
	Model  ModelRef `json:"model" yaml:"model"`
	SoC    SoCRef   `json:"soc" yaml:"soc"`
	Inputs []Input  `json:"inputs,omitempty" yaml:"inputs,omitempty"` // digests of everything solve read

	// ascending: groups (models.FoldGroup) whose weights are folded by the factors of the calibration
	Folds []string `json:"folds,omitempty" yaml:"folds,omitempty"`
	// ascending by node: products whose shadow outliers are pruned in some layers
	Shadows []Shadow `json:"shadows,omitempty" yaml:"shadows,omitempty"`
	// ascending by node and rows: how many channels are multiplied at once beside products with shadow outliers
	Outliers []Outliers `json:"outliers,omitempty" yaml:"outliers,omitempty"`
	// ascending by weight and layer: rows that shadow outliers are multiplied by most often, which a process copies
	Hot []Hot `json:"hot,omitempty" yaml:"hot,omitempty"`

	MaxContext int     `json:"max_context" yaml:"max_context"` // cached positions
	KV         op.Type `json:"kv" yaml:"kv"`                   // cache element type
	// ascending: numbers of sequences that are decoded together, besides one
	Batches []int `json:"batches,omitempty" yaml:"batches,omitempty,flow"`

	Procs       []Proc       `json:"procs,omitempty" yaml:"procs,omitempty"` // ascending by name
	Decisions   []Decision   `json:"decisions,omitempty" yaml:"decisions,omitempty"`
	Predictions []Prediction `json:"predictions,omitempty" yaml:"predictions,omitempty"`
	Solver      []Solve      `json:"solver,omitempty" yaml:"solver,omitempty"`
	// by phase, when solved with a calibration
	Quality []Quality `json:"quality,omitempty" yaml:"quality,omitempty"`
	Memory  *Memory   `json:"memory,omitempty" yaml:"memory,omitempty"`
	// ascending by processor and operator, when solved with compiler facts
	Compiled []Compiled `json:"compiled,omitempty" yaml:"compiled,omitempty"`
	// capacity tiers of experts, ascending by the rows of their programs
	Experts []ExpertTiers `json:"experts,omitempty" yaml:"experts,omitempty"`
	// which processor processes prompts while another one decodes; nil: every call has all processors
	Beside *Beside `json:"beside,omitempty" yaml:"beside,omitempty"`
	// how requests guess tokens; nil: the workload said nothing of it
	Drafts *Drafts `json:"drafts,omitempty" yaml:"drafts,omitempty"`
	// which programs attend to selected positions only; nil: none
	Attention *Attention `json:"attention,omitempty" yaml:"attention,omitempty"`
	// how many chunks of a prompt are processed together; nil: one
	InFlight *InFlight `json:"in_flight,omitempty" yaml:"in_flight,omitempty"`
	// what emit made it a plan for; nil: it is as solve wrote it
	Target  *Target `json:"target,omitempty" yaml:"target,omitempty"`
	Program Program `json:"program" yaml:"program"`
}

// Decision says how one node is executed at one number of rows.
type Decision struct {
	Node     string    `json:"node" yaml:"node"` // "layers.qkv"
	Rows     int       `json:"rows" yaml:"rows"` // bucket; 1 and the batches are decode
	Strategy Strategy  `json:"strategy" yaml:"strategy"`
	Scheme   op.Scheme `json:"scheme,omitempty" yaml:"scheme,omitempty"` // matmuls
	Axis     Axis      `json:"axis,omitempty" yaml:"axis,omitempty"`
	Shares   []Share   `json:"shares,omitempty" yaml:"shares,omitempty"`

	PredictNS int64 `json:"predict_ns" yaml:"predict_ns"` // of one execution, waiting for the slower share
	// Source is the weakest of what PredictNS is made of: operators of all shares, hand-overs. Empty: nothing was
	// priced.
	Source       source.Source `json:"source,omitempty" yaml:"source,omitempty"`
	Alternatives []Alternative `json:"alternatives,omitempty" yaml:"alternatives,omitempty"`
}

// Share is one processor's part: the half-open range [From,To) of the decision's axis, or everything
// when the decision has no axis. PadRows > 0 executes with that many rows instead of the bucket's.
type Share struct {
	Proc    string `json:"proc" yaml:"proc"`
	From    int    `json:"from,omitempty" yaml:"from,omitempty"`
	To      int    `json:"to,omitempty" yaml:"to,omitempty"`
	PadRows int    `json:"pad_rows,omitempty" yaml:"pad_rows,omitempty"`
	// Form is how the product is put to the processor, "" for the default or what is no product.
	Form      op.Form `json:"form,omitempty" yaml:"form,omitempty"`
	PredictNS int64   `json:"predict_ns,omitempty" yaml:"predict_ns,omitempty"`
}

// Alternative is a choice that was not taken and what it would have cost.
type Alternative struct {
	Strategy  Strategy      `json:"strategy" yaml:"strategy"`
	Shares    string        `json:"shares" yaml:"shares"` // "npu 0:3072, gpu 3072:5632"
	PredictNS int64         `json:"predict_ns" yaml:"predict_ns"`
	Source    source.Source `json:"source,omitempty" yaml:"source,omitempty"` // of PredictNS, as a decision's
}

// Strategy is how one operator is spread over processors (HeteroInfer sec. 4).
type Strategy string

const (
	Single           Strategy = "single"             // one processor does all
	WeightCentric    Strategy = "weight-centric"     // output columns (or heads) are divided
	ActivationDivide Strategy = "activation-centric" // rows are divided
	Hybrid           Strategy = "hybrid"             // rows padded to a standard size, columns divided
	Padding          Strategy = "padding"            // one processor, rows padded to a standard size
	Pipe             Strategy = "pipe"               // one processor, several standard sizes in sequence
	// columns of the producer, then K of this operator: partial sums, one addition
	Paired Strategy = "paired"
)

// Axis is the dimension a decision divides.
type Axis string

const (
	AxisNone  Axis = ""
	AxisCols  Axis = "cols"  // output columns of a matmul or elementwise operator
	AxisRows  Axis = "rows"  // rows (tokens)
	AxisK     Axis = "k"     // reduction of a matmul
	AxisHeads Axis = "heads" // key/value heads of an attention
)

// Proc is a processor with everything legality needs to know of it, so that a plan can be checked
// and executed without the SoC file.
type Proc struct {
	Name    string            `json:"name" yaml:"name"`
	Kind    string            `json:"kind" yaml:"kind"` // cpu, gpu, npu
	Driver  string            `json:"driver" yaml:"driver"`
	Select  string            `json:"select,omitempty" yaml:"select,omitempty"`
	Options map[string]string `json:"options,omitempty" yaml:"options,omitempty"`
	Cores   []int             `json:"cores,omitempty" yaml:"cores,omitempty"` // CPU cores it occupies
	// Wait is how a lane notices that a call of an asynchronous processor is done; others ignore it.
	Wait capability.Waiting `json:"wait,omitempty" yaml:"wait,omitempty"`

	capability.Set `yaml:",inline"`

	// artifacts that hold the same weights refer to one binary
	Shares     bool  `json:"shares,omitempty" yaml:"shares,omitempty"`
	GraphBytes int64 `json:"graph_bytes,omitempty" yaml:"graph_bytes,omitempty"` // limit of one graph, 0: none
}

// Prediction is the expected time of one program, beside every single-processor placement.
type Prediction struct {
	Program string `json:"program" yaml:"program"` // "prefill@256", "decode"
	PlanNS  int64  `json:"plan_ns" yaml:"plan_ns"`
	LowNS   int64  `json:"low_ns" yaml:"low_ns"`
	HighNS  int64  `json:"high_ns" yaml:"high_ns"`
	// modelled, never measured: power_w of each processor times its busy time; 0: the SoC does not say
	EnergyUJ int64         `json:"energy_uj,omitempty" yaml:"energy_uj,omitempty"`
	Singles  []SingleTime  `json:"singles,omitempty" yaml:"singles,omitempty"`
	Sections []SectionTime `json:"sections,omitempty" yaml:"sections,omitempty"`
}

// SingleTime is the predicted time of a program executed by one processor alone.
type SingleTime struct {
	Proc string `json:"proc" yaml:"proc"`
	NS   int64  `json:"ns" yaml:"ns"`
}

// SectionTime is the predicted time of one execution of a section (one layer of a repeated one).
type SectionTime struct {
	Section string `json:"section" yaml:"section"`
	NS      int64  `json:"ns" yaml:"ns"`
}

// Solve reports one optimisation: whether it is proved, and the gap. Which engine found it, and how long that took, is
// solve's to tell: plans do not depend on it.
type Solve struct {
	Problem     string `json:"problem" yaml:"problem"`           // "partition layers@256"
	Status      string `json:"status" yaml:"status"`             // optimal, feasible, limit
	ObjectiveNS int64  `json:"objective_ns" yaml:"objective_ns"` // in Unit
	BoundNS     int64  `json:"bound_ns" yaml:"bound_ns"`         // in Unit
	Choices     int    `json:"choices" yaml:"choices"`           // size: candidate choices over all nodes
}

// Unit returns what ObjectiveNS and BoundNS count: "ns", but "nJ" or "bytes" where a problem is one of the least energy
// or memory.
func (s *Solve) Unit() string {
	switch {
	case s.Problem == "joint energy", strings.HasPrefix(s.Problem, "energy "):
		return "nJ"
	case s.Problem == "joint memory":
		return "bytes"
	}
	return "ns"
}

// UnitOf returns the unit of one of the plan's reports. Choices of schemes and sizes count energy where programs do.
func (p *Plan) UnitOf(report *Solve) string {
	const energy = "nJ"
	ofPrograms := slices.Contains([]string{"schemes", "buckets", "batches"}, report.Problem)
	countsEnergy := func(other Solve) bool { return other.Unit() == energy }
	if ofPrograms && slices.ContainsFunc(p.Solver, countsEnergy) {
		return energy
	}
	return report.Unit()
}

// Quality is what the schemes of a phase cost by the calibration: the sum of what each class of weights was
// measured to cost alone, as mean Kullback-Leibler divergence from float32 in nats a token. MaxKL is the
// limit of the workload, 0 where there is none. Only an execution tells what all of them cost together.
type Quality struct {
	Phase string  `json:"phase" yaml:"phase"` // prefill, decode
	KL    float64 `json:"mean_kl" yaml:"mean_kl"`
	MaxKL float64 `json:"max_kl,omitempty" yaml:"max_kl,omitempty"`
}

// ModelRef names the model a plan is for. Digest covers the configuration and, for models with
// weights, every tensor's bytes.
type ModelRef struct {
	Name   string `json:"name" yaml:"name"`
	Digest string `json:"digest" yaml:"digest"`
	EOS    []int  `json:"eos,omitempty" yaml:"eos,omitempty"` // token ids that end generation
	BOS    int    `json:"bos" yaml:"bos"`                     // -1: none
}

// SoCRef names the machine a plan is for.
type SoCRef struct {
	Name        string `json:"name" yaml:"name"`
	Digest      string `json:"digest" yaml:"digest"`
	Fingerprint string `json:"fingerprint,omitempty" yaml:"fingerprint,omitempty"`
	Simulated   bool   `json:"simulated,omitempty" yaml:"simulated,omitempty"` // times come from a simulation
	// some times were measured elsewhere and imported
	Imported bool   `json:"imported,omitempty" yaml:"imported,omitempty"`
	Control  string `json:"control" yaml:"control"` // processor that owns control steps
	// planned for its device: only processors with target data, as they execute there
	Target bool `json:"target,omitempty" yaml:"target,omitempty"`
}

// Times says what the plan's times are predicted from when that is no measurement by hetc; "" when it is.
func (s *SoCRef) Times() string {
	switch {
	case s.Simulated && s.Imported:
		return "simulated times and times measured elsewhere (imported)"
	case s.Simulated:
		return "simulated times"
	case s.Imported:
		return "times measured elsewhere (imported)"
	}
	return ""
}

// Input is the digest of one file solve read: kind "costs", "record", "workload", "calibration", "loads", "facts".
type Input struct {
	Kind   string `json:"kind" yaml:"kind"`
	Digest string `json:"digest" yaml:"digest"`
}

// Target says for what emit rewrote a plan that solve had made for a simulated SoC: its decisions are solve's but for
// those listed, its processors are those that execute it.
type Target struct {
	SoC string `json:"soc" yaml:"soc"` // the target's name
	// a twin, for the vendor's emulator and this CPU, of the plan for the device
	Emulator bool `json:"emulator,omitempty" yaml:"emulator,omitempty"`
	// Simulated: the times that the plan expects come from a simulation of the target, not from a measurement on it.
	Simulated bool       `json:"simulated,omitempty" yaml:"simulated,omitempty"`
	Fallbacks []Fallback `json:"fallbacks,omitempty" yaml:"fallbacks,omitempty"` // in the order of the decisions
}

// Fallback is a decision that emit was allowed to give to the control processor.
type Fallback struct {
	Node   string `json:"node" yaml:"node"`
	Rows   int    `json:"rows" yaml:"rows"`
	From   string `json:"from" yaml:"from"`     // the processors that solve had chosen, as Decision.ShareText
	Reason string `json:"reason" yaml:"reason"` // why one of them does not execute it
}

// Compiled is what the compiler of a device had said about the graphs of an operator when the plan was solved (compiler
// facts of a record). It holds sizes, and no times.
type Compiled struct {
	Node   string          `json:"node" yaml:"node"`
	Proc   string          `json:"proc" yaml:"proc"`
	Scheme op.Scheme       `json:"scheme" yaml:"scheme"`
	Copies int             `json:"copies" yaml:"copies"` // layers with weights of their own
	Graphs []CompiledGraph `json:"graphs" yaml:"graphs"` // ascending: one for each number of rows
	// AloneBytes is the size of the largest of the graphs by itself, weights included, and ChargedBytes that of the one
	// binary for all of them, in which they share the weights: of one copy.
	AloneBytes   int64 `json:"alone_bytes" yaml:"alone_bytes"`
	ChargedBytes int64 `json:"charged_bytes" yaml:"charged_bytes"`
}

// CompiledGraph is one of them.
type CompiledGraph struct {
	Rows int   `json:"rows" yaml:"rows"`    // of the graph
	For  []int `json:"for" yaml:"for,flow"` // ascending: numbers of rows of the programs that use it
	// buffer in main memory for what does not fit the processor's own; -1: not known
	SpillBytes int64 `json:"spill_bytes" yaml:"spill_bytes"`
	// Avoided are numbers of rows that would have done at the same predicted time, as far as it is known, and spill
	// more.
	Avoided []Spill `json:"avoided,omitempty" yaml:"avoided,omitempty"`
}

// Spill is the buffer in main memory that a graph of so many rows needs.
type Spill struct {
	Rows  int   `json:"rows" yaml:"rows"`
	Bytes int64 `json:"bytes" yaml:"bytes"`
}

// Sequences returns how many sequences the cache holds: the most that are decoded together.
func (p *Plan) Sequences() int {
	if count := len(p.Batches); count > 0 {
		return max(1, p.Batches[count-1])
	}
	return 1
}

// Decodes reports whether a program of that many rows decodes, a row of each sequence, rather than
// being a bucket of prefill.
func (p *Plan) Decodes(rows int) bool { return rows == 1 || slices.Contains(p.Batches, rows) }

// DecisionFor returns the decision for a node at a number of rows, nil when there is none.
func (p *Plan) DecisionFor(node string, rows int) *Decision {
	for i := range p.Decisions {
		if p.Decisions[i].Node == node && p.Decisions[i].Rows == rows {
			return &p.Decisions[i]
		}
	}
	return nil
}

// CalibrationInput is the kind of an input that packing needs again.
const CalibrationInput = "calibration"

// Calibration returns the digest of the calibration that the plan was made with, "" for none.
func (p *Plan) Calibration() string {
	for _, in := range p.Inputs {
		if in.Kind == CalibrationInput {
			return in.Digest
		}
	}
	return ""
}

// Proc returns the processor of that name, nil when there is none.
func (p *Plan) Proc(name string) *Proc {
	for i := range p.Procs {
		if p.Procs[i].Name == name {
			return &p.Procs[i]
		}
	}
	return nil
}

// LongFrom returns the smallest length of a prompt that the plan rotates otherwise than shorter ones (LongRoPE, dynamic
// NTK); 0: none.
func (p *Plan) LongFrom() (least int) {
	for i := range p.Program.Graphs {
		for _, node := range p.Program.Graphs[i].Graph.Nodes {
			if from := node.Op.LongFrom; from > 0 && (least == 0 || from < least) {
				least = from
			}
		}
	}
	return least
}
