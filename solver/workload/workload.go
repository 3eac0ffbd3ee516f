// Package workload knows what a plan is optimised for: the lengths of prompts and answers, the precisions and numbers of rows
// that are permitted, the limits, and what follows from them for a model (Demand).
package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/problem"
)

// WorkloadSchema identifies the workload format.
const Schema = "hetc.workload/1"

// Workload is what a plan is optimised for: how long prompts and answers are, how many positions are
// cached, which precisions are permitted, and how prefill and decode count against each other.
type Workload struct {
	Schema string `json:"schema" yaml:"schema"`
	Name   string `json:"name,omitempty" yaml:"name,omitempty"`
	// Prompts is the distribution of prompt lengths. Empty: every bucket counts the same.
	Prompts Prompts `json:"prompts,omitempty" yaml:"prompts,omitempty"`
	// OutputTokens is the mean length of an answer; 0: what Prompts say, else DefaultOutputTokens.
	OutputTokens int `json:"output_tokens,omitempty" yaml:"output_tokens,omitempty"`
	// Context is the number of positions the cache holds; 0: the model's, at most DefaultContext.
	Context int `json:"context,omitempty" yaml:"context,omitempty"`
	// Quality permits every precision whose measured loss stays within a limit; it needs a calibration.
	Quality Quality `json:"quality,omitzero" yaml:"quality,omitempty"`
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
	// Weights are the importance of a second of prefill and of a second of decode.
	Weights Weights `json:"weights,omitzero" yaml:"weights,omitempty"`
	// Experts say how capacity tiers are chosen, where solve is given the loads of experts.
	Experts Experts `json:"experts,omitzero" yaml:"experts,omitempty"`
}

// Rows are ascending numbers of rows that programs are for, or AtMost some of them, which solve then chooses.
type Rows []int

// AtMost asks solve to choose at most n numbers of rows.
func AtMost(n int) Rows { return Rows{-n} }

// Max is the n of AtMost, 0 for a list.
func (r Rows) Max() int {
	if len(r) == 1 && r[0] < 0 {
		return -r[0]
	}
	return 0
}

// atMost is how AtMost is written.
type atMost struct {
	Max int `json:"max" yaml:"max" decode:"required"`
}

// UnmarshalNode reads "[64, 256]" or "{max: 8}".
func (r *Rows) UnmarshalNode(n *decode.Node) error {
	if !n.IsMapping() {
		type plain []int
		return n.Decode((*plain)(r))
	}
	var x atMost
	if err := n.Decode(&x); err != nil {
		return err
	}
	if x.Max < 1 || x.Max > maxBuckets {
		return n.Errorf("at most %d are to be chosen, want 1..%d", x.Max, maxBuckets)
	}
	*r = AtMost(x.Max)
	return nil
}

// MarshalJSON writes what UnmarshalNode reads.
func (r Rows) MarshalJSON() ([]byte, error) {
	if n := r.Max(); n > 0 {
		return json.Marshal(atMost{n})
	}
	return json.Marshal([]int(r))
}

// MarshalYAML writes what UnmarshalNode reads.
func (r Rows) MarshalYAML() (any, error) {
	if n := r.Max(); n > 0 {
		return atMost{n}, nil
	}
	return []int(r), nil
}

// Parallel is how often a number of sequences are decoded together.
type Parallel struct {
	Sequences int     `json:"sequences" yaml:"sequences" decode:"required"`
	Share     float64 `json:"share" yaml:"share"` // of the tokens decoded; shares need not add up to 1
}

// Schemes are the permitted precisions by phase. The model's last matrix, which has one row in both phases,
// may use Head's instead; empty: decode's.
type Schemes struct {
	Prefill []op.Scheme `json:"prefill,omitempty" yaml:"prefill,omitempty,flow"`
	Decode  []op.Scheme `json:"decode,omitempty" yaml:"decode,omitempty,flow"`
	Head    []op.Scheme `json:"head,omitempty" yaml:"head,omitempty,flow"`
}

// Quality bounds what a plan may lose.
type Quality struct {
	MaxKL KLLimit `json:"max_kl,omitzero" yaml:"max_kl,omitempty" decode:"required"`
}

// KLLimit is the most that the schemes of a phase may cost by the calibration: the mean Kullback-Leibler
// divergence from float32 in nats a token. 0 is no limit, and then no permission either; Lossless permits what costs nothing.
type KLLimit struct {
	Prefill float64 `json:"prefill,omitempty" yaml:"prefill,omitempty"`
	Decode  float64 `json:"decode,omitempty" yaml:"decode,omitempty"`
}

