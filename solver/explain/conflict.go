// Package explain knows why a plan is as it is, and what another one would be: where the time of a program goes,
// which limits bind or contradict each other, and what solving again without a processor, a bucket or a limit gives.
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
)

// Conflict is a smallest set of limits for which no plan was found: without any one of them there is a plan, and
// every smaller set has one.
type Conflict struct {
	Limits []Conflicting `json:"limits"`
	// Proved: no plan satisfies these limits. Else none was found, and there may be one.
	Proved bool `json:"proved"`
	// Smallest is false where the search for a smaller set was cut short; without any of Limits there is a plan all
	// the same.
	Smallest bool  `json:"smallest"`
	Reason   error `json:"-"` // what solve said
}

// Conflicting is a limit in a conflict, with a value that would work in its place while the other limits stay.
type Conflicting struct {
	Limit
	// Nearest is a value in the limit's place for which solve found a plan, as people write it; "" where none was.
	// Lower ones may work, too.
	Nearest string `json:"nearest,omitempty"`
	// Wider are additions to a list, each of which suffices.
	Wider []string `json:"wider,omitempty"`
	// Rest: further limits are in conflict too, and were taken away to find these.
	Rest bool `json:"rest,omitempty"`

	works float64 // Nearest as a number
}

// Solves that a search for a conflict takes at most, and one for a value that works: each takes about as long as the
// solve that failed.
const (
	conflictSolves = 48
	nearestSolves  = 10
)

// Phases of such a search, as progress tells.
const (
	conflictPhase = "limits in conflict" // Done counts solves
	nearestPhase  = "values that work"   // of the limits in conflict
)

// Diagnose finds out which limits made Solve fail with err, by solving again without some of them. It returns an error
// of class ClassInfeasible that names the limits, and for each a value that would work. If err is of another class or
// no limit is to blame, it returns err itself.
func Diagnose(ctx context.Context, in solver.Input, err error) error {
	if err == nil || diag.ClassOf(err) != diag.ClassInfeasible {
		return err
	}
	conflict, failed := findConflict(ctx, in, err)
	if diag.ClassOf(failed) == diag.ClassInterrupted {
		return failed
	}
	// A search that failed explains nothing: the first error says more.
	if failed != nil || conflict == nil {
		return err
	}
	return conflict.err()
}

// findConflict does the work of Diagnose and returns the result as data; nil if no limit is to blame.
func findConflict(ctx context.Context, in solver.Input, reason error) (*Conflict, error) {
	in.Tell(solver.Progress{Phase: conflictPhase})
	trial, err := conflictTrial(ctx, in)
	if err != nil {
		return nil, err
	}
	count := len(trial.limits)
	trial.known[fmt.Sprint(slices.Repeat([]bool{true}, count))] = attempt{err: reason} // the input as it is

	// infeasible: no plan was found that satisfies these. What cannot be told (times never measured) counts as
	// feasible.
	infeasible := func(holds []bool) (bool, error) {
		// Many an attempt ends before Solve reports anything.
		in.Tell(solver.Progress{Phase: conflictPhase, Done: trial.made})
		attempt, err := trial.holding(ctx, holds)
		if err != nil {
			return false, err
		}
		yes, known := attempt.feasible()
		return !yes && known, nil
	}

	// Without any limit there is no plan either, so no limit is to blame.
	if bad, err := infeasible(make([]bool, count)); bad || err != nil {
		return nil, err // the machine or the model itself
	}
	set, smallest, err := smallestConflict(count, infeasible)
	if err != nil || set == nil {
		return nil, err
	}

	conflict := &Conflict{Smallest: smallest, Reason: reason}
	// The reason told is that of the conflicting limits alone; the first one may name a limit that plays no part.
	only := make([]bool, count)
	for _, i := range set {
		only[i] = true
	}
	if at, err := trial.holding(ctx, only); err == nil && at.err != nil {
		conflict.Reason = at.err // what these limits alone make impossible
	}
	conflict.Proved = solver.Proved(conflict.Reason)

	if conflict.Limits, err = trial.nearestOfEach(ctx, set); err != nil {
		return nil, err
	}
	return conflict, nil
}

