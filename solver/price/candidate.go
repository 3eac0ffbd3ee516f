package price

import (
	"math"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/source"
	"github.com/hetc/hetc/solver/problem"
)

// Candidate is one way to execute a node, priced.
type Candidate struct {
	planir.Decision // PredictNS and Source are of the execution alone, without hand-overs from the node before
	// CostNS is PredictNS as it counts in the objective: more where shorter calls leave shares idle.
	CostNS   int64
	EnergyNJ int64      // modelled: what its processors take while they are busy
	Reads    []Access   // sorted by processor
	Writes   []Access   // the last write of every part of the outputs, sorted by processor
	Times    []Estimate // of each share, without gathering and hand-overs
}

// Label names a candidate among those of its node.
func (c *Candidate) Label() string { return string(c.Strategy) + " " + c.ShareText() }

// Kind names the processors between which a candidate divides its operator, and the way, without the places of the
// cuts.
func (c *Candidate) Kind() string {
	key := string(Base(c.Strategy)) + " " + string(c.Axis)
	for _, share := range c.Shares {
		key += " " + share.Proc
	}
	return key
}

// procs returns the processors that take part.
func (c *Candidate) procs() (out []string) {
	for _, share := range c.Shares {
		if !slices.Contains(out, share.Proc) {
			out = append(out, share.Proc)
		}
	}
	return out
}

// WithoutForms returns the decision with every share in the default form. Divisions of different programs are compared
// without forms, since the cheapest form depends on the rows.
func (c *Candidate) WithoutForms() *planir.Decision {
	decision := c.Decision
	decision.Shares = slices.Clone(decision.Shares)
	for i := range decision.Shares {
		decision.Shares[i].Form = ""
	}
	return &decision
}

// Base returns the strategy without its padding.
func Base(strategy planir.Strategy) planir.Strategy {
	switch strategy {
	case planir.Padding:
		return planir.Single
	case planir.Hybrid:
		return planir.WeightCentric
	}
	return strategy
}

// SameShares reports whether two decisions of one node divide it alike, whatever their predicted times.
func SameShares(a, b *planir.Decision) bool {
	return a.Strategy == b.Strategy && a.Axis == b.Axis &&
		slices.EqualFunc(a.Shares, b.Shares, func(x, y planir.Share) bool {
			x.PredictNS, y.PredictNS = 0, 0
			if a.Axis == planir.AxisNone { // nothing is divided
				x.From, x.To, y.From, y.To = 0, 0, 0, 0
			}
			return x == y
		})
}

// candidate prices a node divided in shares, each with the cheapest rows and form. The error says why there is no such
// candidate: a processor does not execute it, or its price is unknown.
func (s *Section) candidate(node int, strategy planir.Strategy, axis planir.Axis,
	shares []planir.Share) (Candidate, error) {
	shares = slices.Clone(shares)
	for i := range shares {
		s.chooseShape(&s.Nodes[node], axis, &shares[i])
	}
	return s.Price(node, strategy, axis, shares)
}

// Plain returns a decision with every share in the default form; nil where it has no other.
func (s *Section) Plain(node int, decision *planir.Decision) (*Candidate, error) {
	if !slices.ContainsFunc(decision.Shares, func(share planir.Share) bool { return share.Form != "" }) {
		return nil, nil
	}
	candidate := Candidate{Decision: *decision}
	plain, err := s.Price(node, Base(decision.Strategy), decision.Axis, candidate.WithoutForms().Shares)
	return &plain, err
}

// Price prices a node divided in shares, with the rows and forms of the shares.
func (s *Section) Price(node int, strategy planir.Strategy, axis planir.Axis,
	shares []planir.Share) (Candidate, error) {
	n := &s.Nodes[node]
	candidate := Candidate{Decision: planir.Decision{
		Node: n.Name, Rows: s.Rows, Strategy: strategy, Scheme: n.Op().Scheme, Axis: axis, Shares: slices.Clone(shares),
	}}
	pieces, err := lower.Cut(s.Section, n, &candidate.Decision, s.Proc)
	if err != nil {
		return candidate, err
	}
	for i := range pieces {
		if err := s.compiles(&pieces[i]); err != nil {
			return candidate, err
		}
	}
	if candidate.Times, err = s.shareTimes(pieces, len(candidate.Shares)); err != nil {
		return candidate, err
	}
	end, from, energy, err := s.execute(pieces, candidate.Times)
	if err != nil {
		return candidate, err
	}
	candidate.EnergyNJ = Whole(math.Round(energy))
	if candidate.EnergyNJ > problem.MaxNS { // it stands where times do when energy is minimised
		return candidate, diag.New(diag.ClassInput, "price %s as %s: %.4g J are modelled, want at most %.4g",
			n.Name, candidate.Label(), float64(candidate.EnergyNJ)/1e9, float64(problem.MaxNS)/1e9).
			WithHint("no operator takes that much: correct power_w in the SoC file, or measure again")
	}
	for i := range candidate.Shares {
		candidate.Shares[i].PredictNS = candidate.Times[i].NS
	}
	candidate.PredictNS, candidate.Source = end, from
	candidate.CostNS = Whole(math.Round(float64(end) * s.idleFactor(&candidate)))
	if err := inRange(max(end, candidate.CostNS), "%s as %s", n.Name, candidate.Label()); err != nil {
		return candidate, err
	}
	candidate.setAccesses(n, pieces)
	candidate.nameStrategy()
	return candidate, nil
}