// Lossless is the limit that a file writes as 0.
const Lossless = math.SmallestNonzeroFloat64

// UnmarshalNode reads "{prefill: 0.001, decode: 0.02}" or a plain number, which limits both phases.
func (k *KLLimit) UnmarshalNode(n *decode.Node) error {
	x := KLLimit{math.NaN(), math.NaN()} // NaN: not said
	if n.IsMapping() {
		type plain KLLimit
		if err := n.Decode((*plain)(&x)); err != nil {
			return err
		}
	} else {
		if err := n.Decode(&x.Prefill); err != nil {
			return err
		}
		x.Decode = x.Prefill
	}
	said := func(v float64) float64 {
		switch {
		case math.IsNaN(v):
			return 0
		case v == 0:
			return Lossless
		}
		return v
	}
	*k = KLLimit{said(x.Prefill), said(x.Decode)}
	return nil
}

// Weights weigh the phases.
type Weights struct {
	Prefill float64 `json:"prefill" yaml:"prefill"`
	Decode  float64 `json:"decode" yaml:"decode"`
}

// Defaults of a workload that does not say otherwise.
const (
	DefaultContext      = 2048
	DefaultOutputTokens = 128
	defaultPrompt       = 256 // tokens cached when decoding starts
	defaultMinBucket    = 16
	defaultMaxBucket    = 512
)

// DefaultWorkload is what a plan is made for when nobody says: prompts of every bucket, stored
// precision, prefill and decode of equal weight.
func Default() *Workload { return &Workload{Schema: Schema} }

// Edited is a copy of a workload with a change; nil is DefaultWorkload. Lists and maps are shared: change must replace them whole.
func Edited(w *Workload, change func(*Workload)) *Workload {
	c := *Default()
	if w != nil {
		c = *w
	}
	change(&c)
	return &c
}

// ReadWorkload reads a workload from a YAML or JSON file. Mistakes are of class ClassInput, with
// their line.
func Read(path string) (*Workload, error) {
	d, err := decode.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return decodeDocument(d)
}

// ParseWorkload is ReadWorkload of bytes; name is shown in errors.
func Parse(name string, data []byte) (*Workload, error) {
	d, err := decode.Parse(name, data)
	if err != nil {
		return nil, err
	}
	return decodeDocument(d)
}

func decodeDocument(d *decode.Document) (*Workload, error) {
	// What is left out has a default; a 0 that somebody wrote would silently be the same.
	no := math.NaN()
	w := Workload{OutputTokens: notSaid, Context: notSaid, Memory: notSaid, Weights: Weights{no, no},
		Limits:  Limits{EnergyMJ: no, PrefillMS: no, DecodeMS: no, OpenMS: no},
		Experts: Experts{MaxDrop: no, MaxLayerDrop: no, MaxLost: no, MaxLayerLost: no, MaxUSToken: no}}
	if err := d.Into(Schema, &w); err != nil {
		return nil, err
	}
	w.Schema = Schema
	list := w.settle()
	switch err := w.Validate().(type) {
	case nil:
	case *diag.Diagnostic:
		list = append(list, err)
	case diag.List:
		list = append(list, err...)
	default:
		return nil, err
	}
	for _, e := range list {
		e.Path = d.At(keys(e.Path)...) + ": " + e.Path
	}
	if err := list.Err(); err != nil {
		return nil, err
	}
	return &w, nil
}

// notSaid is what a whole number has that a file leaves out.
const notSaid = math.MinInt64

