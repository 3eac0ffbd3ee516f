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
	maxLengths      = 1 << 16
	maxSizes        = 1 << 13
	maxTokens       = 1 << 22
	maxLengthWeight = 1 << 40 // of all lengths together
	maxCall         = 1 << 50 // 13 days: of one call, which executes many operators
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

// Length says how often prompts have a number of tokens.
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

// Validate returns the first reason why the instance has no meaning. The error is of class ClassInternal: users do not
// write instances.
func (b *Buckets) Validate() error { return internal("buckets", b.Name, b.validate()) }

// validate checks sizes and numbers before an engine sees them.
func (b *Buckets) validate() error {
	if !within(len(b.Lengths), 1, maxLengths) {
		return fmt.Errorf("%d lengths, want 1..%d", len(b.Lengths), maxLengths)
	}
	if len(b.Sizes) > maxSizes {
		return fmt.Errorf("%d sizes, want at most %d", len(b.Sizes), maxSizes)
	}
	if min(int64(b.Max), b.MaxBytes, int64(b.MaxGraphs), b.MaxOpenNS) < 0 {
		return fmt.Errorf("at most %d buckets, %d bytes, %d graphs, %d ns: want 0 or more",
			b.Max, b.MaxBytes, b.MaxGraphs, b.MaxOpenNS)
	}
	if !within(b.OneNS, 0, maxCall) {
		return fmt.Errorf("a row takes %d ns, want 0..%d", b.OneNS, int64(maxCall))
	}
	tokens, err := b.validateLengths()
	if err != nil {
		return err
	}
	return b.validateSizes(tokens)
}

// validateLengths returns the weighted number of tokens.
func (b *Buckets) validateLengths() (tokens float64, err error) {
	var weight int64
	for i, length := range b.Lengths {
		switch {
		case !within(length.Tokens, 1, maxTokens):
			return 0, fmt.Errorf("length %d has %d tokens, want 1..%d", i, length.Tokens, maxTokens)
		case i > 0 && b.Lengths[i-1].Tokens >= length.Tokens:
			return 0, fmt.Errorf("length %d follows %d, want ascending order", length.Tokens, b.Lengths[i-1].Tokens)
		case !within(length.Weight, 0, maxLengthWeight-weight):
			return 0, fmt.Errorf("length %d has weight %d, want 0 or more and at most %d in all",
				length.Tokens, length.Weight, int64(maxLengthWeight))
		}
		weight += length.Weight
		tokens += float64(length.Weight) * float64(length.Tokens)
	}
	if weight == 0 {
		return 0, fmt.Errorf("no length has a weight")
	}
	return tokens, nil
}

// validateSizes also bounds the objective, for prompts of so many weighted tokens: no sum can overflow.
func (b *Buckets) validateSizes(tokens float64) error {
	weight := float64(b.Weight())
	worst := float64(b.OneNS) * tokens
	var bytes, open int64
	for i, size := range b.Sizes {
		switch {
		case !within(size.Rows, 1, maxTokens):
			return fmt.Errorf("size %d has %d rows, want 1..%d", i, size.Rows, maxTokens)
		case size.Rows == 1 && b.OneNS > 0:
			return fmt.Errorf("size %d has 1 row, which needs no bucket", i)
		case i > 0 && b.Sizes[i-1].Rows >= size.Rows:
			return fmt.Errorf("size %d follows %d, want ascending order", size.Rows, b.Sizes[i-1].Rows)
		case !within(size.CostNS, 0, maxCall):
			return fmt.Errorf("size %d costs %d ns, want 0..%d", size.Rows, size.CostNS, int64(maxCall))
		case !within(size.Bytes, 0, maxTotal-bytes) || !within(size.Graphs, 0, math.MaxInt32) ||
			!within(size.OpenNS, 0, maxTotal-open):
			return fmt.Errorf("size %d takes %d bytes, %d graphs and %d ns to open, "+
				"want 0 or more, and sums of at most %d",
				size.Rows, size.Bytes, size.Graphs, size.OpenNS, int64(maxTotal))
		}
		bytes, open = bytes+size.Bytes, open+size.OpenNS
		worst = max(worst, float64(size.CostNS)*(tokens/float64(size.Rows)+2*weight))
	}
	if worst+float64(b.OneNS)*weight > maxTotal {
		return fmt.Errorf("a sum of up to %.3g ns is out of range", worst)
	}
	return nil
}

// Weight returns the weight of all lengths.
func (b *Buckets) Weight() int64 {
	var total int64
	for _, length := range b.Lengths {
		total += length.Weight
	}
	return total
}

