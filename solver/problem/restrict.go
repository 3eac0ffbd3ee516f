package problem

import "slices"

// restricted is a joint problem with some of the choices of another one.
type restricted struct {
	*Joint
	kept [][][][]int // per part, chain and item: their numbers in the other, ascending
}

// among returns the problem with the choices of open and those of also. Limits, assets and conflicts are the same ones.
func (j *Joint) among(open [][][][]int, also [][][]int) *restricted {
	out := &restricted{Joint: new(*j)}
	out.Parts = slices.Clone(j.Parts)
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
				for at, choice := range list {
					choices[at] = items[i].Choices[choice]
				}
				items[i].Choices = choices
				lists = append(lists, list)
			}
			part.Chains[c].Items = items
			chains = append(chains, lists)
		}
		out.Parts[p].Partition = &part
		out.kept = append(out.kept, chains)
	}
	return out
}

// number writes choices of the other problem, which all are of this one, in this one's numbers.
func (r *restricted) number(choices [][][]int) [][][]int {
	return r.each(choices, func(kept []int, choice int) int { at, _ := slices.BinarySearch(kept, choice); return at })
}

// original writes choices of this problem in the other's numbers.
func (r *restricted) original(choices [][][]int) [][][]int {
	return r.each(choices, func(kept []int, choice int) int { return kept[choice] })
}

// each maps every choice, given the numbers that its item kept.
func (r *restricted) each(choices [][][]int, to func(kept []int, choice int) int) [][][]int {
	out := make([][][]int, len(choices))
	for p := range choices {
		for c := range choices[p] {
			list := make([]int, len(choices[p][c]))
			for i, choice := range choices[p][c] {
				list[i] = to(r.kept[p][c][i], choice)
			}
			out[p] = append(out[p], list)
		}
	}
	return out
}
