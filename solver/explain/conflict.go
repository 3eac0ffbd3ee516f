// Package explain knows why a plan is as it is, and what another one would be: where the time of a program goes, which limits
// bind or contradict each other, and what solving again without a processor, a bucket or a limit gives.
package explain

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/workload"
)

// Conflict is a smallest set of limits for which no plan was found: without any one of them there is a plan, and every smaller
// set has one.
type Conflict struct {
	Limits []Conflicting `json:"limits"`
	// Proved: no plan satisfies these limits. Else none was found, and there may be one.
	Proved bool `json:"proved"`
	// Smallest is false where the search for a smaller set was cut short; without any of Limits there is a plan all the same.
	Smallest bool  `json:"smallest"`
	Reason   error `json:"-"` // what solve said
}

// Conflicting is a limit in conflict with what would do in its place, the others as they are.
type Conflicting struct {
	Limit
	// Nearest is a value in the limit's place for which solve found a plan, as people write it; "" where none was. Lower ones may
	// work, too.
	Nearest string `json:"nearest,omitempty"`
	// Wider are additions to a list, each of which suffices.
	Wider []string `json:"wider,omitempty"`
	// Rest: further limits are in conflict too, and were taken away to find these.
	Rest bool `json:"rest,omitempty"`

	works float64 // Nearest as a number
}

// Solves that a search for a conflict takes at most, and one for a value that works: each takes about as long as the solve that failed.
const (
	conflictSolves = 48
	nearestSolves  = 10
)

// Phases of such a search, as progress tells.
const (
	conflictPhase = "limits in conflict" // Done counts solves
	nearestPhase  = "values that work"   // of the limits in conflict
)

