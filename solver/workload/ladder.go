package workload

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
	for i := 1; i <= longest; i++ {
		out = append(out, Prompt{Tokens: i, Share: 1})
	}
	return out
}

// ladder returns the numbers of rows that are measured where the buckets are not fixed, ascending. They are powers of
// two and the middle between them, from 16 to what holds the longest prompt (at most maxCandidate and the context), and
// the lengths themselves in steps of 8 rows: all where there are few, else eight quantiles.
func (p Prompts) ladder(context int) []int {
	longest := 1
	for _, prompt := range p {
		longest = max(longest, prompt.Tokens)
	}
	top := min(context, maxCandidate, (longest+15)/16*16)
	var out []int
	add := func(rows int) {
		if rows >= 2 && rows <= top && !slices.Contains(out, rows) {
			out = append(out, rows)
		}
	}
	for i := defaultMinBucket; i <= top; i *= 2 {
		add(i)
		add(i * 3 / 2)
	}
	add(top)
	for _, n := range p.marks() {
		add((n + 7) / 8 * 8)
	}
	sort.Ints(out)
	return out
}

// marks returns the lengths that a bucket may be made for.
func (p Prompts) marks() (out []int) {
	lengths := slices.DeleteFunc(slices.Clone(p), func(x Prompt) bool { return x.Share == 0 })
	sort.SliceStable(lengths, func(i, j int) bool { return lengths[i].Tokens < lengths[j].Tokens })
	if len(lengths) <= maxAlone {
		for _, prompt := range lengths {
			out = append(out, prompt.Tokens)
		}
		return out
	}
	total := 0.0
	for _, prompt := range lengths {
		total += prompt.Share
	}
	const quantiles = 8 // of the prompts, each the shortest length that so many are no longer than
	sum, next := 0.0, 1
	for _, prompt := range lengths {
		sum += prompt.Share
		for next <= quantiles && sum >= total*float64(next)/quantiles*(1-1e-9) {
			out = append(out, prompt.Tokens)
			next++
		}
	}
	return slices.Compact(out)
}

// batchLadder returns the numbers of sequences that are measured where the batches are not fixed, ascending: the
// largest that come together, powers of two below it, and then the most frequent ones; at most maxBatches.
func (w *Workload) batchLadder() []int {
	list := slices.DeleteFunc(slices.Clone(w.Parallel), func(p Parallel) bool { return p.Share == 0 })
	sort.SliceStable(list, func(i, j int) bool { return list[i].Share > list[j].Share })
	var out []int
	add := func(sequences int) {
		if sequences >= 2 && len(out) < maxBatches && !slices.Contains(out, sequences) {
			out = append(out, sequences)
		}
	}
	most := 1
	for _, together := range list {
		most = max(most, together.Sequences)
	}
	// The largest first: it must be among them however many there may be.
	add(most)
	for i := 2; i < most; i *= 2 {
		add(i)
	}
	for _, together := range list {
		add(together.Sequences)
	}
	sort.Ints(out)
	return out
}
