package solver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
)

// Conflict is a smallest set of limits that no plan satisfies together: without any one of them there is a plan, and no
// smaller set has none.
type Conflict struct {
	Limits []Conflicting `json:"limits"`
	// Smallest is false where the search for a smaller set was cut short; without any of Limits there is a plan all the same.
	Smallest bool  `json:"smallest"`
	Reason   error `json:"-"` // what solve said
}

// Conflicting is a limit in conflict with what would do in its place, the others as they are.
type Conflicting struct {
	Limit
	// Nearest is the value nearest to the limit's for which a plan was found, as people write it; "" where none was. No
	// value up to Below has a plan.
	Nearest string `json:"nearest,omitempty"`
	Below   string `json:"below,omitempty"`
	// Wider are additions to a list, each of which suffices.
	Wider []string `json:"wider,omitempty"`
	// Rest: further limits are in conflict too, and were taken away to find these.
	Rest bool `json:"rest,omitempty"`

	least float64 // Nearest, unrounded
}

// Diagnose looks for the limits in conflict that made Solve fail with err, by solving again without some of them. It returns err
// itself where it is no error of class ClassInfeasible or where no limit is to blame, else an error of that class which
// names the limits, and what would do instead of each.
func Diagnose(ctx context.Context, in Input, err error) error {
	if err == nil || diag.ClassOf(err) != diag.ClassInfeasible {
		return err
	}
	c, failed := FindConflict(ctx, in, err)
	switch {
	case failed != nil && diag.ClassOf(failed) == diag.ClassInterrupted:
		return failed
	case failed != nil || c == nil:
		return err
	}
	return c.err()
}

// FindConflict is Diagnose with its result as data; nil where no limit is to blame.
func FindConflict(ctx context.Context, in Input, reason error) (*Conflict, error) {
	t := newTrial(in, limitsOf(&in))
	if !slices.ContainsFunc(t.limits, func(l Limit) bool { return strings.HasPrefix(l.Key, "quality.") }) {
		// Where the precisions that are permitted have plans without the other limits, they are taken as given: to try all others
		// under a limit that none keeps takes long.
		given := slices.DeleteFunc(slices.Clone(t.limits), func(l Limit) bool { return strings.Contains(l.Key, "schemes") })
		u := newTrial(in, given)
		a, err := u.holding(ctx, make([]bool, len(given)))
		if err != nil {
			return nil, err
		}
		if a.result != nil {
			t = u
		}
	}
	n := len(t.limits)
	all := slices.Repeat([]bool{true}, n)
	t.known[fmt.Sprint(all)] = attempt{err: reason} // the input as it is
	// infeasible: proved that no plan satisfies these. What cannot be told (times never measured) counts as feasible.
	infeasible := func(holds []bool) (bool, error) {
		a, err := t.holding(ctx, holds)
		if err != nil {
			return false, err
		}
		yes, known := a.feasible()
		return !yes && known, nil
	}
	none := make([]bool, n)
	if bad, err := infeasible(none); bad || err != nil {
		return nil, err // the machine or the model itself
	}
	set, smallest, err := smallestConflict(n, infeasible)
	if err != nil || set == nil {
		return nil, err
	}
	c := &Conflict{Smallest: smallest, Reason: reason}
	only := make([]bool, n)
	for _, i := range set {
		only[i] = true
	}
	if a, err := t.holding(ctx, only); err == nil && a.err != nil {
		c.Reason = a.err // what these limits alone make impossible
	}
	for _, i := range set {
		x := Conflicting{Limit: t.limits[i]}
		var rest []func(*Input) // takes the limits away that have no part in it
		for k := range t.limits {
			if !slices.Contains(set, k) {
				rest = append(rest, t.limits[k].without)
			}
		}
		if err := t.nearest(ctx, i, rest, &x); err != nil {
			if errors.Is(err, errTrials) {
				c.Limits = append(c.Limits, x)
				continue
			}
			return nil, err
		}
		c.Limits = append(c.Limits, x)
	}
	return c, nil
}

