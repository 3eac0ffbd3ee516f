package workload

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/problem"
)

// Demand is a workload applied to a model: everything has a value.
type Demand struct {
	Context int     // positions that the cache holds
	Cache   op.Type // in which they are cached: the most exact type of those permitted
	Buckets []int   // rows of prefill's programs, ascending
	Batches []int   // rows of decode's programs but one, ascending
	// Share is the expected number of calls of each bucket's program per prompt. It includes the calls in which a
	// longer prompt fills the largest bucket.
	Share           []float64
	Prefill, Decode []op.Scheme
	Head            []op.Scheme // instead of Decode for the last matrix; empty: Decode
	PrefillHead     []op.Scheme // of the last matrix in prefill; empty: the one that decode has
	MaxKL           KLLimit
	OutputTokens    int
	Weights         Weights
	Lengths         map[int][]Prompt // by bucket: the tokens of its calls, shares adding up to 1
	Attention       Attention        // never empty
	Density         float64          // 0: not said
	ScaleBuckets    int              // pairs of scales of an estimate, 0: one
	Beside          bool             // programs for work side by side are wanted
	Drafts          *Drafts          // nil: tokens are not to be guessed
	InFlight        int              // chunks of a prompt that may be processed together
	Prompts         Prompts          // empty: none are given, and every bucket counts the same

	contexts map[int]int // by rows: positions that attention works on, on average
	// steps are the executions of each of decode's programs for one decoded token, by rows; nil: nothing says how
	// many sequences come together.
	steps map[int]float64
}

// Apply fills in what the workload leaves open, for a model with that many positions.
func (w *Workload) Apply(maxContext int) (*Demand, error) {
	demand := &Demand{
		Context: w.Context, OutputTokens: w.OutputTokens, Weights: w.Weights, Prompts: w.Prompts,
		Cache:     w.Caches()[0],
		MaxKL:     w.Quality.MaxKL,
		Prefill:   w.permitted(w.Schemes.Prefill, w.Quality.MaxKL.Prefill),
		Decode:    w.permitted(w.Schemes.Decode, w.Quality.MaxKL.Decode),
		Attention: cmp.Or(w.Attention, AttentionDense), Density: w.Density,
		ScaleBuckets: w.ScaleBuckets,
		Head:         w.Schemes.Head, PrefillHead: w.Schemes.PrefillHead,
		Beside: w.Beside, Drafts: w.Drafts, InFlight: max(1, w.ChunksInFlight),
		contexts: map[int]int{}, Lengths: map[int][]Prompt{},
	}
	if demand.Context == 0 {
		demand.Context = min(maxContext, defaultContext)
	}
	if demand.Context > maxContext {
		return nil, diag.New(diag.ClassInput, "%s: context is %d positions, and the model has %d",
			w.Title(), demand.Context, maxContext).
			WithHint("set context to at most %d", maxContext)
	}
	// What was said counts first, then what the prompts' answers show, then a default.
	if demand.OutputTokens == 0 {
		demand.OutputTokens = int(math.Round(w.Prompts.answer()))
	}
	if demand.OutputTokens == 0 {
		demand.OutputTokens = defaultOutputTokens
	}
	if demand.Weights == (Weights{}) {
		demand.Weights = Weights{1, 1}
	}
	demand.Batches = slices.Clone(w.Batches)
	if w.Batches.Max() > 0 {
		demand.Batches = w.batchLadder()
	}
	demand.countSteps(w.Parallel)
	demand.setBuckets(w.Buckets)
	// A prompt never fills a bucket that is longer than the context.
	if n := len(demand.Buckets); n > 0 && demand.Buckets[n-1] > demand.Context {
		return nil, demand.beyondContext(w, "a bucket has %d rows", "bucket", demand.Buckets[n-1], maxContext)
	}
	demand.Share = make([]float64, len(demand.Buckets))
	if len(demand.Prompts) == 0 {
		// Without prompts decode is timed in the middle of an answer to one of a usual length.
		demand.attendWhileDecoding(defaultPrompt + demand.OutputTokens/2)
		demand.shareEvenly()
		return demand, nil
	}
	for _, prompt := range demand.Prompts {
		if prompt.Tokens > demand.Context {
			return nil, demand.beyondContext(w, "a prompt has %d tokens", "prompt", prompt.Tokens, maxContext)
		}
	}
	demand.sharePrompts()
	return demand, nil
}

