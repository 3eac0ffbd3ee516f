package problem

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
)

// Limits of an instance of bucket selection.
const (
	MaxLengths      = 1 << 16
	MaxSizes        = 1 << 13
	MaxTokens       = 1 << 22
	MaxLengthWeight = 1 << 40 // of all lengths together
	maxTotal        = 1 << 60 // no objective exceeds it
)

// Buckets is the choice of sequence-length buckets: which numbers of rows get programs (static graphs), so
// that the prompts of a distribution take the least expected time. A prompt is executed as the runtime's
// decider does it: while more tokens are left than the largest bucket has rows, a piece of that many is
// executed (chunked prefill: the largest bucket is the chunk), and what is left goes to the smallest bucket that
// holds it, at that bucket's full cost.
//
// Costs need not grow with the rows. Where a larger size costs less than a smaller one, opening the larger
// one serves every length of the smaller for less, as a bucket and as a chunk: "the least of all sizes of at
// least M rows" is therefore part of every optimum and needs no rule of its own. For the same reason the
// optimum does not depend on Fastest: a bucket that is not faster than all larger ones is in no optimal set
// of fewest buckets.
type Buckets struct {
	Name    string
	Lengths []Length // ascending
	Sizes   []Size   // candidates, ascending
	Max     int      // at most that many are chosen
	// OneNS is the time of a single row, which decode's program executes without a bucket, in ns; 0: there is no such
	// program, and a single token goes to a bucket too.
	OneNS int64
	// Fastest sends what is left of a prompt to the fastest bucket that holds it rather than to the smallest.
	Fastest bool

	MaxBytes  int64 // of the chosen sizes together, 0: no limit
	MaxGraphs int   // 0: no limit
	MaxOpenNS int64 // 0: no limit
}

// Length is how often prompts have a number of tokens.
type Length struct {
	Tokens int
	Weight int64 // relative to that of the other lengths
}

// Size is a candidate: a number of rows.
type Size struct {
	Rows       int
	CostNS     int64 // of one call, however many of its rows are used
	Infeasible bool  // cannot be executed
	// What it takes beside what is there anyway.
	Bytes  int64
	Graphs int
	OpenNS int64
}

// BucketSolution is an engine's answer.
type BucketSolution struct {
	Sizes     []int // chosen, ascending indices into Buckets.Sizes
	Objective int64 // sum over the lengths of weight * ns
	Bound     int64 // no choice is below it
	Status    Status
	Nodes     int64 // of the search, 0 where none was needed
}

// Validate reports the first thing that makes the instance meaningless. The error is of class ClassInternal: users do not
// write instances.
func (b *Buckets) Validate() error {
	fail := func(format string, args ...any) error {
		return diag.New(diag.ClassInternal, "buckets %q: %s", b.Name, fmt.Sprintf(format, args...))
	}
	if len(b.Lengths) == 0 || len(b.Lengths) > MaxLengths {
		return fail("%d lengths, want 1..%d", len(b.Lengths), MaxLengths)
	}
	if len(b.Sizes) > MaxSizes {
		return fail("%d sizes, want at most %d", len(b.Sizes), MaxSizes)
	}
	if b.Max < 0 || b.MaxBytes < 0 || b.MaxGraphs < 0 || b.MaxOpenNS < 0 {
		return fail("at most %d buckets, %d bytes, %d graphs, %d ns: want 0 or more", b.Max, b.MaxBytes, b.MaxGraphs, b.MaxOpenNS)
	}
	if b.OneNS < 0 || b.OneNS > MaxNS {
		return fail("a row takes %d ns, want 0..%d", b.OneNS, int64(MaxNS))
	}
	var weight int64
	tokens := 0.0
	for i, l := range b.Lengths {
		switch {
		case l.Tokens < 1 || l.Tokens > MaxTokens:
			return fail("length %d has %d tokens, want 1..%d", i, l.Tokens, MaxTokens)
		case i > 0 && b.Lengths[i-1].Tokens >= l.Tokens:
			return fail("length %d follows %d, want ascending order", l.Tokens, b.Lengths[i-1].Tokens)
		case l.Weight < 0 || l.Weight > MaxLengthWeight-weight:
			return fail("length %d has weight %d, want 0 or more and at most %d in all", l.Tokens, l.Weight, int64(MaxLengthWeight))
		}
		weight += l.Weight
		tokens += float64(l.Weight) * float64(l.Tokens)
	}
	if weight == 0 {
		return fail("no length has a weight")
	}
	worst := float64(b.OneNS) * tokens
	var bytes, open int64
	for i, s := range b.Sizes {
		switch {
		case s.Rows < 1 || s.Rows > MaxTokens:
			return fail("size %d has %d rows, want 1..%d", i, s.Rows, MaxTokens)
		case s.Rows == 1 && b.OneNS > 0:
			return fail("size %d has 1 row, which needs no bucket", i)
		case i > 0 && b.Sizes[i-1].Rows >= s.Rows:
			return fail("size %d follows %d, want ascending order", s.Rows, b.Sizes[i-1].Rows)
		case s.CostNS < 0 || s.CostNS > MaxNS:
			return fail("size %d costs %d ns, want 0..%d", s.Rows, s.CostNS, int64(MaxNS))
		case s.Bytes < 0 || s.Bytes > maxTotal-bytes || s.Graphs < 0 || s.Graphs > math.MaxInt32 || s.OpenNS < 0 || s.OpenNS > maxTotal-open:
			return fail("size %d takes %d bytes, %d graphs and %d ns to open, want 0 or more, and sums of at most %d", s.Rows, s.Bytes, s.Graphs, s.OpenNS, int64(maxTotal))
		}
		bytes, open = bytes+s.Bytes, open+s.OpenNS
		worst = max(worst, float64(s.CostNS)*(tokens/float64(s.Rows)+2*float64(weight)))
	}
	if worst+float64(b.OneNS)*float64(weight) > maxTotal {
		return fail("a sum of up to %.3g ns is out of range", worst)
	}
	return nil
}

