package workload

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/problem"
)

// Largest values that a workload may have.
const (
	maxPrompts = 1 << 16
	maxBuckets = 64
	maxBatches = 16
	maxBatch   = 256
	maxLength  = 1 << 22
	maxMemory  = 1 << 50
	maxShare   = 1e12
)

// checker collects what is wrong with a file. A path is the key of a value: "prompts[3].share".
type checker struct {
	code string
	most int // diagnostics that are kept; 0: all
	list diag.List
}

// fail notes that the value at a path makes no sense.
func (c *checker) fail(path, format string, args ...any) {
	if c.most > 0 && len(c.list) == c.most {
		return
	}
	problem := diag.New(diag.ClassInput, format, args...).WithCode(c.code)
	problem.Path = path
	c.list = append(c.list, problem)
}

// want notes a failure unless ok holds.
func (c *checker) want(ok bool, path, format string, args ...any) {
	if !ok {
		c.fail(path, format, args...)
	}
}

// within reports whether a number lies in least..most; NaN does not.
func within[T cmp.Ordered](x, least, most T) bool { return x >= least && x <= most }

// Validate reports everything that makes no sense, as a diag.List of class ClassInput with the path of each value.
func (w *Workload) Validate() error {
	check := &checker{code: "workload.value"}
	w.Experts.validate(check)
	check.want(w.Schema == Schema, "schema", "schema is %q, want %q", w.Schema, Schema)
	w.Prompts.validate(check)
	check.want(within(w.OutputTokens, 0, maxLength), "output_tokens", "is %d, want 0..%d", w.OutputTokens, maxLength)
	check.want(within(w.Context, 0, maxLength), "context", "is %d positions, want 0..%d", w.Context, maxLength)
	w.Schemes.validate(check, w.Outliers)
	check.want(slices.Contains([]Outliers{"", OutliersClip, OutliersShadow, OutliersBest}, w.Outliers), "outliers",
		"is %q, want %q, %q or %q", w.Outliers, OutliersClip, OutliersShadow, OutliersBest)
	caches := append(slices.Clone(op.CacheTypes), CacheBest)
	check.want(w.Cache == "" || slices.Contains(caches, w.Cache), "cache", "is %q, want %s", w.Cache,
		diag.OneOf(caches))
	w.Shadows.validate(check, w.Outliers)
	check.want(slices.Contains([]Attention{"", AttentionDense, AttentionSparse, AttentionBest}, w.Attention),
		"attention", "is %q, want %q, %q or %q", w.Attention, AttentionDense, AttentionSparse, AttentionBest)
	check.want(w.Density == 0 || within(w.Density, 1e-3, 1), "density", "is %v of the positions, want 0.001..1",
		w.Density)
	check.want(w.Density == 0 || w.Attention.Sparse(), "density", "is given, and attention is %q: say %q or %q",
		cmp.Or(w.Attention, AttentionDense), AttentionSparse, AttentionBest)
	check.want(w.ScaleBuckets == 0 || slices.Contains(op.BucketCounts, w.ScaleBuckets), "scale_buckets",
		"is %d, want one of %v", w.ScaleBuckets, op.BucketCounts)
	check.want(w.ScaleBuckets == 0 || w.Attention.Sparse(), "scale_buckets",
		"is given, and attention is %q: say %q or %q",
		cmp.Or(w.Attention, AttentionDense), AttentionSparse, AttentionBest)
	for _, limit := range []struct {
		path string
		nats float64
	}{{keyPrefillKL, w.Quality.MaxKL.Prefill}, {keyDecodeKL, w.Quality.MaxKL.Decode}} {
		check.want(within(limit.nats, 0, LargestKL), limit.path,
			"limit is %v nats a token, want 0..1e6 (without a limit precision stays as stored)", limit.nats)
	}
	measures := []problem.Measure{"", problem.Time, problem.Energy, problem.Memory}
	check.want(slices.Contains(measures, w.Minimise), "minimise", "is %q, want %q, %q or %q",
		w.Minimise, problem.Time, problem.Energy, problem.Memory)
	w.Limits.validate(check)
	check.want(within(w.Memory, 0, maxMemory), KeyMemory, "bound is %v, want 0..%v", w.Memory, unit.Bytes(maxMemory))
	check.want(within(w.ChunksInFlight, 0, 2), "chunks_in_flight", "is %d, want 1 or 2", w.ChunksInFlight)
	w.validateRows(check)
	w.validateParallel(check)
	w.Drafts.validate(check)
	for _, weight := range []struct {
		path  string
		value float64
	}{{"weights.prefill", w.Weights.Prefill}, {"weights.decode", w.Weights.Decode}} {
		check.want(within(weight.value, 0, maxShare), weight.path, "weight is %v, want 0..1e12", weight.value)
	}
	return check.list.Err()
}

