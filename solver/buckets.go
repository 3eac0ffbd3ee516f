package solver

import (
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