// nearestOfEach finds a value that would work for each limit of a conflict.
func (t *trial) nearestOfEach(ctx context.Context, set []int) ([]Conflicting, error) {
	var rest []func(*solver.Input) // takes the limits away that have no part in the conflict
	for i := range t.limits {
		if !slices.Contains(set, i) {
			rest = append(rest, t.limits[i].without)
		}
	}

	var limits []Conflicting
	for done, i := range set {
		found := Conflicting{Limit: t.limits[i]}
		t.what = fmt.Sprintf("%s %d/%d %s", nearestPhase, done+1, len(set), found.Key)
		t.in.Tell(solver.Progress{Phase: nearestPhase, Done: done, All: len(set), What: found.Key})
		t.most = t.made + nearestSolves
		if err := t.nearest(ctx, i, rest, &found); err != nil && !errors.Is(err, errTrials) {
			return nil, err
		}
		limits = append(limits, found)
	}
	return limits, nil
}

// conflictTrial returns the trial with which to find a conflict. If there is no limit of quality and the permitted
// precisions have a plan without the other limits, they do not count as a limit. Trying all other precisions under a
// limit that none of them keeps would take long.
func conflictTrial(ctx context.Context, in solver.Input) (*trial, error) {
	whole := newTrial(in, limitsOf(&in))
	whole.most, whole.what = conflictSolves, conflictPhase
	if slices.ContainsFunc(whole.limits, func(l Limit) bool { return strings.HasPrefix(l.Key, "quality.") }) {
		return whole, nil
	}
	given := slices.DeleteFunc(slices.Clone(whole.limits),
		func(l Limit) bool { return strings.Contains(l.Key, "schemes") })
	inner := newTrial(in, given)
	inner.most, inner.what = conflictSolves, conflictPhase
	attempt, err := inner.holding(ctx, make([]bool, len(given)))
	if err != nil || attempt.result == nil {
		return whole, err
	}
	return inner, nil
}

// smallestConflict finds a smallest subset of 0..n-1 that is infeasible, where subsets of feasible sets are feasible:
// the first in lexicographic order of those of its size. It is nil where all together are feasible.
//
// Most often one limit is enough, which is tried first. Else a deletion filter takes limits away one by one, which
// leaves a set of which every proper subset is feasible, and all smaller sets are tried by size. smallest is false
// where infeasible ended the search with errTrials: the set is infeasible all the same.
func smallestConflict(count int, infeasible func(holds []bool) (bool, error)) (set []int, smallest bool, err error) {
	holds := slices.Repeat([]bool{true}, count)
	if bad, err := infeasible(holds); !bad || err != nil {
		return nil, false, err
	}
	ended := func(err error) ([]int, bool, error) { // the search
		if errors.Is(err, errTrials) {
			return held(holds), false, nil
		}
		return nil, false, err
	}

	for i := range count {
		only := make([]bool, count)
		only[i] = true
		bad, err := infeasible(only)
		if err != nil {
			return ended(err)
		}
		if bad {
			return []int{i}, true, nil
		}
	}

	for i := range holds {
		holds[i] = false
		bad, err := infeasible(holds)
		holds[i] = err != nil || !bad
		if err != nil {
			return ended(err)
		}
	}

	set = held(holds)
	for size := 2; size <= len(set); size++ {
		found, err := infeasibleOf(count, size, infeasible)
		if errors.Is(err, errTrials) {
			return set, false, nil
		}
		if found != nil || err != nil {
			return found, err == nil, err
		}
	}
	return set, true, nil
}

// held returns the indices that are true.
func held(holds []bool) (set []int) {
	for i := range holds {
		if holds[i] {
			set = append(set, i)
		}
	}
	return set
}

// infeasibleOf returns the first infeasible subset of a size in lexicographic order, nil if there is none.
func infeasibleOf(count, size int, infeasible func(holds []bool) (bool, error)) ([]int, error) {
	pick := make([]int, 0, size)
	// walk extends pick by indices from from on, and stops with pick as it is at the first infeasible one.
	var walk func(from int) (bool, error)
	walk = func(from int) (bool, error) {
		if len(pick) == size {
			holds := make([]bool, count)
			for _, i := range pick {
				holds[i] = true
			}
			return infeasible(holds)
		}
		for i := from; i < count; i++ {
			pick = append(pick, i)
			if bad, err := walk(i + 1); bad || err != nil {
				return bad, err
			}
			pick = pick[:len(pick)-1]
		}
		return false, nil
	}
	bad, err := walk(0)
	if !bad || err != nil {
		return nil, err
	}
	return pick, nil
}