// validate checks ranges, and that some length counts.
func (p Prompts) validate(check *checker) {
	check.want(len(p) <= maxPrompts, "prompts", "%d lengths, want at most %d", len(p), maxPrompts)
	total := 0.0
	for i, prompt := range p {
		path := fmt.Sprintf("prompts[%d]", i)
		check.want(within(prompt.Tokens, 1, maxLength), path, "length is %d tokens, want 1..%d",
			prompt.Tokens, maxLength)
		check.want(within(prompt.Share, 0, maxShare), path+".share", "share is %v, want 0..1e12", prompt.Share)
		check.want(within(prompt.Output, 0, maxLength), path+".output", "answer has %v tokens, want 0..%d",
			prompt.Output, maxLength)
		total += prompt.Share
	}
	check.want(len(p) == 0 || total > 0, "prompts", "no length has a share above 0")
}

// validate checks shares, of which there is one at most, and that shadows are permitted.
func (s *Shadows) validate(check *checker, outliers Outliers) {
	check.want(within(s.Prune, 0, 1), "shadows.prune", "is %v, want a share of the products, 0..1", s.Prune)
	check.want(within(s.Slower, 0, 1000), "shadows.slower", "is %v, want a share of the time, 0..1000", s.Slower)
	check.want(s.Prune == 0 || s.Slower == 0, "shadows", "prune is %v and slower %v: leave one of them out", s.Prune,
		s.Slower)
	check.want(*s == Shadows{} || outliers != OutliersClip, "shadows", "shares of shadow outliers, and outliers are %q",
		outliers)
}

// validate checks that schemes exist, each once in a phase.
func (s *Schemes) validate(check *checker, outliers Outliers) {
	for _, phase := range []struct {
		path string
		list []op.Scheme
	}{{"schemes.prefill", s.Prefill}, {"schemes.decode", s.Decode}, {"schemes.head", s.Head},
		{"schemes.prefill_head", s.PrefillHead}} {
		for i, scheme := range phase.list {
			path := fmt.Sprintf("%s[%d]", phase.path, i)
			if _, err := op.ParseScheme(string(scheme)); err != nil {
				check.fail(path, "%v", err)
			}
			check.want(!slices.Contains(phase.list[:i], scheme), path, "scheme %q appears twice", scheme)
			check.want(outliers.Permits(scheme), path, "scheme %q, and outliers are %q: leave one of them out", scheme,
				outliers)
		}
	}
}

// validateRows checks the numbers of rows that programs are for: buckets of prefill and batches of decode.
func (w *Workload) validateRows(check *checker) {
	check.want(len(w.Buckets) <= maxBuckets, "buckets", "%d buckets, want at most %d", len(w.Buckets), maxBuckets)
	check.want(w.Buckets.Max() <= maxBuckets, "buckets.max", "is %d, want 1..%d", w.Buckets.Max(), maxBuckets)
	if n := w.Batches.Max(); n > maxBatches {
		check.fail("batches.max", "is %d, want 1..%d", n, maxBatches)
	} else if n > 0 {
		check.want(len(w.Parallel) > 0, "batches.max",
			"batches cannot be chosen where nothing says how many sequences come together: want parallel, or a list")
	}
	buckets := w.Buckets.listed()
	for i, rows := range buckets {
		path := fmt.Sprintf("buckets[%d]", i)
		if !within(rows, 2, maxLength) {
			check.fail(path, "bucket of %d rows, want 2..%d (one row is decode, which is always there)",
				rows, maxLength)
		} else if i > 0 {
			check.want(buckets[i-1] < rows, path, "bucket %d follows %d, want ascending order", rows, buckets[i-1])
		}
	}
	check.want(len(w.Batches) <= maxBatches, "batches", "%d batches, want at most %d", len(w.Batches), maxBatches)
	batches := w.Batches.listed()
	for i, rows := range batches {
		path := fmt.Sprintf("batches[%d]", i)
		switch {
		case !within(rows, 2, maxBatch):
			check.fail(path, "batch of %d sequences, want 2..%d (one sequence is always there)", rows, maxBatch)
		case i > 0 && batches[i-1] >= rows:
			check.fail(path, "batch %d follows %d, want ascending order", rows, batches[i-1])
		case slices.Contains(w.Buckets, rows):
			check.fail(path, "%d is a bucket of prefill too, and a number of rows has one program "+
				"(prompts of a bucket that is left out go to the next)", rows)
		}
	}
}

// validateParallel checks the distribution of how many sequences come together: ascending, and some number counts.
func (w *Workload) validateParallel(check *checker) {
	check.want(len(w.Parallel) <= maxBatch, "parallel", "%d numbers of sequences, want at most %d",
		len(w.Parallel), maxBatch)
	total, last := 0.0, 0
	for i, together := range w.Parallel {
		path := fmt.Sprintf("parallel[%d]", i)
		check.want(within(together.Sequences, last+1, maxBatch), path+".sequences",
			"is %d, want 1..%d in ascending order",
			together.Sequences, maxBatch)
		check.want(within(together.Share, 0, maxShare), path+".share", "share is %v, want 0..1e12", together.Share)
		total, last = total+together.Share, max(0, together.Sequences)
	}
	check.want(len(w.Parallel) == 0 || total > 0, "parallel", "no number of sequences has a share above 0")
}