// Diagnose looks for the limits in conflict that made Solve fail with err, by solving again without some of them. It returns err
// itself where it is no error of class ClassInfeasible or where no limit is to blame, else an error of that class which
// names the limits, and what would do instead of each.
func Diagnose(ctx context.Context, in solver.Input, err error) error {
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
func FindConflict(ctx context.Context, in solver.Input, reason error) (*Conflict, error) {
	t := newTrial(in, limitsOf(&in))
	t.most, t.what = conflictSolves, conflictPhase
	in.Tell(solver.Progress{Phase: conflictPhase})
	if !slices.ContainsFunc(t.limits, func(l Limit) bool { return strings.HasPrefix(l.Key, "quality.") }) {
		// Where the precisions that are permitted have plans without the other limits, they are taken as given: to try all others
		// under a limit that none keeps takes long.
		given := slices.DeleteFunc(slices.Clone(t.limits), func(l Limit) bool { return strings.Contains(l.Key, "schemes") })
		u := newTrial(in, given)
		u.most, u.what = conflictSolves, conflictPhase
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
	// infeasible: no plan was found that satisfies these. What cannot be told (times never measured) counts as feasible.
	infeasible := func(holds []bool) (bool, error) {
		in.Tell(solver.Progress{Phase: conflictPhase, Done: t.made}) // many an attempt ends before Solve tells anything
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
	c.Proved = solver.Proved(c.Reason)
	for k, i := range set {
		x := Conflicting{Limit: t.limits[i]}
		t.what = fmt.Sprintf("%s %d/%d %s", nearestPhase, k+1, len(set), x.Key)
		in.Tell(solver.Progress{Phase: nearestPhase, Done: k, All: len(set), What: x.Key})
		var rest []func(*solver.Input) // takes the limits away that have no part in it
		for k := range t.limits {
			if !slices.Contains(set, k) {
				rest = append(rest, t.limits[k].without)
			}
		}
		t.most = t.made + nearestSolves
		if err := t.nearest(ctx, i, rest, &x); err != nil && !errors.Is(err, errTrials) {
			return nil, err
		}
		c.Limits = append(c.Limits, x)
	}
	return c, nil
}

// smallestConflict finds a smallest subset of 0..n-1 that is infeasible, where subsets of feasible sets are feasible: the
// first in lexicographic order of those of its size. It is nil where all together are feasible. Where no single one will do, a deletion filter finds
// a set of which every proper subset is feasible; smaller ones are then looked for by size. smallest is false where
// infeasible ended the search with errTrials: the set is infeasible all the same.
func smallestConflict(n int, infeasible func(holds []bool) (bool, error)) (set []int, smallest bool, err error) {
	holds := make([]bool, n)
	for i := range holds {
		holds[i] = true
	}
	if bad, err := infeasible(holds); !bad || err != nil {
		return nil, false, err
	}
	held := func() (set []int) {
		for i := range holds {
			if holds[i] {
				set = append(set, i)
			}
		}
		return set
	}
	for i := range n { // most often one limit is enough
		only := make([]bool, n)
		only[i] = true
		bad, err := infeasible(only)
		if errors.Is(err, errTrials) {
			return held(), false, nil
		}
		if bad || err != nil {
			return []int{i}, true, err
		}
	}
	for i := range holds {
		holds[i] = false
		bad, err := infeasible(holds)
		if errors.Is(err, errTrials) {
			holds[i] = true
			return held(), false, nil
		}
		if err != nil {
			return nil, false, err
		}
		holds[i] = !bad
	}
	set = held()
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

// Steps of the search for a value near the limit's, and how near is near enough.
const (
	nearestSteps = 4
	nearEnough   = 0.01
)

// nearest fills in what would do instead of limit i, the others as they are; or, where those are in conflict among
// themselves, without the rest. A value is named only after solve found a plan with it, as it is written.
func (t *trial) nearest(ctx context.Context, i int, rest []func(*solver.Input), x *Conflicting) error {
	l := &t.limits[i]
	free, err := t.possible(ctx, l.without)
	if err != nil {
		return err
	}
	if free.result == nil && len(rest) > 0 {
		x.Rest = true
		u := newTrial(t.in, t.limits)
		u.most, u.made, u.what = t.most, t.made, t.what
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
	if least, ok, err := t.fromLeast(ctx, l); err != nil || ok {
		x.name(l, least)
		return err
	}
	if l.used != nil {
		if free, err = t.solve(ctx, l.without); err != nil || free.result == nil { // the best, for what it takes
			return err
		}
	}
	least, ok, err := t.search(ctx, l, free.result)
	if ok {
		x.name(l, least)
	}
	return err
}

// name names a value that works.
func (x *Conflicting) name(l *Limit, value float64) {
	if value > 0 {
		x.Nearest, x.works = l.format(value), value
	}
}

// fromLeast is a value that works, from the plan that takes least of the limit: solve says what that is, or has it as a goal.
func (t *trial) fromLeast(ctx context.Context, l *Limit) (value float64, ok bool, err error) {
	now, err := t.holding(ctx, slices.Repeat([]bool{true}, len(t.limits)))
	if err != nil {
		return 0, false, err
	}
	if least, known := leastOf(l, now.err); known {
		if value, ok, err = t.works(ctx, l, least); ok || err != nil {
			return value, ok, err
		}
	}
	if l.least == nil || l.used == nil {
		return 0, false, nil
	}
	a, err := t.solve(ctx, l.without, l.least)
	if err != nil || a.result == nil {
		return 0, false, err
	}
	return t.works(ctx, l, l.used(&t.in, a.result))
}

// works is a value, rounded up to what is written, if solve finds a plan with that.
func (t *trial) works(ctx context.Context, l *Limit, value float64) (rounded float64, ok bool, err error) {
	if math.IsNaN(value) || value <= l.number {
		return 0, false, nil
	}
	rounded = l.ceil(value)
	a, err := t.solve(ctx, func(in *solver.Input) { l.set(in, rounded) })
	return rounded, a.result != nil, err
}

// leastOf is the least value of a limit for which there may be a plan, where the error of a solve says it.
func leastOf(l *Limit, err error) (least float64, ok bool) {
	var small *solver.SmallestError
	if l.holdsMemory && errors.As(err, &small) {
		return float64(small.Total), true
	}
	var slow *solver.ExpertsError
	if l.Key == workload.KeyExperts && errors.As(err, &slow) {
		return slow.LeastUS, true
	}
	return 0, false
}

// search is a value of a limit for which a plan is found, near the limit's own. free is a plan without the limit: what it takes is enough.
func (t *trial) search(ctx context.Context, l *Limit, free *solver.Result) (value float64, ok bool, err error) {
	takes := func(r *solver.Result) float64 {
		if l.used == nil {
			return math.NaN()
		}
		return l.used(&t.in, r)
	}
	below, start := l.number, takes(free)
	if !(start > below) { // how much it takes is not known: double
		start = max(2*below, 1)
	}
	for !ok {
		if value, ok, err = t.works(ctx, l, start); err != nil {
			return 0, false, err
		}
		if !ok {
			below, start = start, 2*start
		}
	}
	for range nearestSteps {
		if value-below <= nearEnough*value || l.whole && value-below <= 1 {
			break
		}
		middle := below + (value-below)/2
		lower, found, err := t.works(ctx, l, middle)
		if errors.Is(err, errTrials) {
			break
		}
		if err != nil {
			return 0, false, err
		}
		switch {
		case !found:
			below = middle
		case lower >= value: // no fewer digits tell them apart
			return value, true, nil
		default:
			value = lower
		}
	}
	return value, true, nil
}

// ceil rounds a value up to few digits.
func (l *Limit) ceil(v float64) float64 {
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
	rounded := math.Ceil(v/step-1e-9) * step
	if l.whole {
		return math.Floor(rounded) // of what is written, as it is read again
	}
	if x, err := strconv.ParseFloat(fmt.Sprintf("%.6g", rounded), 64); err == nil {
		return x
	}
	return rounded
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
			d = diag.New(diag.ClassInfeasible, "a value that works is %s%s", l.Nearest, others).WithHint("raise %s to %s", l.Key, l.Nearest)
			if l.Key == "--max-memory" {
				d.WithHint("permit at least %.0f bytes: --max-memory %s", l.works, strings.ReplaceAll(l.Nearest, " ", ""))
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
	what, code := "no plan satisfies", "limits.conflict"
	if !c.Proved {
		what, code = "no plan was found that satisfies", "limits.open"
	}
	if len(names) > 1 {
		what += fmt.Sprintf(" these %d limits together:", len(names))
	}
	what += " " + strings.Join(names, "; ")
	reason := strings.TrimPrefix(c.Reason.Error(), "solve: ")
	return diag.New(diag.ClassInfeasible, "solve: %s: %s\n%w", what, reason, list).WithCode(code)
}