// Steps of the search for a value near the limit's, and how near is near enough.
const (
	nearestSteps = 4
	nearEnough   = 0.01
)

// nearest finds a value that would work for limit i, while the others stay as they are. If the others conflict among
// themselves, it tries without the rest. It names a value only after solve found a plan with it, as it is written.
func (t *trial) nearest(ctx context.Context, i int, rest []func(*solver.Input), found *Conflicting) error {
	limit := &t.limits[i]
	free, err := t.possible(ctx, limit.without)
	if err != nil {
		return err
	}
	if free.result == nil && len(rest) > 0 {
		found.Rest = true
		// Solves of the inner trial count for this one too, through the deferred assignment.
		inner := newTrial(t.in, t.limits)
		inner.most, inner.made, inner.what = t.most, t.made, t.what
		for _, without := range rest {
			without(&inner.in)
		}
		defer func() { t.made = inner.made }()
		t = inner
		if free, err = t.possible(ctx, limit.without); err != nil {
			return err
		}
	}
	if found.Wider, err = t.widerOf(ctx, limit); err != nil {
		return err
	}
	if limit.set == nil || free.result == nil {
		return nil
	}
	if least, ok, err := t.fromLeast(ctx, limit); err != nil || ok {
		found.name(limit, least)
		return err
	}
	// possible may have found a plan of whole operators, which takes more of the limit than the best one.
	if limit.used != nil {
		if free, err = t.solve(ctx, limit.without); err != nil || free.result == nil { // the best, for what it takes
			return err
		}
	}
	least, ok, err := t.search(ctx, limit, free.result)
	if ok {
		found.name(limit, least)
	}
	return err
}

// widerOf returns which permissions in addition to a limit's would have a plan: with an error, those found before it.
func (t *trial) widerOf(ctx context.Context, limit *Limit) (texts []string, err error) {
	for _, addition := range limit.wider {
		attempt, err := t.possible(ctx, addition.do)
		if err != nil {
			return texts, err
		}
		if attempt.result != nil {
			texts = append(texts, addition.text)
		}
	}
	return texts, nil
}

// name notes a value that works.
func (c *Conflicting) name(l *Limit, value float64) {
	if value > 0 {
		c.Nearest, c.works = l.format(value), value
	}
}

// fromLeast returns a value that works, taken from the plan that takes least of the limit. Solve reports that least
// amount, or can minimise it. The value is 0 if a workload may not give the limit such a value.
func (t *trial) fromLeast(ctx context.Context, limit *Limit) (value float64, ok bool, err error) {
	now, err := t.holding(ctx, slices.Repeat([]bool{true}, len(t.limits)))
	if err != nil {
		return 0, false, err
	}
	if least, known := leastOf(limit, now.err); known {
		if value, ok, err = t.works(ctx, limit, least); ok || err != nil {
			return value, ok, err
		}
	}
	if limit.least == nil || limit.used == nil {
		return 0, false, nil
	}
	attempt, err := t.solve(ctx, limit.without, limit.least)
	if err != nil || attempt.result == nil {
		return 0, false, err
	}
	value = limit.used(&t.in, attempt.result)
	if limit.most > 0 && limit.ceil(value) > limit.most {
		return 0, true, nil // what works may not be written
	}
	return t.works(ctx, limit, value)
}

// works rounds a value up to the digits that are written, and returns it if solve finds a plan with it.
func (t *trial) works(ctx context.Context, limit *Limit, value float64) (rounded float64, ok bool, err error) {
	// A value no larger than the limit itself is known to fail.
	if math.IsNaN(value) || value <= limit.number {
		return 0, false, nil
	}
	rounded = limit.ceil(value)
	at, err := t.solve(ctx, func(in *solver.Input) { limit.set(in, rounded) })
	return rounded, at.result != nil, err
}

