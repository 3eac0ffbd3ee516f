package solver

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/socs/timeline"
	"github.com/hetc/hetc/solver/problem"
)

// fitted answers prices from fitted costs. What was asked once is kept: candidates ask for the same
// shapes over and over.
type fitted struct {
	costs *roofline.Costs
	soc   *socs.SoC
	ops   map[string]answer
	sets  map[string]answers
	hands map[[2]string]answer
	moves bool // some link of the SoC moves data
}

type answer struct {
	estimate
	err error
}

type answers struct {
	list []estimate
	err  error
}

func newFitted(c *roofline.Costs, s *socs.SoC) *fitted {
	f := &fitted{costs: c, soc: s, ops: map[string]answer{}, sets: map[string]answers{}, hands: map[[2]string]answer{}}
	for _, l := range s.Links {
		f.moves = f.moves || l.CopyGBps > 0
	}
	return f
}

// with is f for another description of the machine: what operators take depends on the costs alone, and is kept.
func (f *fitted) with(s *socs.SoC) *fitted {
	g := newFitted(f.costs, s)
	g.ops, g.sets = f.ops, f.sets
	return g
}

func (t *task) key() string { return t.proc + " " + t.op.Key() }

func (f *fitted) one(t task) (estimate, error) {
	k := t.key()
	a, ok := f.ops[k]
	if !ok {
		p, err := f.costs.Op(t.proc, t.op, t.cold())
		if err == nil {
			err = reckoned(p.NS, "%s on processor %q", t.op.Key(), t.proc)
		}
		a = answer{estimate{p.NS, p.LowNS, p.HighNS}, err}
		f.ops[k] = a
	}
	return a.estimate, a.err
}

// measured lists numbers of rows at which an operator of this shape was measured.
func (f *fitted) measured(t task) []int { return f.costs.MeasuredRows(t.proc, t.op, t.cold()) }

// forms lists the forms, besides the default, of which something is known.
func (f *fitted) forms(t task) []op.Form { return f.costs.Forms(t.proc, t.op) }

// cheapest is a task in the form in which it takes least.
func (f *fitted) cheapest(t task) (estimate, error) {
	best, err := f.one(t)
	for _, form := range f.forms(t) {
		t.op.Form = form
		if e, other := f.one(t); other == nil && (err != nil || e.ns < best.ns) {
			best, err = e, nil
		}
	}
	return best, err
}

func (f *fitted) together(tasks []task) ([]estimate, error) {
	if len(tasks) == 1 {
		e, err := f.one(tasks[0])
		return []estimate{e}, err
	}
	keys := make([]string, len(tasks))
	for i, t := range tasks {
		keys[i] = t.key()
	}
	k := strings.Join(keys, "\n")
	a, ok := f.sets[k]
	if !ok {
		a.list, a.err = f.compute(tasks)
		f.sets[k] = a
	}
	return a.list, a.err
}

func (f *fitted) compute(tasks []task) ([]estimate, error) {
	loads := make([]roofline.Load, len(tasks))
	out := make([]estimate, len(tasks))
	for i, t := range tasks {
		loads[i] = roofline.Load{Proc: t.proc, Op: t.op, Cold: t.cold()}
		var err error
		if out[i], err = f.one(t); err != nil {
			return nil, err
		}
	}
	slower, err := f.costs.Concurrent(loads...)
	if err != nil {
		return nil, err
	}
	for i := range out {
		times := func(ns int64) int64 { return whole(math.Round(float64(ns) * slower[i])) }
		out[i] = estimate{times(out[i].ns), times(out[i].low), times(out[i].high)}
		if err := reckoned(out[i].ns, "%s on processor %q beside others", tasks[i].op.Key(), tasks[i].proc); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (f *fitted) phase(t task) (timeline.Phase, error) {
	return f.costs.Phase(roofline.Load{Proc: t.proc, Op: t.op, Cold: t.cold()})
}

func (f *fitted) memory() *timeline.Memory { return f.costs.Memory() }

func (f *fitted) launch(proc string) (int64, error) {
	p, err := f.costs.Launch(proc)
	return p.NS, err
}

func (f *fitted) handover(from, to string) (estimate, error) {
	a, ok := f.hands[[2]string{from, to}]
	if !ok {
		p, known := f.costs.Sync(from, to)
		a.estimate = estimate{p.NS, p.LowNS, p.HighNS}
		// Processors that share a core never wait for each other: one has finished before the other begins.
		if !known && f.soc.Concurrent(from, to) == nil {
			a.err = diag.New(diag.ClassInput, "price the hand-over from %q to %q: never measured", from, to).
				WithHint("measure it: hetc profile --soc SOC --model MODEL -o rec.jsonl --resume")
		}
		if a.err == nil {
			a.err = reckoned(a.ns, "the hand-over from %q to %q", from, to)
		}
		f.hands[[2]string{from, to}] = a
	}
	return a.estimate, a.err
}

// copy is 0 unless the SoC says that data must move between the two.
func (f *fitted) copy(from, to string, bytes int64) (int64, error) {
	if !f.moves {
		return 0, nil
	}
	if l, ok := f.soc.Link(from, to); !ok || l.CopyGBps == 0 {
		return 0, nil
	}
	p, ok := f.costs.Copy(from, to, bytes)
	if !ok {
		return 0, diag.New(diag.ClassInput, "price a copy from %q to %q: never measured", from, to).
			WithHint("measure it: hetc profile --soc SOC --model MODEL -o rec.jsonl --resume")
	}
	return p.NS, reckoned(p.NS, "a copy from %q to %q", from, to)
}

// reckoned is an error where a time is beyond what problems are made of: cut off there, slow and slowest would look alike.
func reckoned(ns int64, what string, args ...any) error {
	if ns <= problem.MaxNS {
		return nil
	}
	return diag.New(diag.ClassInput, "price %s: %.4g s are predicted, want at most %.4g", fmt.Sprintf(what, args...), float64(ns)/1e9, float64(problem.MaxNS)/1e9).
		WithHint("no operator takes that long: measure again, and fit the costs again")
}

// machine is what of a SoC takes part in solving.
type machine struct {
	procs     []planir.Proc // ascending by name
	static    map[string]int
	power     map[string]float64 // W while busy, 0: not known
	conflicts [][2]int           // pairs that never appear together
	apart     map[[2]string]bool // the same, by name and in both orders
	beside    map[[2]int]bool    // pairs that may work at the same time, by index and in both orders
	tuples    [][]string

	assistants map[string][]string // whom of those that Input.Only names a processor assists
	notes      diag.List
}

// executes lists the operators a processor is given; empty: all. Attention needs a cache type it knows and
// dynamic rows.
func executes(p *socs.Processor, kv op.Type) []op.Kind {
	if p.DynamicRows && (len(p.KV) == 0 || slices.Contains(p.KV, kv)) {
		return p.Kinds // rule P003: the cache must not see rows beyond a call's
	}
	kinds := p.Kinds
	if len(kinds) == 0 {
		kinds = op.Kinds
	}
	var out []op.Kind
	for _, k := range kinds {
		if k != op.Attention && k != op.KVAppend {
			out = append(out, k)
		}
	}
	return out
}