// Weight is that of all lengths.
func (b *Buckets) Weight() int64 {
	var total int64
	for _, l := range b.Lengths {
		total += l.Weight
	}
	return total
}

// Cut is how a prompt is executed when the largest bucket has chunk rows: full pieces of it, and what is left, 1..chunk tokens.
func Cut(tokens, chunk int) (full, left int) {
	full = (tokens - 1) / chunk
	return full, tokens - full*chunk
}

// Within reports whether sizes stay within the limits of number, bytes, graphs and opening time.
func (b *Buckets) Within(sizes []int) bool {
	var bytes, open int64
	graphs := 0
	for _, i := range sizes {
		bytes, graphs, open = bytes+b.Sizes[i].Bytes, graphs+b.Sizes[i].Graphs, open+b.Sizes[i].OpenNS
	}
	return len(sizes) <= b.Max && (b.MaxBytes == 0 || bytes <= b.MaxBytes) && (b.MaxGraphs == 0 || graphs <= b.MaxGraphs) && (b.MaxOpenNS == 0 || open <= b.MaxOpenNS)
}

// Objective is what the prompts cost with these sizes, ascending indices: the sum of weight * ns. Without any, tokens are
// executed one by one; false where that cannot be.
func (b *Buckets) Objective(sizes []int) (total int64, ok bool) {
	if len(sizes) == 0 {
		for _, l := range b.Lengths {
			total += l.Weight * int64(l.Tokens) * b.OneNS
		}
		return total, b.OneNS > 0
	}
	largest := b.Sizes[sizes[len(sizes)-1]]
	for _, l := range b.Lengths {
		full, left := Cut(l.Tokens, largest.Rows)
		ns := int64(full) * largest.CostNS
		if left == 1 && b.OneNS > 0 {
			ns += b.OneNS
		} else {
			at, _ := slices.BinarySearchFunc(sizes, left, func(i, rows int) int { return cmp.Compare(b.Sizes[i].Rows, rows) })
			cost := b.Sizes[sizes[at]].CostNS
			for _, i := range sizes[at:] {
				if b.Fastest {
					cost = min(cost, b.Sizes[i].CostNS)
				}
			}
			ns += cost
		}
		total += l.Weight * ns
	}
	return total, true
}

// Precedes is the order of equally good choices: fewer buckets (each is a program to hold), then the lexicographically smaller
// ascending list.
func (b *Buckets) Precedes(x, y []int) bool {
	if len(x) != len(y) {
		return len(x) < len(y)
	}
	return slices.Compare(x, y) < 0
}

// Verify recomputes a solution from the instance, whatever engine it came from.
func (b *Buckets) Verify(s BucketSolution) error {
	fail := func(format string, args ...any) error {
		return diag.New(diag.ClassInternal, "verify solution of buckets %q: %s", b.Name, fmt.Sprintf(format, args...))
	}
	for k, i := range s.Sizes {
		switch {
		case i < 0 || i >= len(b.Sizes):
			return fail("there is no size %d", i)
		case k > 0 && s.Sizes[k-1] >= i:
			return fail("size %d follows %d, want ascending order", i, s.Sizes[k-1])
		case b.Sizes[i].Infeasible:
			return fail("%d rows cannot be executed", b.Sizes[i].Rows)
		}
	}
	if !b.Within(s.Sizes) {
		return fail("%d sizes exceed the limits", len(s.Sizes))
	}
	got, ok := b.Objective(s.Sizes)
	if !ok {
		return fail("no bucket executes the prompts")
	}
	if got != s.Objective {
		return fail("objective is %d, and its sizes cost %d", s.Objective, got)
	}
	if s.Bound > s.Objective || s.Status == Optimal && s.Bound != s.Objective {
		return fail("status %q with objective %d and bound %d", s.Status, s.Objective, s.Bound)
	}
	return nil
}

// Infeasible is the error of engines that found that no choice is within the limits.
func (b *Buckets) Infeasible() error {
	return diag.New(diag.ClassInfeasible, "buckets %q: none of %d sizes is within the limits, and tokens are not executed one by one", b.Name, len(b.Sizes))
}

// BucketExample is an instance of n lengths (1..n tokens, fewer of the longer) and as many sizes, of which at most k
// are chosen. A size costs what a processor with steps of 64 rows would take, and every third one a spill: costs are
// not monotone. It depends on n and k only.
func BucketExample(n, k int) *Buckets {
	b := &Buckets{Name: fmt.Sprintf("example of %d", n), Max: k, OneNS: 9_000_000}
	state := uint64(n)
	for t := 1; t <= n; t++ {
		state = state*6364136223846793005 + 1442695040888963407
		b.Lengths = append(b.Lengths, Length{Tokens: t, Weight: 1000 + 1_000_000/int64(t) + int64(state>>54)})
		if t == 1 {
			continue
		}
		ns := 5_000_000 + 2_200_000*int64((t+63)/64) + 9_000*int64(t)
		if state>>33%3 == 0 {
			ns += 700_000
		}
		b.Sizes = append(b.Sizes, Size{Rows: t, CostNS: ns, Bytes: 40_000 * int64(t), Graphs: 1, OpenNS: 1_000_000})
	}
	return b
}