// leastOf returns the least value of a limit for which there may be a plan, where the error of a solve says it.
func leastOf(limit *Limit, err error) (least float64, ok bool) {
	var small *solver.SmallestError
	if limit.holdsMemory && errors.As(err, &small) {
		return float64(small.Total), true
	}
	return 0, false
}

// search returns a value of a limit near the present one for which solve finds a plan. free is a plan without the
// limit; the amount that it takes works in any case.
func (t *trial) search(ctx context.Context, limit *Limit, free *solver.Result) (value float64, ok bool, err error) {
	takes := func(result *solver.Result) float64 {
		if limit.used == nil {
			return math.NaN()
		}
		return limit.used(&t.in, result)
	}
	below, start := limit.number, takes(free)
	if !(start > below) { // how much it takes is not known: double
		start = max(2*below, 1)
	}
	// Doubling ends: the search runs out of solves (errTrials), if nothing else.
	for !ok {
		if value, ok, err = t.works(ctx, limit, start); err != nil {
			return 0, false, err
		}
		if !ok {
			below, start = start, 2*start
		}
	}

	// Bisection between a value that fails and one that works.
	for range nearestSteps {
		if value-below <= nearEnough*value || limit.whole && value-below <= 1 {
			break
		}
		middle := below + (value-below)/2
		lower, found, err := t.works(ctx, limit, middle)
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
func (l *Limit) ceil(value float64) float64 {
	step := 1.0
	if value > 0 {
		// Three significant digits, as the value is written.
		step = math.Pow(10, math.Floor(math.Log10(value))-2)
	}
	if l.whole {
		step = wholeStep(value)
	}

	// A value that is written exactly already must not be rounded up by a step.
	rounded := math.Ceil(value/step-1e-9) * step
	if l.whole {
		return math.Floor(rounded) // of what is written, as it is read again
	}
	if written, err := strconv.ParseFloat(fmt.Sprintf("%.6g", rounded), 64); err == nil {
		return written
	}
	return rounded
}

// wholeStep returns the unit to which a number of bytes is rounded: three significant digits of KiB, MiB or GiB; 1 for
// smaller numbers.
func wholeStep(value float64) float64 {
	for _, unit := range []float64{1 << 30, 1 << 20, 1 << 10} {
		switch {
		case value >= 100*unit:
			return unit
		case value >= 10*unit:
			return unit / 10
		case value >= unit:
			return unit / 100
		}
	}
	return 1
}

// err returns the conflict as an error.
func (c *Conflict) err() error {
	names := make([]string, len(c.Limits))
	var list diag.List
	for i := range c.Limits {
		names[i] = c.Limits[i].String()
		list = append(list, c.Limits[i].diagnostic(len(c.Limits) > 1))
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

// diagnostic says what would work in place of a limit, at the path where the limit is written. several: there are
// others in the conflict.
func (c *Conflicting) diagnostic(several bool) *diag.Diagnostic {
	others := ""
	if several {
		others = ", with the rest as it is"
	}
	if c.Rest {
		others = "; the other limits allow no plan either"
	}
	var diagnostic *diag.Diagnostic
	switch {
	case c.Nearest != "":
		diagnostic = diag.New(diag.ClassInfeasible, "a value that works is %s%s", c.Nearest, others).
			WithHint("raise %s to %s", c.Key, c.Nearest)
		if c.Key == "--max-memory" {
			diagnostic.WithHint("permit at least %.0f bytes: --max-memory %s",
				c.works, strings.ReplaceAll(c.Nearest, " ", ""))
		}
	case len(c.Wider) > 0:
		diagnostic = diag.New(diag.ClassInfeasible, "works with any of these added: %s%s",
			strings.Join(c.Wider, ", "), others).
			WithHint("add one of %s to %s", strings.Join(c.Wider, ", "), c.Key)
		if c.Key == "processors.schemes" {
			diagnostic.WithHint("use a machine with a processor that executes %s", strings.Join(c.Wider, " or "))
		}
	default:
		diagnostic = diag.New(diag.ClassInfeasible, "there is a plan without it")
	}
	diagnostic.Path = c.Key
	return diagnostic
}
