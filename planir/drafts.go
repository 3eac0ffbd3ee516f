package planir

// MaxDraft is the most tokens of a draft.
const MaxDraft = 64

// Drafts says whether a request that decodes alone guesses its next tokens from its text so far, and how many at a
// time. One call verifies them: speculative decoding whose drafts are n-grams that came before, without a second model.
// The answer is that of plain decoding, because all products of such a plan have the same scheme with integer
// arithmetic (Precision).
type Drafts struct {
	// Acceptance is the share of draft tokens that the workload expects to be right, of those whose predecessors in the
	// draft were.
	Acceptance float64 `json:"acceptance" yaml:"acceptance"`
	// Tokens is the length of a draft with which a token takes the least time at that acceptance; 0: plain decoding
	// takes less than any.
	Tokens int `json:"tokens" yaml:"tokens"`
	// PlainNS is the predicted time of a call that decodes one token, VerifyNS of calls that process a token and a
	// draft of 1, 2, 3... tokens, with the logits of every row. VerifyNS goes as far as one program holds.
	PlainNS  int64   `json:"plain_ns" yaml:"plain_ns"`
	VerifyNS []int64 `json:"verify_ns,omitempty" yaml:"verify_ns,omitempty,flow"`
}

// Best returns the length of a draft, at most most tokens, with which a token takes the least time at this acceptance,
// and that time in ns. If no draft beats plain decoding, it returns 0 and PlainNS. A call with k draft tokens yields 1
// + a + a^2 + ... + a^k tokens on average (Leviathan et al. 2023, eq. 1).
func (d *Drafts) Best(acceptance float64, most int) (tokens int, ns float64) {
	ns = float64(d.PlainNS)
	expected, right := 1.0, 1.0 // tokens of a call; probability that the whole draft is right
	for k := 1; k <= min(most, len(d.VerifyNS)); k++ {
		right *= acceptance
		expected += right
		if each := float64(d.VerifyNS[k-1]) / expected; each < ns {
			tokens, ns = k, each
		}
	}
	return tokens, ns
}

// Verifies reports whether a call of so many tokens computes what decoding them one by one would: its program exists
// and holds all of them, and no row in it depends on the others.
func (p *Plan) Verifies(tokens int) bool {
	program := p.Program.For(tokens)
	return program != nil && program.Rows >= tokens && !p.rowsDepend(program.Rows)
}

// rowsDepend reports whether rows of the program of so many rows depend on each other, because it selects positions for
// blocks of rows or drops rows of experts.
func (p *Plan) rowsDepend(rows int) bool {
	if p.InFlight != nil && rows == p.InFlight.Chunks*p.InFlight.Rows {
		rows = p.InFlight.Rows
	}
	tiers := p.TiersOf(rows)
	return p.Sparse(rows) || tiers != nil && tiers.drops()
}

// drafts checks rule P019.
func (c *checker) drafts() {
	drafts := c.plan.Drafts
	if drafts == nil {
		return
	}
	if !(drafts.Acceptance >= 0 && drafts.Acceptance < 1) {
		c.fail("drafts.acceptance", "is %v, want at least 0 and less than 1", drafts.Acceptance)
	}
	if len(drafts.VerifyNS) == 0 || len(drafts.VerifyNS) > MaxDraft {
		c.fail("drafts.verify_ns", "%d times, want 1..%d", len(drafts.VerifyNS), MaxDraft)
	}
	if drafts.PlainNS < 1 {
		c.fail("drafts.plain_ns", "is %d ns, want at least 1", drafts.PlainNS)
	}
	for i, ns := range drafts.VerifyNS {
		if ns < 1 {
			c.fail("drafts.verify_ns", "a draft of %d tokens takes %d ns, want at least 1", i+1, ns)
			break
		}
	}
	if len(c.found) > 0 {
		return
	}
	rows := len(drafts.VerifyNS) + 1
	for n := 2; n <= rows; n++ {
		if program := c.plan.Program.For(n); program == nil || program.Rows < n {
			c.fail("drafts.verify_ns", "a draft of %d tokens takes more than one call", n-1)
			break
		}
	}
	for n := 1; n <= rows; n++ {
		if program := c.plan.Program.For(n); program != nil && c.plan.rowsDepend(program.Rows) {
			c.fail("drafts", "program %q selects positions for rows together, or drops some of them, and would not compute "+
				"the bits of plain decoding, want no drafts of %d tokens", program.Name, max(1, n-1))
			break
		}
	}
	if _, exact := c.plan.Precision(); !exact {
		c.fail("drafts", "programs that decode and that verify would not compute the same bits, want no drafts")
	}
	if best, _ := drafts.Best(drafts.Acceptance, len(drafts.VerifyNS)); best != drafts.Tokens {
		c.fail("drafts.tokens", "is %d, want %d, with which a token takes the least time", drafts.Tokens, best)
	}
}
