package price

import (
	"math"
	"slices"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/socs/timeline"
)

// with adds a decision to the candidates of a node, unless they have it or it cannot be.
func (st *Section) With(list []Candidate, node int, d *planir.Decision) []Candidate {
	return withCandidate(list, func() (Candidate, error) { return st.candidate(node, Base(d.Strategy), d.Axis, d.Shares) })
}

// exactly is with, in the rows and forms that the decision says.
func (st *Section) Exactly(list []Candidate, node int, d *planir.Decision) []Candidate {
	return withCandidate(list, func() (Candidate, error) { return st.CandidateAs(node, Base(d.Strategy), d.Axis, d.Shares) })
}

func withCandidate(list []Candidate, price func() (Candidate, error)) []Candidate {
	c, err := price()
	if err != nil || slices.ContainsFunc(list, func(old Candidate) bool { return SameShares(&old.Decision, &c.Decision) }) {
		return list
	}
	return append(list, c)
}

// plain is a decision with every share in the default form, nil where it is so already.
func (st *Section) Plain(i int, d *planir.Decision) (*Candidate, error) {
	if !slices.ContainsFunc(d.Shares, func(sh planir.Share) bool { return sh.Form != "" }) {
		return nil, nil
	}
	shares := slices.Clone(d.Shares)
	for k := range shares {
		shares[k].Form = ""
	}
	c, err := st.CandidateAs(i, Base(d.Strategy), d.Axis, shares)
	return &c, err
}

// withoutForms is the decision as divisions are compared over programs: the cheapest form depends on the rows.
func (c *Candidate) WithoutForms() *planir.Decision {
	d := c.Decision
	d.Shares = slices.Clone(d.Shares)
	for k := range d.Shares {
		d.Shares[k].Form = ""
	}
	return &d
}

// sameShares reports whether two decisions of one node divide it alike.
func SameShares(a, b *planir.Decision) bool {
	return a.Strategy == b.Strategy && a.Axis == b.Axis && a.ShareText() == b.ShareText()
}

// phase is a task taken apart, without its launch where it is joined to the one before.
func (st *Section) Phase(t Task, joined bool) (timeline.Phase, error) {
	phase, err := st.Source.Phase(t)
	if err != nil || !joined {
		return phase, err
	}
	est, err := st.Source.Together([]Task{t})
	if err != nil {
		return phase, err
	}
	launch, err := st.Source.Launch(t.Proc)
	return Shorten(phase, float64(min(launch, est[0].NS))), err
}

// less is a phase that takes that much less: its set-up is shorter, and where that is not enough, all of it.
func Shorten(p timeline.Phase, ns float64) timeline.Phase {
	cut := min(p.SetupNS, ns)
	p.SetupNS -= cut
	if rest := ns - cut; rest > 0 {
		whole := p.NS()
		p = p.Times(math.Max(0, whole-rest) / math.Max(whole, 1e-9))
	}
	return p
}
