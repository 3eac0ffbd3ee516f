package solver

import (
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
)

// prediction goes through a lowered program three times: with the expected, the low and the high
// time of every step and hand-over.
func (s *session) prediction(p *planir.Plan, ph *planir.Phase) (planir.Prediction, error) {
	times, err := s.stepTimes(p, ph)
	if err != nil {
		return planir.Prediction{}, err
	}
	pred := planir.Prediction{Program: ph.Name}
	var failed error
	run := func(pick func(estimate) int64) (int64, []int64) {
		return timeline(ph, s.thread,
			func(lane string, st *planir.Step) int64 { return pick(times[stepKey{lane, st.Node, st.Run}]) },
			func(from, to string) int64 {
				h, err := s.prices.handover(from, to)
				if err != nil {
					failed = err
				}
				return pick(h)
			})
	}
	var sections []int64
	pred.PlanNS, sections = run(func(e estimate) int64 { return e.ns })
	pred.LowNS, _ = run(func(e estimate) int64 { return e.low })
	pred.HighNS, _ = run(func(e estimate) int64 { return e.high })
	if failed != nil {
		return pred, failed
	}
	nj, ok, err := s.energy(p, ph)
	if err != nil {
		return pred, err
	}
	if ok {
		pred.EnergyUJ = (nj + 500) / 1000
	}
	for i, ns := range sections {
		pred.Sections = append(pred.Sections, planir.SectionTime{Section: ph.Sections[i].Name, NS: ns / int64(max(1, ph.Sections[i].Layers))})
	}
	for i := range s.procs {
		name := s.procs[i].Name
		ns, ok, err := s.alone(ph.Rows, name)
		if err != nil {
			return pred, err
		}
		if ok {
			pred.Singles = append(pred.Singles, planir.SingleTime{Proc: name, NS: ns})
		}
	}
	return pred, nil
}

// energy is what one execution of a program is modelled to take in nanojoules: the power of each processor times the time of its steps.
// ok is false where the SoC does not say the power of one of them.
func (s *session) energy(p *planir.Plan, ph *planir.Phase) (nj int64, ok bool, err error) {
	times, err := s.stepTimes(p, ph)
	if err != nil {
		return 0, false, err
	}
	total := 0.0
	for i := range ph.Sections {
		for _, l := range ph.Sections[i].Lanes {
			busy := int64(0)
			for k := range l.Steps {
				busy += times[stepKey{l.Proc, l.Steps[k].Node, l.Steps[k].Run}].ns
			}
			if s.power[l.Proc] == 0 {
				return 0, false, nil
			}
			total += float64(s.power[l.Proc] * float64(busy*int64(max(1, ph.Sections[i].Layers))))
		}
	}
	return whole(math.Round(total)), true, nil
}

// thread names what executes a lane: the first of the processors that take turns with it.
func (s *session) thread(lane string) string {
	for i := range s.procs {
		if name := s.procs[i].Name; name == lane || takeTurns(s.in.SoC, name, lane) {
			return name
		}
	}
	return lane
}

// alone is the time of a program that one processor executes by itself; false when it cannot.
func (s *session) alone(rows int, proc string) (int64, bool, error) {
	pr, err := s.program(rows, s.assigned(rows))
	if err != nil {
		return 0, false, err
	}
	var total int64
	for _, in := range pr.instances {
		_, ns, ok := in.single(proc)
		if !ok {
			return 0, false, nil
		}
		total += ns
	}
	return total, true, nil
}

type stepKey struct{ lane, node, graph string }