// permitted returns the schemes of a phase: those of the list, else all where a limit of quality permits them, else the
// stored one.
func (w *Workload) permitted(list []op.Scheme, maxKL float64) []op.Scheme {
	switch {
	case len(list) > 0:
		return list
	case maxKL > 0:
		return slices.DeleteFunc(slices.Clone(op.Schemes), func(s op.Scheme) bool { return !w.Outliers.Permits(s) })
	}
	return []op.Scheme{op.A32W32}
}

// beyondContext returns the error for a prompt or bucket that is longer than the context, with a way out that the
// model's own positions permit.
func (d *Demand) beyondContext(work *Workload, format, what string, rows, maxContext int) error {
	hint := fmt.Sprintf("set context to at least %d (the model has %d positions), or leave the %s out",
		rows, maxContext, what)
	if rows > maxContext {
		hint = fmt.Sprintf("the model has %d positions: shorten the %s to that, or leave it out", maxContext, what)
	}
	return diag.New(diag.ClassInput, "%s: "+format+", but the context holds only %d", work.Title(), rows, d.Context).
		WithHint("%s", hint)
}

// setBuckets sets the listed buckets; those to choose from where only their number is given; else powers of two. A
// number of rows has one program, so that a batch is no bucket.
func (d *Demand) setBuckets(listed Rows) {
	isBatch := func(rows int) bool { return slices.Contains(d.Batches, rows) }
	switch {
	case listed.Max() > 0:
		if len(d.Prompts) == 0 {
			d.Prompts = uniform(min(defaultMaxBucket, d.Context))
		}
		d.Buckets = slices.DeleteFunc(d.Prompts.ladder(d.Context), isBatch)
	case len(listed) > 0:
		d.Buckets = slices.Clone(listed)
	default:
		for rows := defaultMinBucket; rows <= min(defaultMaxBucket, d.Context); rows *= 2 {
			if !isBatch(rows) {
				d.Buckets = append(d.Buckets, rows)
			}
		}
		if len(d.Buckets) == 0 && d.Context > 1 {
			d.Buckets = []int{d.Context}
		}
	}
}

// DecodeRows returns the numbers of rows of decode's programs.
func (d *Demand) DecodeRows() []int { return append([]int{1}, d.Batches...) }

// Rows returns those of all programs: decode's, then prefill's.
func (d *Demand) Rows() []int { return append(d.DecodeRows(), d.Buckets...) }

// ContextAt returns the number of cached positions, the new rows included, that attention is priced for.
func (d *Demand) ContextAt(rows int) int { return min(max(d.contexts[rows], rows), d.Context) }

// DecodeNS returns what a program of decode that takes ns counts for in the time of an answer.
func (d *Demand) DecodeNS(rows int, ns float64) float64 {
	if d.steps == nil {
		return float64(d.OutputTokens) * ns / float64(rows*len(d.DecodeRows()))
	}
	return float64(float64(d.OutputTokens)*ns) * d.steps[rows]
}

// countSteps says how often each of decode's programs is executed for a token. Sequences that come together go to the
// smallest batch that holds them, those beyond the largest one after the other. Without a distribution tokens are
// decoded evenly in batches of every size (DecodeNS).
func (d *Demand) countSteps(parallel []Parallel) {
	if len(parallel) == 0 {
		return
	}
	d.steps = map[int]float64{}
	rows := d.DecodeRows()
	largest := rows[len(rows)-1]
	total := 0.0
	for _, together := range parallel {
		total += together.Share
	}
	for _, together := range parallel {
		full, left := problem.Cut(together.Sequences, largest)
		each := together.Share / total / float64(together.Sequences)
		d.steps[largest] += float64(each * float64(full))
		d.steps[rows[sort.SearchInts(rows, left)]] += each
	}
}

// attendWhileDecoding sets the positions that a decoded row attends to on average.
func (d *Demand) attendWhileDecoding(positions int) {
	for _, rows := range d.DecodeRows() {
		d.contexts[rows] = positions
	}
}

// shareEvenly has every bucket called equally often, with lengths spread over what it takes.
func (d *Demand) shareEvenly() {
	below := 1
	for i, rows := range d.Buckets {
		d.Share[i] = 1 / float64(len(d.Share))
		d.Lengths[rows] = spread(below, rows)
		below = rows
	}
}

// lengthBins is how many lengths of calls are told apart within a bucket.
const lengthBins = 32

