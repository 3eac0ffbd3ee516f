package problem

import "slices"

// restricted is a joint problem with some of the choices of another one.
type restricted struct {
	*Joint
	kept [][][][]int // per part, chain and item: their numbers in the other, ascending
}

// among is the problem with the choices of open and those of also.
func (j *Joint) among(open [][][][]int, also [][][]int) *restricted {
	r := &restricted{Joint: new(*j)}
	r.Parts = slices.Clone(j.Parts)
	for p := range j.Parts {
		part := *j.Parts[p].Partition
		part.Chains = slices.Clone(part.Chains)
		var chains [][][]int
		for c := range part.Chains {
			items := slices.Clone(part.Chains[c].Items)
			var lists [][]int
			for i := range items {
				list := append(slices.Clone(open[p][c][i]), also[p][c][i])
				slices.Sort(list)
				list = slices.Compact(list)
				choices := make([]Choice, len(list))
				for k, n := range list {
					choices[k] = items[i].Choices[n]
				}
				items[i].Choices = choices
				lists = append(lists, list)
			}
			part.Chains[c].Items = items
			chains = append(chains, lists)
		}
		r.Parts[p].Partition = &part
		r.kept = append(r.kept, chains)
	}
	return r
}

// number writes choices of the other problem, which all are of this one, in this one's numbers.
func (r *restricted) number(x [][][]int) [][][]int {
	return r.each(x, func(kept []int, n int) int { k, _ := slices.BinarySearch(kept, n); return k })
}

// original writes choices of this problem in the other's numbers.
func (r *restricted) original(x [][][]int) [][][]int {
	return r.each(x, func(kept []int, n int) int { return kept[n] })
}

func (r *restricted) each(x [][][]int, to func(kept []int, n int) int) [][][]int {
	out := make([][][]int, len(x))
	for p := range x {
		for c := range x[p] {
			list := make([]int, len(x[p][c]))
			for i, n := range x[p][c] {
				list[i] = to(r.kept[p][c][i], n)
			}
			out[p] = append(out[p], list)
		}
	}
	return out
}
