package imported

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/hetc/hetc/planir/op"
)

// fewest is the least number of operators of a kind that stay in the fit.
const fewest = 5

// HoldOut keeps the given share (0..1) of the operators of each kind, scheme and processor out of
// the fit, and returns their number. Operators at the corners of the range of sizes stay in the
// fit, so that few predictions extrapolate. The others are drawn with the seed. Refused operators
// have no time to hold out.
func (t *Table) HoldOut(share float64, seed uint64) int {
	groups := map[string][]int{}
	for i := range t.Rows {
		r := &t.Rows[i]
		if r.HeldOut = false; r.Refused != "" {
			continue
		}
		o := r.Op
		o.M, o.K, o.N, o.Context = 1, 0, 0, 0
		like := Row{Proc: r.Proc, Op: o, Cold: r.Cold}
		groups[like.key()] = append(groups[like.key()], i)
	}
	random := rand.New(rand.NewPCG(seed, 0))
	held := 0
	for _, key := range keys(groups) {
		all := groups[key]
		fit := t.choose(all, max(fewest, int(math.Round((1-share)*float64(len(all))))), random)
		for _, i := range all {
			if !fit[i] {
				t.Rows[i].HeldOut = true
				held++
			}
		}
	}
	return held
}

// choose takes n of the rows for the fit: corners and ends first, the rest at random. Corners and
// ends that would be more than half of n are reduced to the smallest and the largest row.
func (t *Table) choose(rows []int, n int, random *rand.Rand) map[int]bool {
	var corners []int
	for sign := range 1 << axes {
		if c := t.corner(rows, sign); !slices.Contains(corners, c) {
			corners = append(corners, c)
		}
	}
	for _, end := range t.ends(rows) {
		if !slices.Contains(corners, end) {
			corners = append(corners, end)
		}
	}
	if len(corners) > n/2 {
		corners = slices.Compact([]int{t.corner(rows, 0), t.corner(rows, 1<<axes-1)})
	}
	out := map[int]bool{}
	for _, i := range corners {
		out[i] = true
	}
	for _, at := range random.Perm(len(rows)) {
		if len(out) >= n {
			break
		}
		out[rows[at]] = true
	}
	return out
}

// ends returns the rows with the least and the greatest M of the shape with most rows, which is the
// sweep over M where the table has one.
func (t *Table) ends(rows []int) []int {
	shape := func(i int) [3]int { o := &t.Rows[i].Op; return [3]int{o.K, o.N, o.Context} }
	count := map[[3]int]int{}
	best := rows[0]
	for _, i := range rows {
		count[shape(i)]++
	}
	for _, i := range rows {
		if count[shape(i)] > count[shape(best)] {
			best = i
		}
	}
	least, most := best, best
	for _, i := range rows {
		if shape(i) != shape(best) {
			continue
		}
		if t.Rows[i].Op.M < t.Rows[least].Op.M {
			least = i
		}
		if t.Rows[i].Op.M > t.Rows[most].Op.M {
			most = i
		}
	}
	return []int{least, most}
}

// axes is the number of sizes that rows of a group differ in.
const axes = 4

// corner returns the row farthest in one diagonal direction, in logarithms of sizes: axis i grows where
// bit i of sign is set, and falls elsewhere.
func (t *Table) corner(rows []int, sign int) int {
	best, at := math.Inf(-1), rows[0]
	for _, i := range rows {
		sum := 0.0
		for axis, x := range sizes(&t.Rows[i].Op) {
			if sign>>axis&1 == 0 {
				x = -x
			}
			sum += x
		}
		if sum > best {
			best, at = sum, i
		}
	}
	return at
}

// sizes returns the logarithms of an operator's sizes, 0 for those that it does not have.
func sizes(o *op.Op) (out [axes]float64) {
	for i, n := range [axes]int{o.M, o.K, o.N, o.Context} {
		out[i] = math.Log(float64(max(1, n)))
	}
	return out
}