// sharePrompts cuts every prompt into calls as the runtime does: it fills the largest bucket as often as it can, and
// the rest goes to the smallest that holds it; a single token is decoded. It counts the calls, and averages their
// contexts and lengths.
func (d *Demand) sharePrompts() {
	total, mean := 0.0, 0.0
	for _, prompt := range d.Prompts {
		total += prompt.Share
		mean += float64(prompt.Share * float64(prompt.Tokens))
	}
	d.attendWhileDecoding(int(mean/total) + d.OutputTokens/2)
	if len(d.Buckets) == 0 {
		return
	}
	positions := make([]float64, len(d.Buckets))
	lengths := make([][lengthBins + 1]float64, len(d.Buckets))
	last := len(d.Buckets) - 1
	largest := d.Buckets[last]
	for _, prompt := range d.Prompts {
		share := prompt.Share / total
		// call notes calls of the i-th bucket with that many rows; context: positions after each of them, on average.
		call := func(i, rows int, times, context float64) {
			d.Share[i] += float64(share * times)
			positions[i] += float64(share * times * context)
			lengths[i][(rows*lengthBins+d.Buckets[i]-1)/d.Buckets[i]] += float64(share * times)
		}
		full, left := problem.Cut(prompt.Tokens, largest)
		if full > 0 {
			call(last, largest, float64(full), float64(largest)*float64(full+1)/2)
		}
		if left > 1 {
			call(sort.SearchInts(d.Buckets, left), left, 1, float64(prompt.Tokens))
		}
	}
	below := 1
	for i, rows := range d.Buckets {
		if d.Share[i] > 0 {
			d.contexts[rows] = int(positions[i] / d.Share[i])
			for bin, share := range lengths[i] {
				if share > 0 {
					d.Lengths[rows] = append(d.Lengths[rows],
						Prompt{Tokens: max(1, bin*rows/lengthBins), Share: share / d.Share[i]})
				}
			}
		} else {
			d.Lengths[rows] = spread(below, rows)
		}
		below = rows
	}
}

// spread is lengths spread evenly over what a bucket takes: more than the one below it, at most its own.
func spread(below, bucket int) []Prompt {
	const samples = 8
	var out []Prompt
	for i := 1; i <= samples; i++ {
		out = append(out, Prompt{Tokens: below + (bucket-below)*i/samples, Share: 1.0 / samples})
	}
	return out
}

// Fewer applies the workload again with the first n buckets only: what is posed of each program is what a workload
// that lists only these would pose. Where the workload gives no prompts, every bucket stands for calls that fill it;
// those of buckets that are left out are cut into calls of the others.
func (d *Demand) Fewer(work *Workload, n, maxContext int) (*Demand, error) {
	out, err := d.WithSizes(work, d.Buckets[:n], d.Batches, maxContext)
	if err != nil {
		return nil, err
	}
	out.OutputTokens = d.OutputTokens
	out.attendWhileDecoding(d.contexts[1])
	if len(d.Prompts) > 0 || n == 0 {
		return out, nil
	}
	copy(out.Share, d.Share)
	for i := n; i < len(d.Buckets); i++ {
		full, left := problem.Cut(d.Buckets[i], d.Buckets[n-1])
		out.Share[n-1] += float64(d.Share[i] * float64(full))
		if left > 1 {
			out.Share[sort.SearchInts(out.Buckets, left)] += d.Share[i]
		}
	}
	return out, nil
}

// Average sets the positions that each bucket's attention works on to what they are where it is the only one.
func (d *Demand) Average(work *Workload, maxContext int) error {
	for _, rows := range d.Buckets {
		alone, err := d.WithSizes(work, Rows{rows}, d.Batches, maxContext)
		if err != nil {
			return err
		}
		d.contexts[rows] = alone.contexts[rows]
	}
	return nil
}

// WithSizes applies the workload again with other buckets and batches. Prompts, context, the type of the cache and the
// limits of quality stay those of the demand: where the workload leaves the type open one was chosen, and of the limits
// other losses may have taken their part.
func (d *Demand) WithSizes(work *Workload, buckets, batches Rows, maxContext int) (*Demand, error) {
	changed := *work
	changed.Buckets, changed.Batches, changed.Context, changed.Prompts = buckets, batches, d.Context, d.Prompts
	out, err := changed.Apply(maxContext)
	if err != nil {
		return nil, err
	}
	out.Cache, out.MaxKL = d.Cache, d.MaxKL
	return out, nil
}

// AsPrompts returns the prompts that a workload stands for, written out: without any, those that fill each bucket
// evenly.
func (d *Demand) AsPrompts(work *Workload) []Prompt {
	if len(work.Prompts) > 0 {
		return work.Prompts
	}
	var out []Prompt
	for i, rows := range d.Buckets {
		for _, prompt := range d.Lengths[rows] {
			out = append(out, Prompt{Tokens: prompt.Tokens, Share: float64(d.Share[i] * prompt.Share)})
		}
	}
	return out
}