// stepTimes is the time of every step of a program: of a share as its candidate was priced, of a
// gather or an addition of partial sums as such.
func (s *session) stepTimes(p *planir.Plan, ph *planir.Phase) (map[stepKey]estimate, error) {
	type part struct {
		node, proc string
		row        int // first, of what is divided by rows
	}
	shares := map[part]estimate{}
	at := func(d *planir.Decision, row int) int {
		if d.Axis == planir.AxisRows {
			return row
		}
		return 0
	}
	pr, err := s.program(ph.Rows, s.assigned(ph.Rows))
	if err != nil {
		return nil, err
	}
	for _, in := range pr.instances {
		for i := range in.candidates {
			d := decision(p, in.stage.sec.Nodes[i].Name, ph.Rows)
			c := in.find(i, d)
			if c < 0 {
				panic("BUG: decision on " + d.Node + " is none of its candidates")
			}
			for k, sh := range d.Shares {
				shares[part{d.Node, sh.Proc, at(d, sh.From)}] = in.candidates[i][c].shares[k]
			}
		}
	}
	graphs := map[string]*op.Graph{}
	for i := range p.Program.Graphs {
		graphs[p.Program.Graphs[i].Name] = &p.Program.Graphs[i].Graph
	}
	out := map[stepKey]estimate{}
	for i := range ph.Sections {
		for _, l := range ph.Sections[i].Lanes {
			for k := range l.Steps {
				st := &l.Steps[k]
				nodes := graphs[st.Run].Nodes
				var sum estimate
				names := st.Nodes()
				for k, name := range names {
					d := decision(p, name, ph.Rows)
					o := nodes[len(nodes)-1].Op // of a chain the last one counts
					if len(names) == len(nodes) {
						o = nodes[k].Op
					}
					x := shares[part{name, l.Proc, at(d, st.R0)}]
					if d.Axis == planir.AxisK && o.Kind == op.Add || o.Kind == op.Copy { // no share
						e, err := s.prices.together([]task{{l.Proc, o}})
						if err != nil {
							return nil, err
						}
						x = e[0]
					}
					sum.ns, sum.low, sum.high = sum.ns+x.ns, sum.low+x.low, sum.high+x.high
				}
				out[stepKey{l.Proc, st.Node, st.Run}] = sum
			}
		}
	}
	return out, nil
}

// decision is what a program with that many rows goes by: the head's may be decode's.
func decision(p *planir.Plan, node string, rows int) *planir.Decision {
	if d := p.DecisionFor(node, rows); d != nil {
		return d
	}
	return p.DecisionFor(node, 1)
}

// withoutForms is the decision as divisions are compared over programs: the cheapest form depends on the rows.
func (c *candidate) withoutForms() *planir.Decision {
	d := c.Decision
	d.Shares = slices.Clone(d.Shares)
	for k := range d.Shares {
		d.Shares[k].Form = ""
	}
	return &d
}

// sameShares reports whether two decisions of one node divide it alike.
func sameShares(a, b *planir.Decision) bool {
	return a.Strategy == b.Strategy && a.Axis == b.Axis && a.ShareText() == b.ShareText()
}

// expected is the workload's objective: the mean of what programs take.
func (s *session) expected(p *planir.Plan, of func(planir.Prediction) int64) float64 {
	total := 0.0
	for _, pred := range p.Predictions {
		for i := range p.Program.Programs {
			ph := &p.Program.Programs[i]
			if ph.Name == pred.Program && ph.Phase == "decode" {
				total += float64(s.want.weights.Decode * s.want.decodeNS(ph.Rows, float64(of(pred))))
			}
			if k := slices.Index(s.want.buckets, ph.Rows); ph.Name == pred.Program && k >= 0 {
				total += float64(s.want.weights.Prefill * float64(s.want.share[k]*float64(of(pred))))
			}
		}
	}
	return total
}

// expectedNJ is the expected energy, modelled; 0 where it is not known of every program. It is what a limit of energy bounds: predictions hold
// whole microjoules.
func (s *session) expectedNJ(p *planir.Plan) float64 {
	nj := map[string]int64{}
	for i := range p.Program.Programs {
		ph := &p.Program.Programs[i]
		n, ok, err := s.energy(p, ph)
		if err != nil || !ok {
			return 0
		}
		nj[ph.Name] = n
	}
	return s.expected(p, func(x planir.Prediction) int64 { return nj[x.Program] })
}

// checkMemory warns when what the plan holds exceeds a memory of the SoC.
func (s *session) checkMemory(p *planir.Plan) {
	need := p.Memory.Total
	for _, d := range s.in.SoC.Memory {
		if slices.Contains(d.Processors, s.in.SoC.Control) && d.Bytes > 0 && need > d.Bytes {
			w := diag.New(diag.ClassInfeasible, "the plan holds %d bytes, and memory %q of SoC %q has %d", need, d.Name, s.in.SoC.Name, d.Bytes).
				WithHint("permit schemes with fewer bits in the workload, such as schemes: {prefill: [a8t/q8c], decode: [a8t/q8c]}")
			w.Severity = diag.Warning
			s.notes = append(s.notes, w)
		}
	}
}