// settle gives what a file leaves out its zero value, and reports zeros that the file says where they mean nothing.
func (w *Workload) settle() (list diag.List) {
	zero := func(path, what string) {
		e := diag.New(diag.ClassInput, "%s", what).WithCode("workload.value")
		e.Path = path
		list = append(list, e)
	}
	number := func(path string, x *int64, what string) {
		if *x == notSaid {
			*x = 0
		} else if *x == 0 {
			zero(path, what)
		}
	}
	output, context := int64(w.OutputTokens), int64(w.Context)
	number("output_tokens", &output, "is 0 tokens, want at least 1 (leave it out for the prompts' own; weights: {decode: 0} leaves decode out of account)")
	number("context", &context, "is 0 positions, want at least 1 (leave it out for the model's)")
	number("memory", (*int64)(&w.Memory), "bound is 0 bytes, want more (leave it out for no bound)")
	w.OutputTokens, w.Context = int(output), int(context)
	for _, x := range []struct {
		path  string
		value *float64
	}{
		{"limits.energy_mj", &w.Limits.EnergyMJ}, {"limits.prefill_ms", &w.Limits.PrefillMS}, {"limits.decode_ms", &w.Limits.DecodeMS}, {"limits.open_ms", &w.Limits.OpenMS},
		{"experts.max_us_per_token", &w.Experts.MaxUSToken}, {"experts.max_drop", &w.Experts.MaxDrop}, {"experts.max_layer_drop", &w.Experts.MaxLayerDrop},
		{"experts.max_lost", &w.Experts.MaxLost}, {"experts.max_layer_lost", &w.Experts.MaxLayerLost},
	} {
		if math.IsNaN(*x.value) {
			*x.value = 0
		} else if *x.value == 0 {
			zero(x.path, "limit is 0, want more (leave it out for no limit)")
		}
	}
	switch p, d := math.IsNaN(w.Weights.Prefill), math.IsNaN(w.Weights.Decode); {
	case p && d:
		w.Weights = Weights{}
	case p:
		w.Weights.Prefill = 1
	case d:
		w.Weights.Decode = 1
	case w.Weights == Weights{}:
		zero("weights", "both are 0, want one above 0: nothing would count (leave them out for 1 and 1)")
	}
	return list
}

// keys are the parts of a path such as "prompts[3].share".
func keys(path string) (out []any) {
	for _, part := range strings.Split(path, ".") {
		name, rest, _ := strings.Cut(part, "[")
		out = append(out, name)
		if i, err := strconv.Atoi(strings.TrimSuffix(rest, "]")); err == nil {
			out = append(out, i)
		}
	}
	return out
}

// Limits of a workload.
const (
	maxPrompts = 1 << 16
	maxBuckets = 64
	maxBatches = 16
	maxBatch   = 256
	maxLength  = 1 << 22
	maxMemory  = 1 << 50
)

