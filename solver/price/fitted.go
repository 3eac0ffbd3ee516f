package price

import (
	"math"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/socs/timeline"
)

// fitted answers prices from fitted costs. What was asked once is kept: candidates ask for the same
// shapes over and over.
type Fitted struct {
	Costs *roofline.Costs
	soc   *socs.SoC
	ops   map[string]answer
	sets  map[string]answers
	hands map[[2]string]answer
	moves bool // some link of the SoC moves data
}

type answer struct {
	Estimate
	err error
}

type answers struct {
	list []Estimate
	err  error
}

func NewFitted(c *roofline.Costs, s *socs.SoC) *Fitted {
	f := &Fitted{Costs: c, soc: s, ops: map[string]answer{}, sets: map[string]answers{}, hands: map[[2]string]answer{}}
	for _, l := range s.Links {
		f.moves = f.moves || l.CopyGBps > 0
	}
	return f
}

// with is f for another description of the Machine: what operators take depends on the costs alone, and is kept.
func (f *Fitted) With(s *socs.SoC) *Fitted {
	g := NewFitted(f.Costs, s)
	g.ops, g.sets = f.ops, f.sets
	return g
}

func (f *Fitted) One(t Task) (Estimate, error) {
	k := t.Key()
	a, ok := f.ops[k]
	if !ok {
		p, err := f.Costs.Op(t.Proc, t.Op, t.Cold())
		if err == nil {
			err = reckoned(p.NS, "%s on processor %q", t.Op.Key(), t.Proc)
		}
		a = answer{Estimate{p.NS, p.LowNS, p.HighNS}, err}
		f.ops[k] = a
	}
	return a.Estimate, a.err
}

// measured lists numbers of rows at which an operator of this shape was measured.
func (f *Fitted) Measured(t Task) []int { return f.Costs.MeasuredRows(t.Proc, t.Op, t.Cold()) }

// forms lists the forms, besides the default, of which something is known.
func (f *Fitted) Forms(t Task) []op.Form { return f.Costs.Forms(t.Proc, t.Op) }

// cheapest is a task in the form in which it takes least.
func (f *Fitted) Cheapest(t Task) (Estimate, error) {
	best, err := f.One(t)
	for _, form := range f.Forms(t) {
		t.Op.Form = form
		if e, other := f.One(t); other == nil && (err != nil || e.NS < best.NS) {
			best, err = e, nil
		}
	}
	return best, err
}

func (f *Fitted) Together(tasks []Task) ([]Estimate, error) {
	if len(tasks) == 1 {
		e, err := f.One(tasks[0])
		return []Estimate{e}, err
	}
	keys := make([]string, len(tasks))
	for i, t := range tasks {
		keys[i] = t.Key()
	}
	k := strings.Join(keys, "\n")
	a, ok := f.sets[k]
	if !ok {
		a.list, a.err = f.compute(tasks)
		f.sets[k] = a
	}
	return a.list, a.err
}

func (f *Fitted) compute(tasks []Task) ([]Estimate, error) {
	loads := make([]roofline.Load, len(tasks))
	out := make([]Estimate, len(tasks))
	for i, t := range tasks {
		loads[i] = roofline.Load{Proc: t.Proc, Op: t.Op, Cold: t.Cold()}
		var err error
		if out[i], err = f.One(t); err != nil {
			return nil, err
		}
	}
	slower, err := f.Costs.Concurrent(loads...)
	if err != nil {
		return nil, err
	}
	for i := range out {
		times := func(ns int64) int64 { return Whole(math.Round(float64(ns) * slower[i])) }
		out[i] = Estimate{times(out[i].NS), times(out[i].Low), times(out[i].High)}
		if err := reckoned(out[i].NS, "%s on processor %q beside others", tasks[i].Op.Key(), tasks[i].Proc); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (f *Fitted) Phase(t Task) (timeline.Phase, error) {
	return f.Costs.Phase(roofline.Load{Proc: t.Proc, Op: t.Op, Cold: t.Cold()})
}

func (f *Fitted) Memory() *timeline.Memory { return f.Costs.Memory() }

func (f *Fitted) Launch(proc string) (int64, error) {
	p, err := f.Costs.Launch(proc)
	return p.NS, err
}

func (f *Fitted) Handover(from, to string) (Estimate, error) {
	a, ok := f.hands[[2]string{from, to}]
	if !ok {
		p, known := f.Costs.Sync(from, to)
		a.Estimate = Estimate{p.NS, p.LowNS, p.HighNS}
		// Processors that share a core never wait for each other: one has finished before the other begins.
		if !known && f.soc.Concurrent(from, to) == nil {
			a.err = diag.New(diag.ClassInput, "price the hand-over from %q to %q: never measured", from, to).
				WithHint("measure it: hetc profile --soc SOC --model MODEL -o rec.jsonl --resume")
		}
		if a.err == nil {
			a.err = reckoned(a.NS, "the hand-over from %q to %q", from, to)
		}
		f.hands[[2]string{from, to}] = a
	}
	return a.Estimate, a.err
}

// copy is 0 unless the SoC says that data must move between the two.
func (f *Fitted) Copy(from, to string, bytes int64) (int64, error) {
	if !f.moves {
		return 0, nil
	}
	if l, ok := f.soc.Link(from, to); !ok || l.CopyGBps == 0 {
		return 0, nil
	}
	p, ok := f.Costs.Copy(from, to, bytes)
	if !ok {
		return 0, diag.New(diag.ClassInput, "price a copy from %q to %q: never measured", from, to).
			WithHint("measure it: hetc profile --soc SOC --model MODEL -o rec.jsonl --resume")
	}
	return p.NS, reckoned(p.NS, "a copy from %q to %q", from, to)
}
