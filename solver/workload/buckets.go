package workload

import (
	"github.com/hetc/hetc/solver/problem"
	"slices"
	"sort"
)

// maxCandidate bounds the candidates for buckets, and maxAlone the different lengths that get one each.
const (
	maxCandidate = 2048 // rows
	maxAlone     = 12
)

// uniform are lengths up to the longest, all equally frequent.
func uniform(longest int) Prompts {
	var out Prompts
	for n := 1; n <= longest; n++ {
		out = append(out, Prompt{Tokens: n, Share: 1})
	}
	return out
}

// ladder is the numbers of rows that are measured where the buckets are not fixed, ascending: powers of two and the middle between
// them, from 16 to what holds the longest prompt (at most maxCandidate and the context), and the lengths themselves in
// steps of 8 rows: all where there are few, else eight quantiles.
func (p Prompts) ladder(context int) []int {
	longest := 1
	for _, x := range p {
		longest = max(longest, x.Tokens)
	}
	top := min(context, maxCandidate, (longest+15)/16*16)
	var out []int
	add := func(rows int) {
		if rows >= 2 && rows <= top && !slices.Contains(out, rows) {
			out = append(out, rows)
		}
	}
	for b := defaultMinBucket; b <= top; b *= 2 {
		add(b)
		add(b * 3 / 2)
	}
	add(top)
	for _, n := range p.marks() {
		add((n + 7) / 8 * 8)
	}
	sort.Ints(out)
	return out
}

// marks are the lengths that a bucket may be made for.
func (p Prompts) marks() (out []int) {
	lengths := slices.DeleteFunc(slices.Clone(p), func(x Prompt) bool { return x.Share == 0 })
	sort.SliceStable(lengths, func(i, j int) bool { return lengths[i].Tokens < lengths[j].Tokens })
	if len(lengths) <= maxAlone {
		for _, x := range lengths {
			out = append(out, x.Tokens)
		}
		return out
	}
	total := 0.0
	for _, x := range lengths {
		total += x.Share
	}
	const quantiles = 8
	sum, next := 0.0, 1
	for _, x := range lengths {
		sum += x.Share
		for next <= quantiles && sum >= total*float64(next)/quantiles*(1-1e-9) {
			out = append(out, x.Tokens)
			next++
		}
	}
	return slices.Compact(out)
}

// batchLadder is the numbers of sequences that are measured where the batches are not fixed: those that come together, the
// most frequent first, and powers of two below the largest; at most maxBatches.
func (w *Workload) batchLadder() []int {
	var out []int
	list := slices.Clone(w.Parallel)
	sort.SliceStable(list, func(i, j int) bool { return list[i].Share > list[j].Share })
	most := 1
	add := func(n int) {
		if n >= 2 && len(out) < maxBatches && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	for _, p := range list {
		if p.Share > 0 {
			most = max(most, p.Sequences)
		}
	}
	add(most)
	for b := 2; b < most; b *= 2 {
		add(b)
	}
	for _, p := range list {
		if p.Share > 0 {
			add(p.Sequences)
		}
	}
	sort.Ints(out)
	return out
}

// fewer applies the workload again with the first n buckets only: what is posed of each program is what a workload that lists only
// these would pose. Prompts are the same. Where the workload gives none, every bucket stands for calls that fill it, and those of
// buckets that are left out are cut into pieces of the others.
func (d *Demand) Fewer(w *Workload, n, maxContext int) (*Demand, error) {
	x := *w
	x.Buckets, x.Batches, x.Context, x.Prompts = d.Buckets[:n], d.Batches, d.Context, d.Prompts
	out, err := x.Apply(maxContext)
	if err != nil {
		return nil, err
	}
	out.OutputTokens = d.OutputTokens
	out.decodeAt(d.contexts[1])
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

// average sets the positions that each bucket's attention works on to what they are where it is the only one.
func (d *Demand) Average(w *Workload, maxContext int) error {
	x := *w
	x.Batches, x.Prompts, x.Context = d.Batches, d.Prompts, d.Context
	for _, b := range d.Buckets {
		x.Buckets = Rows{b}
		alone, err := x.Apply(maxContext)
		if err != nil {
			return err
		}
		d.contexts[b] = alone.contexts[b]
	}
	return nil
}