// Validate reports everything that makes no sense.
func (w *Workload) Validate() error {
	var list diag.List
	fail := func(path, format string, args ...any) {
		d := diag.New(diag.ClassInput, format, args...).WithCode("workload.value")
		d.Path = path
		list = append(list, d)
	}
	w.Experts.validate(fail)
	if w.Schema != Schema {
		fail("schema", "schema is %q, want %q", w.Schema, Schema)
	}
	if len(w.Prompts) > maxPrompts {
		fail("prompts", "%d lengths, want at most %d", len(w.Prompts), maxPrompts)
	}
	total := 0.0
	for i, p := range w.Prompts {
		if p.Tokens < 1 || p.Tokens > maxLength {
			fail(fmt.Sprintf("prompts[%d]", i), "length is %d tokens, want 1..%d", p.Tokens, maxLength)
		}
		if !(p.Share >= 0 && p.Share <= 1e12) {
			fail(fmt.Sprintf("prompts[%d].share", i), "share is %v, want 0..1e12", p.Share)
		}
		if !(p.Output >= 0 && p.Output <= maxLength) {
			fail(fmt.Sprintf("prompts[%d].output", i), "answer has %v tokens, want 0..%d", p.Output, maxLength)
		}
		total += p.Share
	}
	if len(w.Prompts) > 0 && !(total > 0) {
		fail("prompts", "no length has a share above 0")
	}
	if w.OutputTokens < 0 || w.OutputTokens > maxLength {
		fail("output_tokens", "is %d, want 0..%d", w.OutputTokens, maxLength)
	}
	if w.Context < 0 || w.Context > maxLength {
		fail("context", "is %d positions, want 0..%d", w.Context, maxLength)
	}
	for _, s := range []struct {
		path string
		list []op.Scheme
	}{{"schemes.prefill", w.Schemes.Prefill}, {"schemes.decode", w.Schemes.Decode}, {"schemes.head", w.Schemes.Head}} {
		for i, x := range s.list {
			if _, err := op.ParseScheme(string(x)); err != nil {
				fail(fmt.Sprintf("%s[%d]", s.path, i), "%v", err)
			}
			if slices.Contains(s.list[:i], x) {
				fail(fmt.Sprintf("%s[%d]", s.path, i), "scheme %q appears twice", x)
			}
		}
	}
	for _, x := range []struct {
		path string
		max  float64
	}{{"quality.max_kl.prefill", w.Quality.MaxKL.Prefill}, {"quality.max_kl.decode", w.Quality.MaxKL.Decode}} {
		if !(x.max >= 0 && x.max <= 1e6) {
			fail(x.path, "limit is %v nats a token, want 0..1e6 (without a limit precision stays as stored)", x.max)
		}
	}
	switch w.Minimise {
	case "", problem.Time, problem.Energy, problem.Memory:
	default:
		fail("minimise", "is %q, want %q, %q or %q", w.Minimise, problem.Time, problem.Energy, problem.Memory)
	}
	w.Limits.validate(fail)
	if w.Memory < 0 || w.Memory > maxMemory {
		fail("memory", "bound is %v, want 0..%v", w.Memory, unit.Bytes(maxMemory))
	}
	if len(w.Buckets) > maxBuckets {
		fail("buckets", "%d buckets, want at most %d", len(w.Buckets), maxBuckets)
	}
	if n := w.Buckets.Max(); n > maxBuckets {
		fail("buckets.max", "is %d, want 1..%d", n, maxBuckets)
	}
	if n := w.Batches.Max(); n > maxBatches {
		fail("batches.max", "is %d, want 1..%d", n, maxBatches)
	} else if n > 0 && len(w.Parallel) == 0 {
		fail("batches.max", "batches cannot be chosen where nothing says how many sequences come together: want parallel, or a list")
	}
	for i, b := range w.Buckets {
		switch {
		case w.Buckets.Max() > 0:
		case b < 2 || b > maxLength:
			fail(fmt.Sprintf("buckets[%d]", i), "bucket of %d rows, want 2..%d (one row is decode, which is always there)", b, maxLength)
		case i > 0 && w.Buckets[i-1] >= b:
			fail(fmt.Sprintf("buckets[%d]", i), "bucket %d follows %d, want ascending order", b, w.Buckets[i-1])
		}
	}
	if len(w.Batches) > maxBatches {
		fail("batches", "%d batches, want at most %d", len(w.Batches), maxBatches)
	}
	for i, b := range w.Batches {
		switch {
		case w.Batches.Max() > 0:
		case b < 2 || b > maxBatch:
			fail(fmt.Sprintf("batches[%d]", i), "batch of %d sequences, want 2..%d (one sequence is always there)", b, maxBatch)
		case i > 0 && w.Batches[i-1] >= b:
			fail(fmt.Sprintf("batches[%d]", i), "batch %d follows %d, want ascending order", b, w.Batches[i-1])
		case slices.Contains(w.Buckets, b):
			fail(fmt.Sprintf("batches[%d]", i), "%d is a bucket of prefill too, and a number of rows has one program (prompts of a bucket that is left out go to the next)", b)
		}
	}
	if len(w.Parallel) > maxBatch {
		fail("parallel", "%d numbers of sequences, want at most %d", len(w.Parallel), maxBatch)
	}
	total = 0
	for i, p := range w.Parallel {
		if p.Sequences < 1 || p.Sequences > maxBatch || i > 0 && w.Parallel[i-1].Sequences >= p.Sequences {
			fail(fmt.Sprintf("parallel[%d].sequences", i), "is %d, want 1..%d in ascending order", p.Sequences, maxBatch)
		}
		if !(p.Share >= 0 && p.Share <= 1e12) {
			fail(fmt.Sprintf("parallel[%d].share", i), "share is %v, want 0..1e12", p.Share)
		}
		total += p.Share
	}
	if len(w.Parallel) > 0 && !(total > 0) {
		fail("parallel", "no number of sequences has a share above 0")
	}
	for _, x := range []struct {
		path  string
		value float64
	}{{"weights.prefill", w.Weights.Prefill}, {"weights.decode", w.Weights.Decode}} {
		if !(x.value >= 0 && x.value <= 1e12) {
			fail(x.path, "weight is %v, want 0..1e12", x.value)
		}
	}
	return list.Err()
}

// title names the workload in messages.
func (w *Workload) Title() string {
	if w.Name == "" {
		return "workload"
	}
	return fmt.Sprintf("workload %q", w.Name)
}