// compiles reports why a piece's graph cannot be on its processor: the compiler refuses it, or it is too large.
func (s *Section) compiles(piece *lower.Piece) error {
	operator := piece.Op()
	if piece.Role != lower.Compute || !operator.HasScheme() {
		return nil
	}
	bytes := int64(max(1, operator.Experts)) * op.WeightBytes(operator.Scheme.Weight(), operator.K, operator.N)
	if fact := s.Facts.About(piece.Proc, operator); fact != nil {
		if fact.Refused != "" {
			return diag.New(diag.ClassInfeasible, "the compiler of processor %q refuses %s: %s",
				piece.Proc, operator.Key(), fact.Refused)
		}
		bytes = fact.Bytes
	}
	if limit := s.Proc(piece.Proc).GraphBytes; limit > 0 && bytes > limit {
		return diag.New(diag.ClassInfeasible,
			"its weights take %d bytes, and one graph of processor %q holds at most %d",
			bytes, piece.Proc, limit)
	}
	return nil
}

// shareTimes predicts the shares of a node. They run at the same time, operator by operator of their chains; a graph
// of several operators is launched once.
func (s *Section) shareTimes(pieces []lower.Piece, shares int) ([]Estimate, error) {
	chains := make([][]Task, len(pieces)) // by piece
	longest := 0
	for i := range pieces {
		piece := &pieces[i]
		if piece.Role != lower.Compute {
			continue
		}
		for _, operator := range piece.Ops {
			chains[i] = append(chains[i], Task{piece.Proc, s.InContext(operator)})
		}
		longest = max(longest, len(chains[i]))
	}
	out := make([]Estimate, shares)
	for at := range longest {
		var tasks []Task
		var of []int // pieces
		for i := range pieces {
			if at < len(chains[i]) {
				tasks, of = append(tasks, chains[i][at]), append(of, i)
			}
		}
		estimates, err := s.predictTogether(tasks)
		if err != nil {
			return out, s.noteMissing(tasks, err)
		}
		for j, k := range of {
			var launch Estimate
			if at > 0 {
				if launch, err = s.Costs.Launch(pieces[k].Proc); err != nil {
					return out, s.noteMissing(tasks, err)
				}
			}
			sum, one := &out[pieces[k].Share], estimates[j]
			sum.NS += max(0, one.NS-launch.NS)
			sum.Low += max(0, one.Low-launch.NS)
			sum.High += max(0, one.High-launch.NS)
			sum.Source = source.Weakest(sum.Source, one.Source, launch.Source)
		}
	}
	return out, nil
}

// execute returns when the last piece of a node is done, if all processors start at 0. Shares run at once. Then follow
// the pieces that gather or add, each after the share's result has been handed over. from is the weakest source among
// all shares, hand-overs and gathering pieces. energy is that of all processors together, in nJ.
func (s *Section) execute(pieces []lower.Piece, shares []Estimate) (end int64, from source.Source, energy float64,
	err error) {
	free, done := map[string]int64{}, make([]int64, len(shares)) // by processor, by share
	for i := range pieces {
		piece := &pieces[i]
		ns := shares[piece.Share].NS
		from = source.Weakest(from, shares[piece.Share].Source)
		if piece.Role == lower.Compute {
			free[piece.Proc] += ns
			done[piece.Share] = free[piece.Proc]
		} else {
			writer := pieces[piece.Share].Proc
			task := Task{piece.Proc, piece.Op()}
			estimate, err := predictAlone(s.Costs, task)
			if err == nil && writer != piece.Proc {
				var wait Estimate
				wait, err = s.Costs.Handover(writer, piece.Proc)
				free[piece.Proc] = max(free[piece.Proc], done[piece.Share]+wait.NS)
				from = source.Weakest(from, wait.Source)
			}
			if err != nil {
				return 0, "", 0, s.noteMissing([]Task{task}, err)
			}
			ns, from = estimate.NS, source.Weakest(from, estimate.Source)
			free[piece.Proc] += ns
		}
		energy += float64(s.Power[piece.Proc] * float64(ns))
		end = max(end, free[piece.Proc])
	}
	return end, from, energy, nil
}

// idleFactor returns how much longer a division by rows takes than one by columns when calls have fewer rows than the
// program. The first share keeps its rows, and the last one loses them. Times are assumed to grow in proportion to
// rows.
func (s *Section) idleFactor(candidate *Candidate) float64 {
	if candidate.Axis != planir.AxisRows || candidate.PredictNS == 0 {
		return 1
	}
	byRows, byColumns := 0.0, 0.0
	for _, call := range s.Lengths {
		busy := map[string]float64{}
		for i, share := range candidate.Shares {
			rows := float64(max(0, min(call.Tokens, share.To)-share.From))
			ns := float64(candidate.Times[i].NS)
			if s.Static[share.Proc] == 0 {
				ns *= rows / float64(share.To-share.From)
			} else if rows == 0 {
				ns = 0
			}
			busy[share.Proc] += ns
		}
		slowest := 0.0
		for _, share := range candidate.Shares {
			slowest = max(slowest, busy[share.Proc])
		}
		byRows += float64(call.Share * slowest)
		byColumns += float64(call.Share * float64(candidate.PredictNS) * float64(call.Tokens) / float64(s.Rows))
	}
	if byColumns == 0 {
		return 1
	}
	return max(1, byRows/byColumns)
}

// nameStrategy gives the candidate the strategy that its shares amount to.
func (c *Candidate) nameStrategy() {
	if !slices.ContainsFunc(c.Shares, func(share planir.Share) bool { return share.PadRows > 0 }) {
		return
	}
	switch c.Strategy {
	case planir.Single:
		c.Strategy = planir.Padding
	case planir.WeightCentric:
		c.Strategy = planir.Hybrid
	}
}