// smallestConflict finds a smallest subset of 0..n-1 that is infeasible, where subsets of feasible sets are feasible: the
// first in lexicographic order of those of its size. It is nil where all together are feasible. Where no single one will do, a deletion filter finds
// a set of which every proper subset is feasible; smaller ones are then looked for by size. smallest is false where
// infeasible ended that search with errTrials.
func smallestConflict(n int, infeasible func(holds []bool) (bool, error)) (set []int, smallest bool, err error) {
	holds := make([]bool, n)
	for i := range holds {
		holds[i] = true
	}
	if bad, err := infeasible(holds); !bad || err != nil {
		return nil, false, err
	}
	for i := range n { // most often one limit is enough
		only := make([]bool, n)
		only[i] = true
		if bad, err := infeasible(only); bad || err != nil {
			return []int{i}, true, err
		}
	}
	for i := range holds {
		holds[i] = false
		bad, err := infeasible(holds)
		if err != nil {
			return nil, false, err
		}
		holds[i] = !bad
	}
	for i := range holds {
		if holds[i] {
			set = append(set, i)
		}
	}
	for size := 2; size <= len(set); size++ {
		pick := make([]int, 0, size)
		var walk func(from int) (bool, error)
		walk = func(from int) (bool, error) {
			if len(pick) == size {
				holds := make([]bool, n)
				for _, i := range pick {
					holds[i] = true
				}
				return infeasible(holds)
			}
			for i := from; i < n; i++ {
				pick = append(pick, i)
				if bad, err := walk(i + 1); bad || err != nil {
					return bad, err
				}
				pick = pick[:len(pick)-1]
			}
			return false, nil
		}
		bad, err := walk(0)
		if errors.Is(err, errTrials) {
			return set, false, nil
		}
		if err != nil {
			return nil, false, err
		}
		if bad {
			return pick, true, nil
		}
	}
	return set, true, nil
}

// Steps of the search for the nearest value, and how near is near enough.
const (
	nearestSteps = 5
	nearEnough   = 0.01
)

// nearest fills in what would do instead of limit i, the others as they are; or, where those are in conflict among
// themselves, without the rest.
func (t *trial) nearest(ctx context.Context, i int, rest []func(*Input), x *Conflicting) error {
	l := &t.limits[i]
	free, err := t.possible(ctx, l.without)
	if err != nil {
		return err
	}
	if free.result == nil && len(rest) > 0 {
		x.Rest = true
		u := newTrial(t.in, t.limits)
		u.most, u.made = t.most, t.made
		for _, c := range rest {
			c(&u.in)
		}
		defer func() { t.made = u.made }()
		t = u
		if free, err = t.possible(ctx, l.without); err != nil {
			return err
		}
	}
	for _, w := range l.wider {
		a, err := t.possible(ctx, w.do)
		if err != nil {
			return err
		}
		if a.result != nil {
			x.Wider = append(x.Wider, w.text)
		}
	}
	if l.set == nil || free.result == nil {
		return nil
	}
	// What solve found to be the least needs no search.
	now, err := t.holding(ctx, slices.Repeat([]bool{true}, len(t.limits)))
	if err != nil {
		return err
	}
	if least, ok := leastOf(l, now.err); ok {
		if a, err := t.possible(ctx, func(in *Input) { l.set(in, least) }); err != nil || a.result != nil {
			x.Nearest, x.least = l.ceil(least), least
			return err
		}
	}
	if l.least != nil && l.used != nil {
		a, err := t.solve(ctx, l.without, l.least)
		if err != nil {
			return err
		}
		if a.result != nil {
			if v := l.used(&t.in, a.result); v > l.number {
				x.Nearest, x.least = l.ceil(v), v
				return nil
			}
		}
	}
	if l.used != nil {
		if free, err = t.solve(ctx, l.without); err != nil || free.result == nil { // the best, for what it takes
			return err
		}
	}
	least, below, err := t.search(ctx, l, free.result)
	if err != nil {
		return err
	}
	x.Nearest, x.least = l.ceil(least), least
	if below > l.number {
		x.Below = l.format(below)
	}
	return nil
}

