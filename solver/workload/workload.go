// Package workload knows what a plan is optimised for: the lengths of prompts and answers, the precisions and numbers
// of rows that are permitted, the limits, and what follows from them for a model (Demand).
package workload

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/problem"
)

// Schema identifies the workload format.
const Schema = "hetc.workload/1"

// Workload is what a plan is optimised for: how long prompts and answers are, how many positions are
// cached, which precisions are permitted, and how prefill and decode count against each other.
type Workload struct {
	Schema string `json:"schema" yaml:"schema"`
	Name   string `json:"name,omitempty" yaml:"name,omitempty"`
	// Prompts is the distribution of prompt lengths. Empty: every bucket counts the same.
	Prompts Prompts `json:"prompts,omitempty" yaml:"prompts,omitempty"`
	// OutputTokens is the mean length of an answer; 0: what Prompts say, else defaultOutputTokens.
	OutputTokens int `json:"output_tokens,omitempty" yaml:"output_tokens,omitempty"`
	// Context is the number of positions the cache holds; 0: the model's, at most 2048.
	Context int `json:"context,omitempty" yaml:"context,omitempty"`
	// Cache is the type that keys and values are cached in, one of op.CacheTypes, or CacheBest; empty: f32.
	Cache op.Type `json:"cache,omitempty" yaml:"cache,omitempty"`
	// Quality permits every precision whose measured loss stays within a limit; it needs a calibration.
	Quality Quality `json:"quality,omitzero" yaml:"quality,omitempty"`
	// Outliers are what happens to activations that exceed a static scale; empty: OutliersBest.
	Outliers Outliers `json:"outliers,omitempty" yaml:"outliers,omitempty"`
	// Shadows says which products keep shadow outliers; empty: those that a limit of quality needs.
	Shadows Shadows `json:"shadows,omitzero" yaml:"shadows,omitempty"`
	// Attention is which positions a query attends to; empty: AttentionDense.
	Attention Attention `json:"attention,omitempty" yaml:"attention,omitempty"`
	// Density is the mean share of the positions that sparse attention keeps; 0: the smallest that a limit of quality
	// permits.
	Density float64 `json:"density,omitempty" yaml:"density,omitempty"`
	// ScaleBuckets is how many pairs of static scales an estimate of scores chooses from, one of op.BucketCounts; 0: 1.
	ScaleBuckets int `json:"scale_buckets,omitempty" yaml:"scale_buckets,omitempty"`
	// Memory bounds what a process that executes the plan holds; 0: no bound.
	Memory unit.Bytes `json:"memory,omitempty" yaml:"memory,omitempty"`
	// Minimise is what the plan is to take least of: the expected time (also where empty), energy or memory.
	Minimise problem.Measure `json:"minimise,omitempty" yaml:"minimise,omitempty"`
	// Limits bound the rest.
	Limits Limits `json:"limits,omitzero" yaml:"limits,omitempty"`
	// Schemes are the precisions each phase may use; empty: those that Quality permits, else the stored one.
	Schemes Schemes `json:"schemes,omitzero" yaml:"schemes,omitempty"`
	// Buckets are the numbers of rows prefill gets programs for; empty: powers of two.
	Buckets Rows `json:"buckets,omitempty" yaml:"buckets,omitempty,flow"`
	// Batches are the numbers of sequences that decode gets programs for besides one; empty: one sequence.
	Batches Rows `json:"batches,omitempty" yaml:"batches,omitempty,flow"`
	// Parallel says how many sequences wait to be decoded together; empty: every batch counts the same.
	Parallel []Parallel `json:"parallel,omitempty" yaml:"parallel,omitempty"`
	// Beside has a plan get programs with which one processor processes a prompt while another one decodes, where two
	// of them get more done so than all of them by turns.
	Beside bool `json:"beside,omitempty" yaml:"beside,omitempty"`
	// Drafts has requests that decode alone guess their next tokens, as many as pay; nil: none are guessed.
	Drafts *Drafts `json:"drafts,omitempty" yaml:"drafts,omitempty"`
	// ChunksInFlight is how many chunks of a prompt may be processed together, where that is faster; 0: one.
	ChunksInFlight int `json:"chunks_in_flight,omitempty" yaml:"chunks_in_flight,omitempty"`
	// Weights are the importance of a second of prefill and of a second of decode.
	Weights Weights `json:"weights,omitzero" yaml:"weights,omitempty"`
	// Experts say how capacity tiers are chosen, where solve is given the loads of experts.
	Experts Experts `json:"experts,omitzero" yaml:"experts,omitempty"`
}

// Outliers says what may happen to activations that exceed the static scale of their rows.
type Outliers string

const (
	OutliersClip   Outliers = "clip"   // they saturate
	OutliersShadow Outliers = "shadow" // what they exceed it by is multiplied beside the product (llm.npu 3.3)
	OutliersBest   Outliers = "best"   // in each class of products what a limit of quality takes least time with
)

// Shadows says which of the products with shadow outliers keep them, instead of those with which a limit of quality is
// kept in the least time. At most one is given.
type Shadows struct {
	// Prune is the share of products, in all layers, that lose them: those with the least ratio of the largest outlier
	// to what the scale holds (llm.npu 3.3, which prunes 0.85).
	Prune float64 `json:"prune,omitempty" yaml:"prune,omitempty"`
	// Slower is the share of the expected time without any that the kept ones may add: those are kept that are worth
	// most.
	Slower float64 `json:"slower,omitempty" yaml:"slower,omitempty"`
}