// Cut says how a prompt is executed when the largest bucket has chunk rows: how many full pieces it has, and how many
// tokens are left, 1..chunk.
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
	return len(sizes) <= b.Max && (b.MaxBytes == 0 || bytes <= b.MaxBytes) &&
		(b.MaxGraphs == 0 || graphs <= b.MaxGraphs) && (b.MaxOpenNS == 0 || open <= b.MaxOpenNS)
}

// Objective returns the cost of the prompts with these sizes, ascending indices: the sum of weight * ns. Without sizes,
// tokens are executed one by one; it returns false if that is impossible.
func (b *Buckets) Objective(sizes []int) (total int64, ok bool) {
	if len(sizes) == 0 {
		for _, length := range b.Lengths {
			total += length.Weight * int64(length.Tokens) * b.OneNS
		}
		return total, b.OneNS > 0
	}
	largest := b.Sizes[sizes[len(sizes)-1]]
	for _, length := range b.Lengths {
		full, left := Cut(length.Tokens, largest.Rows)
		ns := b.OneNS
		if left > 1 || ns == 0 {
			ns = b.restNS(sizes, left)
		}
		total += length.Weight * (int64(full)*largest.CostNS + ns)
	}
	return total, true
}

// restNS returns the cost of the rest of a prompt: at the smallest size that holds it, or at the fastest.
func (b *Buckets) restNS(sizes []int, tokens int) int64 {
	at, _ := slices.BinarySearchFunc(sizes, tokens, func(i, rows int) int { return cmp.Compare(b.Sizes[i].Rows, rows) })
	cost := b.Sizes[sizes[at]].CostNS
	for _, i := range sizes[at:] {
		if b.Fastest {
			cost = min(cost, b.Sizes[i].CostNS)
		}
	}
	return cost
}

// Precedes reports whether first comes before second in the order of equally good choices: fewer buckets (each is a
// program to hold), then the lexicographically smaller ascending list.
func (b *Buckets) Precedes(first, second []int) bool {
	if len(first) != len(second) {
		return len(first) < len(second)
	}
	return slices.Compare(first, second) < 0
}

// Verify recomputes a solution from the instance, whatever engine it came from.
func (b *Buckets) Verify(solution BucketSolution) error {
	return internal("verify solution of buckets", b.Name, b.verify(&solution))
}

// verify computes everything anew that a solution claims: that its sizes may be chosen, and what they cost.
func (b *Buckets) verify(solution *BucketSolution) error {
	for at, i := range solution.Sizes {
		switch {
		case !within(i, 0, len(b.Sizes)-1):
			return fmt.Errorf("there is no size %d", i)
		case at > 0 && solution.Sizes[at-1] >= i:
			return fmt.Errorf("size %d follows %d, want ascending order", i, solution.Sizes[at-1])
		case b.Sizes[i].Infeasible:
			return fmt.Errorf("%d rows cannot be executed", b.Sizes[i].Rows)
		}
	}
	if !b.Within(solution.Sizes) {
		return fmt.Errorf("%d sizes exceed the limits", len(solution.Sizes))
	}
	got, ok := b.Objective(solution.Sizes)
	if !ok {
		return fmt.Errorf("no bucket executes the prompts")
	}
	if got != solution.Objective {
		return fmt.Errorf("objective is %d, and its sizes cost %d", solution.Objective, got)
	}
	return checkBound(solution.Status, solution.Objective, solution.Bound)
}

// Infeasible returns the error of engines that found that no choice is within the limits.
func (b *Buckets) Infeasible() error {
	return diag.New(diag.ClassInfeasible, "buckets %q: none of %d sizes is within the limits, "+
		"and tokens are not executed one by one", b.Name, len(b.Sizes))
}

// BucketExample returns an instance of lengths 1, 2, 3, ... (fewer of the longer) and as many sizes, of which at most
// so many are chosen. A size costs what a processor with steps of 64 rows would take, and every third one a spill:
// costs are not monotone. It depends on its arguments only.
func BucketExample(lengths, most int) *Buckets {
	out := &Buckets{Name: fmt.Sprintf("example of %d", lengths), Max: most, OneNS: 9_000_000}
	state := uint64(lengths)
	for tokens := 1; tokens <= lengths; tokens++ {
		state = state*6364136223846793005 + 1442695040888963407
		weight := 1000 + 1_000_000/int64(tokens) + int64(state>>54)
		out.Lengths = append(out.Lengths, Length{Tokens: tokens, Weight: weight})
		if tokens == 1 {
			continue
		}
		ns := 5_000_000 + 2_200_000*int64((tokens+63)/64) + 9_000*int64(tokens)
		if state>>33%3 == 0 {
			ns += 700_000
		}
		size := Size{Rows: tokens, CostNS: ns, Bytes: 40_000 * int64(tokens), Graphs: 1, OpenNS: 1_000_000}
		out.Sizes = append(out.Sizes, size)
	}
	return out
}