// Digest is the identity of the workload: hex SHA-256 of its canonical JSON.
func (w *Workload) Digest() (string, error) {
	b, err := json.Marshal(w)
	if err != nil {
		return "", fmt.Errorf("digest of workload %q: %w", w.Name, err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

// demand is a workload applied to a model: everything has a value.
type Demand struct {
	Context int
	Buckets []int // ascending, without decode
	Batches []int // ascending, without one
	// share is each bucket's part of the expected prefill work, in calls per prompt; it includes the
	// calls that full buckets of a longer prompt make.
	Share           []float64
	Prefill, Decode []op.Scheme
	Head            []op.Scheme // instead of decode's, none: those
	MaxKL           KLLimit
	OutputTokens    int
	Weights         Weights
	contexts        map[int]int      // by rows: positions an attention works on, on average
	Lengths         map[int][]Prompt // by bucket: the tokens of its calls, shares adding up to 1
	Prompts         Prompts          // empty: none are given, and every bucket counts the same
	steps           map[int]float64  // by rows of decode's programs: executions for each token decoded; nil: nothing says how many sequences come together
}

// decodes are the numbers of rows of decode's programs.
func (d *Demand) DecodeRows() []int { return append([]int{1}, d.Batches...) }

// rows are those of all programs.
func (d *Demand) Rows() []int { return append(d.DecodeRows(), d.Buckets...) }

// decodeNS is what a program of that many rows counts for in the time of an answer.
func (d *Demand) DecodeNS(rows int, ns float64) float64 {
	if d.steps == nil {
		return float64(d.OutputTokens) * ns / float64(rows*len(d.DecodeRows()))
	}
	return float64(float64(d.OutputTokens)*ns) * d.steps[rows]
}

// decodeSteps says how often each of decode's programs is executed for a token. Without a distribution of sequences,
// tokens are decoded evenly in batches of every size, and each is its part of its batch; with one, sequences that come together go
// to the smallest batch that holds them, those beyond the largest one after the other.
func (d *Demand) decodeSteps(parallel []Parallel) {
	if len(parallel) == 0 {
		return
	}
	d.steps = map[int]float64{}
	rows := d.DecodeRows()
	total := 0.0
	for _, p := range parallel {
		total += p.Share
	}
	for _, p := range parallel {
		full, left := problem.Cut(p.Sequences, rows[len(rows)-1])
		each := p.Share / total / float64(p.Sequences)
		d.steps[rows[len(rows)-1]] += float64(each * float64(full))
		d.steps[rows[sort.SearchInts(rows, left)]] += each
	}
}

// contextAt is the number of cached positions, the new rows included, that attention is priced for.
func (d *Demand) ContextAt(rows int) int { return min(max(d.contexts[rows], rows), d.Context) }

// apply fills in what the workload leaves open, for a model with that many positions.
func (w *Workload) Apply(maxContext int) (*Demand, error) {
	d := &Demand{
		Prompts: w.Prompts,
		Context: w.Context, OutputTokens: w.OutputTokens, Weights: w.Weights,
		Prefill: w.Schemes.Prefill, Decode: w.Schemes.Decode, Head: w.Schemes.Head,
	}
	if d.Context == 0 {
		d.Context = min(maxContext, DefaultContext)
	}
	if d.Context > maxContext {
		return nil, diag.New(diag.ClassInput, "%s: context is %d positions, and the model has %d", w.Title(), d.Context, maxContext).
			WithHint("set context to at most %d", maxContext)
	}
	if d.OutputTokens == 0 {
		d.OutputTokens = int(math.Round(w.Prompts.answer()))
	}
	if d.OutputTokens == 0 {
		d.OutputTokens = DefaultOutputTokens
	}
	if d.Batches = slices.Clone(w.Batches); w.Batches.Max() > 0 {
		d.Batches = w.batchLadder()
	}
	d.decodeSteps(w.Parallel)
	if d.Weights == (Weights{}) {
		d.Weights = Weights{1, 1}
	}
	d.MaxKL = w.Quality.MaxKL
	for _, x := range []struct {
		list *[]op.Scheme
		max  float64
	}{{&d.Prefill, d.MaxKL.Prefill}, {&d.Decode, d.MaxKL.Decode}} {
		switch {
		case len(*x.list) > 0:
		case x.max > 0:
			*x.list = op.Schemes
		default:
			*x.list = []op.Scheme{op.A32W32}
		}
	}
	switch d.Buckets = slices.Clone(w.Buckets); {
	case w.Buckets.Max() > 0:
		if len(d.Prompts) == 0 {
			d.Prompts = uniform(min(defaultMaxBucket, d.Context))
		}
		d.Buckets = slices.DeleteFunc(d.Prompts.ladder(d.Context), func(b int) bool { return slices.Contains(d.Batches, b) })
	case len(d.Buckets) == 0:
		for b := defaultMinBucket; b <= min(defaultMaxBucket, d.Context); b *= 2 {
			if !slices.Contains(d.Batches, b) { // a number of rows has one program
				d.Buckets = append(d.Buckets, b)
			}
		}
		if len(d.Buckets) == 0 && d.Context > 1 {
			d.Buckets = []int{d.Context}
		}
	}
	if n := len(d.Buckets); n > 0 && d.Buckets[n-1] > d.Context {
		return nil, diag.New(diag.ClassInput, "%s: a bucket has %d rows, but the context holds only %d", w.Title(), d.Buckets[n-1], d.Context).
			WithHint("%s", roomFor("bucket", d.Buckets[n-1], maxContext))
	}
	d.Share = make([]float64, len(d.Buckets))
	d.contexts = map[int]int{}
	d.decodeAt(defaultPrompt + d.OutputTokens/2)
	d.Lengths = map[int][]Prompt{}
	if len(d.Prompts) == 0 {
		below := 1
		for i, b := range d.Buckets {
			d.Share[i] = 1 / float64(len(d.Share))
			d.Lengths[b] = spread(below, b)
			below = b
		}
		return d, nil
	}
	total, mean := 0.0, 0.0
	for _, p := range d.Prompts {
		if p.Tokens > d.Context {
			return nil, diag.New(diag.ClassInput, "%s: a prompt has %d tokens, but the context holds only %d", w.Title(), p.Tokens, d.Context).
				WithHint("%s", roomFor("prompt", p.Tokens, maxContext))
		}
		total += p.Share
		mean += float64(p.Share * float64(p.Tokens))
	}
	d.decodeAt(int(mean/total) + d.OutputTokens/2)
	positions := make([]float64, len(d.Buckets))
	lengths := make([][lengthBins + 1]float64, len(d.Buckets))
	for _, p := range d.Prompts {
		if len(d.Buckets) == 0 {
			break
		}
		share := p.Share / total
		call := func(i, rows int, times, done float64) { // done: positions after each of them, on average
			d.Share[i] += float64(share * times)
			positions[i] += float64(share * times * done)
			lengths[i][(rows*lengthBins+d.Buckets[i]-1)/d.Buckets[i]] += float64(share * times)
		}
		last := len(d.Buckets) - 1
		largest := d.Buckets[last]
		full, left := problem.Cut(p.Tokens, largest)
		if full > 0 {
			call(last, largest, float64(full), float64(largest)*float64(full+1)/2)
		}
		if left > 1 {
			call(sort.SearchInts(d.Buckets, left), left, 1, float64(p.Tokens))
		}
	}
	below := 1
	for i, b := range d.Buckets {
		if d.Share[i] > 0 {
			d.contexts[b] = int(positions[i] / d.Share[i])
			for k, share := range lengths[i] {
				if share > 0 {
					d.Lengths[b] = append(d.Lengths[b], Prompt{Tokens: max(1, k*b/lengthBins), Share: share / d.Share[i]})
				}
			}
		} else {
			d.Lengths[b] = spread(below, b)
		}
		below = b
	}
	return d, nil
}

// decodeAt sets the positions that a decoded row attends to on average.
func (d *Demand) decodeAt(positions int) {
	for _, r := range d.DecodeRows() {
		d.contexts[r] = positions
	}
}

// lengthBins is how many lengths of calls are told apart within a bucket.
const lengthBins = 32

// spread is lengths spread evenly over what a bucket takes: more than the one below it, at most its own.
func spread(below, bucket int) []Prompt {
	const samples = 8
	var out []Prompt
	for k := 1; k <= samples; k++ {
		out = append(out, Prompt{Tokens: below + (bucket-below)*k/samples, Share: 1.0 / samples})
	}
	return out
}

// roomFor is the way out of a prompt or bucket that is longer than the workload's context, in words that the model's own
// positions permit.
func roomFor(what string, rows, maxContext int) string {
	if rows > maxContext {
		return fmt.Sprintf("the model has %d positions: shorten the %s to that, or leave it out", maxContext, what)
	}
	return fmt.Sprintf("set context to at least %d (the model has %d positions), or leave the %s out", rows, maxContext, what)
}

// AsPrompts are the prompts that a workload stands for, written out: without any, those that fill each bucket evenly.
func (d *Demand) AsPrompts(w *Workload) []Prompt {
	if len(w.Prompts) > 0 {
		return w.Prompts
	}
	var out []Prompt
	for i, b := range d.Buckets {
		for _, x := range d.Lengths[b] {
			out = append(out, Prompt{Tokens: x.Tokens, Share: float64(d.Share[i] * x.Share)})
		}
	}
	return out
}