// leastOf is the least value of a limit for which there may be a plan, where the error of a solve says it.
func leastOf(l *Limit, err error) (least float64, ok bool) {
	var small *smallestError
	if l.holdsMemory && errors.As(err, &small) {
		return float64(small.total), true
	}
	var slow *expertsError
	if l.Key == limitExperts && errors.As(err, &slow) {
		return slow.leastUS, true
	}
	return 0, false
}

// search is the least value of a limit for which a plan is found, and a value below it for which none is. free is a plan without
// the limit: what it takes is enough.
func (t *trial) search(ctx context.Context, l *Limit, free *Result) (least, below float64, err error) {
	try := func(v float64) (*Result, error) {
		if l.whole {
			v = math.Ceil(v)
		}
		a, err := t.solve(ctx, func(in *Input) { l.set(in, v) })
		return a.result, err
	}
	takes := func(r *Result) float64 {
		if l.used == nil {
			return math.NaN()
		}
		return l.used(&t.in, r)
	}
	below, least = l.number, takes(free)
	if math.IsNaN(least) || least <= below { // how much it takes is not known: double
		for least = max(2*below, 1); ; least *= 2 {
			r, err := try(least)
			if err != nil {
				return 0, 0, err
			}
			if r != nil {
				if u := takes(r); u > below && u < least {
					least = u
				}
				break
			}
			below = least
		}
	}
	for range nearestSteps {
		if least-below <= nearEnough*least || l.whole && least-below <= 1 {
			break
		}
		mid := below + (least-below)/2
		r, err := try(mid)
		if err != nil {
			return 0, 0, err
		}
		if r == nil {
			below = mid
			continue
		}
		least = mid
		if u := takes(r); u > below && u < least {
			least = u
		}
	}
	return least, below, nil
}

// ceil writes a value with few digits, rounded up.
func (l *Limit) ceil(v float64) string {
	step := 1.0
	if v > 0 {
		step = math.Pow(10, math.Floor(math.Log10(v))-2)
	}
	if l.whole {
		step = 1
		for _, unit := range []float64{1 << 30, 1 << 20, 1 << 10} {
			if v >= unit {
				step = unit / 100
				if v >= 100*unit {
					step = unit
				} else if v >= 10*unit {
					step = unit / 10
				}
				break
			}
		}
	}
	return l.format(math.Ceil(v/step-1e-9) * step)
}

// err is the conflict as an error.
func (c *Conflict) err() error {
	names := make([]string, len(c.Limits))
	var list diag.List
	for i := range c.Limits {
		l := &c.Limits[i]
		names[i] = l.String()
		var d *diag.Diagnostic
		others := ""
		if len(c.Limits) > 1 {
			others = ", with the rest as it is"
		}
		if l.Rest {
			others = "; the other limits allow no plan either"
		}
		switch {
		case l.Nearest != "":
			d = diag.New(diag.ClassInfeasible, "the least that works is %s%s", l.Nearest, others).WithHint("raise %s to %s", l.Key, l.Nearest)
			if l.Key == "--max-memory" {
				d.WithHint("permit at least %.0f bytes: --max-memory %s", l.least, strings.ReplaceAll(l.Nearest, " ", ""))
			}
		case len(l.Wider) > 0:
			d = diag.New(diag.ClassInfeasible, "works with any of these added: %s%s", strings.Join(l.Wider, ", "), others).WithHint("add one of %s to %s", strings.Join(l.Wider, ", "), l.Key)
			if l.Key == "processors.schemes" {
				d.WithHint("use a machine with a processor that executes %s", strings.Join(l.Wider, " or "))
			}
		default:
			d = diag.New(diag.ClassInfeasible, "there is a plan without it")
		}
		d.Path = l.Key
		list = append(list, d)
	}
	what := fmt.Sprintf("no plan satisfies %s", names[0])
	if len(names) > 1 {
		what = fmt.Sprintf("no plan satisfies these %d limits together: %s", len(names), strings.Join(names, "; "))
	}
	reason := strings.TrimPrefix(c.Reason.Error(), "solve: ")
	return diag.New(diag.ClassInfeasible, "solve: %s: %s\n%w", what, reason, list).WithCode("limits.conflict")
}
