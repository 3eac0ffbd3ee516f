package price

import (
	"math"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/source"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/socs/timeline"
)

// Fitted is the cost model of fitted costs. It keeps every answer: candidates ask for the same shapes over and over.
type Fitted struct {
	costs     *roofline.Costs
	soc       *socs.SoC
	copying   map[string]bool // processors that copy operands
	alone     map[string]answer
	beside    map[string]answers
	handovers map[[2]string]answer
}

// answer is a price that was asked for before, or why there is none.
type answer struct {
	Estimate
	err error
}

// answers are the prices of operators side by side.
type answers struct {
	list []Estimate
	err  error
}

// NewFitted returns the cost model of a SoC's costs.
func NewFitted(costs *roofline.Costs, soc *socs.SoC) *Fitted {
	fitted := &Fitted{
		costs: costs, soc: soc,
		alone: map[string]answer{}, beside: map[string]answers{}, handovers: map[[2]string]answer{},
		copying: map[string]bool{},
	}
	sets := make([]*capability.Set, len(soc.Processors))
	for i := range soc.Processors {
		sets[i] = &soc.Processors[i].Set
	}
	for i, copies := range capability.Copying(sets) {
		fitted.copying[soc.Processors[i].Name] = copies
	}
	return fitted
}

// IsOf reports whether the model was made of this very set of costs.
func (f *Fitted) IsOf(costs *roofline.Costs) bool { return f.costs == costs }

// With returns the model for another description of the machine. The times of operators depend on the costs alone, so
// cached answers are kept.
func (f *Fitted) With(soc *socs.SoC) *Fitted {
	other := NewFitted(f.costs, soc)
	other.alone, other.beside = f.alone, f.beside
	return other
}

// estimateOf returns a prediction as an estimate.
func estimateOf(predicted roofline.Prediction) Estimate {
	return Estimate{NS: predicted.NS, Low: predicted.LowNS, High: predicted.HighNS, Source: predicted.Source}
}

// One predicts a task on an otherwise idle machine.
func (f *Fitted) One(task Task) (Estimate, error) {
	key := task.Key()
	known, ok := f.alone[key]
	if !ok {
		predicted, err := f.costs.Op(task.Proc, task.Op, task.Cold())
		if err == nil {
			err = inRange(predicted.NS, "%s on processor %q", task.Op.Key(), task.Proc)
		}
		known = answer{estimateOf(predicted), err}
		f.alone[key] = known
	}
	return known.Estimate, known.err
}

// Measured lists numbers of rows at which an operator of this shape was measured.
func (f *Fitted) Measured(task Task) []int {
	return f.costs.MeasuredRows(task.Proc, task.Op, task.Cold())
}

// Forms lists the forms, besides the default, that have measurements.
func (f *Fitted) Forms(task Task) []op.Form { return f.costs.Forms(task.Proc, task.Op) }

// Cheapest predicts a task in the form in which it takes least.
func (f *Fitted) Cheapest(task Task) (Estimate, error) {
	best, err := f.One(task)
	for _, form := range f.Forms(task) {
		task.Op.Form = form
		if estimate, other := f.One(task); other == nil && (err != nil || estimate.NS < best.NS) {
			best, err = estimate, nil
		}
	}
	return best, err
}

// Together predicts tasks that different processors execute at the same time.
func (f *Fitted) Together(tasks []Task) ([]Estimate, error) {
	if len(tasks) == 1 {
		estimate, err := f.One(tasks[0])
		return []Estimate{estimate}, err
	}
	keys := make([]string, len(tasks))
	for i, task := range tasks {
		keys[i] = task.Key()
	}
	key := strings.Join(keys, "\n")
	a, ok := f.beside[key]
	if !ok {
		a.list, a.err = f.contended(tasks)
		f.beside[key] = a
	}
	return a.list, a.err
}

// contended predicts tasks that slow each other down.
func (f *Fitted) contended(tasks []Task) ([]Estimate, error) {
	loads := make([]roofline.Load, len(tasks))
	out := make([]Estimate, len(tasks))
	for i, task := range tasks {
		loads[i] = roofline.Load{Proc: task.Proc, Op: task.Op, Cold: task.Cold()}
		var err error
		if out[i], err = f.One(task); err != nil {
			return nil, err
		}
	}
	slower, from, err := f.costs.Concurrent(loads...)
	if err != nil {
		return nil, err
	}
	for i := range out {
		times := func(ns int64) int64 { return Whole(math.Round(float64(ns) * slower[i])) }
		out[i] = Estimate{NS: times(out[i].NS), Low: times(out[i].Low), High: times(out[i].High),
			Source: source.Weakest(out[i].Source, from)}
		if err := inRange(out[i].NS, "%s on processor %q beside others", tasks[i].Op.Key(), tasks[i].Proc); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Phase divides a task's time into the part that other processors slow down and the part that they do not.
func (f *Fitted) Phase(task Task) (timeline.Phase, error) {
	return f.costs.Phase(roofline.Load{Proc: task.Proc, Op: task.Op, Cold: task.Cold()})
}

// Memory returns how processors slow each other down.
func (f *Fitted) Memory() *timeline.Memory { return f.costs.Memory() }

// Launch returns the part of an operator's price that a graph of several operators pays once.
func (f *Fitted) Launch(proc string) (Estimate, error) {
	predicted, err := f.costs.Launch(proc)
	return estimateOf(predicted), err
}

// GatedShare returns how much of their prices, less a launch, a product and the gated linear unit that it ends with take.
func (f *Fitted) GatedShare(proc string, product, unit op.Op) float64 {
	return f.costs.GatedShare(proc, product, unit)
}

// LeastGatedShare returns the least such share on a processor.
func (f *Fitted) LeastGatedShare(proc string) float64 { return f.costs.LeastGatedShare(proc) }

// Handover returns the time from one processor's setting of a flag to the other's noticing it. Processors that share a
// core never wait for each other: one has finished before the other begins.
func (f *Fitted) Handover(from, to string) (Estimate, error) {
	a, ok := f.handovers[[2]string{from, to}]
	if !ok {
		predicted, known := f.costs.Sync(from, to)
		a.Estimate = estimateOf(predicted)
		if !known && f.soc.Concurrent(from, to) == nil {
			a.err = neverMeasured("the hand-over", from, to)
		} else {
			a.err = inRange(a.NS, "the hand-over from %q to %q", from, to)
		}
		f.handovers[[2]string{from, to}] = a
	}
	return a.Estimate, a.err
}

// Copy returns the time to move bytes between processors; the zero Estimate where neither has memory of its own, or the
// SoC states no speed.
func (f *Fitted) Copy(from, to string, bytes int64) (Estimate, error) {
	if !f.copying[from] && !f.copying[to] {
		return Estimate{}, nil
	}
	if link, ok := f.soc.Link(from, to); !ok || link.CopyGBps == 0 {
		return Estimate{}, nil
	}
	predicted, ok := f.costs.Copy(from, to, bytes)
	if !ok {
		return Estimate{}, neverMeasured("a copy", from, to)
	}
	return estimateOf(predicted), inRange(predicted.NS, "a copy from %q to %q", from, to)
}

// neverMeasured returns the error for a link whose times the costs lack.
func neverMeasured(what, from, to string) error {
	return diag.New(diag.ClassInput, "price %s from %q to %q: never measured", what, from, to).
		WithHint("measure it: hetc profile --soc SOC --model MODEL -o rec.jsonl --resume")
}