// Permits reports whether products may have the scheme. Schemes without one static scale for all rows have no outliers.
func (o Outliers) Permits(scheme op.Scheme) bool {
	if !scheme.QuantisedRows() || scheme.Scales() != 1 {
		return true
	}
	switch o {
	case OutliersClip:
		return !scheme.Shadow()
	case OutliersShadow:
		return scheme.Shadow()
	}
	return true
}

// Attention says which cached positions a query attends to.
type Attention string

const (
	AttentionDense  Attention = "dense"  // to all
	AttentionSparse Attention = "sparse" // in prompts to those with the largest estimated scores (shadowAttn)
	AttentionBest   Attention = "best"   // so in programs where that takes less time, else to all
)

// Sparse reports whether some program may have sparse attention.
func (a Attention) Sparse() bool { return a == AttentionSparse || a == AttentionBest }

// Densities are the shares that sparse attention is measured with where a workload does not say one, as calibrations
// list them.
var Densities = []float64{0.05, 0.1, 0.2, 0.4}

// Rows are ascending numbers of rows that programs are for, or AtMost some of them, which solve then chooses.
type Rows []int

// AtMost asks solve to choose at most n numbers of rows.
func AtMost(n int) Rows { return Rows{-n} }

// Max returns the n of AtMost, 0 for a list.
func (r Rows) Max() int {
	if len(r) == 1 && r[0] < 0 {
		return -r[0]
	}
	return 0
}

// listed returns the rows of a list; nil for AtMost.
func (r Rows) listed() []int {
	if r.Max() > 0 {
		return nil
	}
	return r
}

// Parallel is how often a number of sequences are decoded together.
type Parallel struct {
	Sequences int     `json:"sequences" yaml:"sequences" decode:"required"`
	Share     float64 `json:"share" yaml:"share"` // of the tokens decoded; shares need not add up to 1
}

// Schemes are the permitted precisions by phase. The model's last matrix, which has one row in both phases,
// may use Head's instead; empty: decode's. Both phases have it in one precision, so that it is stored once, unless
// PrefillHead says which ones prefill may use.
type Schemes struct {
	Prefill     []op.Scheme `json:"prefill,omitempty" yaml:"prefill,omitempty,flow"`
	Decode      []op.Scheme `json:"decode,omitempty" yaml:"decode,omitempty,flow"`
	Head        []op.Scheme `json:"head,omitempty" yaml:"head,omitempty,flow"`
	PrefillHead []op.Scheme `json:"prefill_head,omitempty" yaml:"prefill_head,omitempty,flow"`
}

// Quality bounds what a plan may lose.
type Quality struct {
	MaxKL KLLimit `json:"max_kl,omitzero" yaml:"max_kl,omitempty" decode:"required"`
}

// KLLimit is the most that the schemes of each phase may cost by the calibration: the mean Kullback-Leibler
// divergence from float32 in nats a token. 0 is no limit, and no permission either; Lossless permits what costs
// nothing.
type KLLimit struct {
	Prefill float64 `json:"prefill,omitempty" yaml:"prefill,omitempty"`
	Decode  float64 `json:"decode,omitempty" yaml:"decode,omitempty"`
}

// CacheBest has solve choose the type of the cache.
const CacheBest op.Type = "best"

// Caches returns the types that keys and values may be cached in, the most exact one first.
func (w *Workload) Caches() []op.Type {
	if w.Cache == CacheBest {
		return op.CacheTypes
	}
	return []op.Type{cmp.Or(w.Cache, op.F32)}
}

// Limits of quality with a meaning of their own: Lossless is what a file writes as 0, LargestKL one that nothing
// exceeds.
const (
	Lossless  = math.SmallestNonzeroFloat64
	LargestKL = 1e6
)

// Measured reports whether what schemes lose has to be known: without that only a limit of nothing can be kept.
func (k KLLimit) Measured() bool { return k.Prefill > Lossless || k.Decode > Lossless }

// Weights weigh the phases.
type Weights struct {
	Prefill float64 `json:"prefill" yaml:"prefill"`
	Decode  float64 `json:"decode" yaml:"decode"`
}

// Defaults of a workload that does not say otherwise.
const (
	defaultContext      = 2048
	defaultOutputTokens = 128
	defaultPrompt       = 256 // tokens cached when decoding starts
	defaultMinBucket    = 16
	defaultMaxBucket    = 512
)

// Default returns what a plan is made for without a workload: prompts of every bucket, stored precision, prefill and
// decode of equal weight.
func Default() *Workload { return &Workload{Schema: Schema} }

// Edited returns a copy of a workload with a change; nil stands for Default. The copy shares lists and maps: change
// must replace them whole.
func Edited(work *Workload, change func(*Workload)) *Workload {
	edited := *Default()
	if work != nil {
		edited = *work
	}
	change(&edited)
	return &edited
}

// Read reads a workload from a YAML or JSON file. Mistakes are of class ClassInput, with their line.
func Read(path string) (*Workload, error) {
	doc, err := decode.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return decodeDocument(doc)
}

// Parse is Read of bytes; name is shown in errors.
func Parse(name string, data []byte) (*Workload, error) {
	doc, err := decode.Parse(name, data)
	if err != nil {
		return nil, err
	}
	return decodeDocument(doc)
}

// Title names the workload in messages.
func (w *Workload) Title() string {
	if w.Name == "" {
		return "workload"
	}
	return fmt.Sprintf("workload %q", w.Name)
}

// Digest returns the identity of the workload: hex SHA-256 of its canonical JSON.
func (w *Workload) Digest() (string, error) {
	text, err := json.Marshal(w)
	if err != nil {
		return "", fmt.Errorf("digest of workload %q: %w", w.Name, err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}
