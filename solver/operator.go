package solver

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/source"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/price"
)

// Row is one way to execute an operator and its cost in its place of the plan.
type Row struct {
	Strategy planir.Strategy `json:"strategy"`
	Shares   string          `json:"shares"` // "cols npu 0:3072, gpu 3072:5632"
	// NS is hand-over and execution, with everything else of the plan as it is; 0: it cannot be.
	NS     int64         `json:"ns"`
	Source source.Source `json:"source,omitempty"` // of NS
	Procs  []string      `json:"-"`
	Chosen bool          `json:"chosen,omitempty"`
	Note   string        `json:"note,omitempty"` // why it could not be chosen although it costs less, or at all
}

// Explain lists what every strategy for an operator ("layers.ffn_down") at a number of rows would have cost, cheapest
// first. With an input it prices everything again by the input's costs, the chosen way included; processors that cannot
// execute the operator follow, with the reason. Without one (nil) it lists the plan's own alternatives.
//
// The last matrix is decided at one row whatever the bucket is. An operator or number of rows that the plan does not
// decide is an error of class ClassUsage that names the nearest.
func Explain(plan *planir.Plan, node string, rows int, in *Input) ([]Row, error) {
	decision := plan.DecisionFor(node, rows)
	if decision == nil {
		return nil, unknownDecision(plan, node, rows)
	}
	table := plannedRows(plan, decision)
	if in != nil {
		var err error
		if table, err = reprice(plan, decision, *in); err != nil {
			return nil, err
		}
	}

	chosen := price.Candidate{Decision: *decision}
	plain := chosen.WithoutForms()
	for i := range table {
		row := &table[i]
		row.Procs = processors(row.Shares)
		if !row.Chosen && row.Strategy == decision.Strategy && row.Shares == plain.ShareText() {
			row.Note = "the default form"
		}
	}
	sort.SliceStable(table, func(i, j int) bool {
		if (table[i].NS == 0) != (table[j].NS == 0) {
			return table[j].NS == 0
		}
		return table[i].NS < table[j].NS
	})
	return table, nil
}

// plannedRows lists a decision and its alternatives as the plan has them.
func plannedRows(plan *planir.Plan, decision *planir.Decision) []Row {
	table := []Row{{Strategy: decision.Strategy, Shares: decision.ShareText(), NS: decision.PredictNS,
		Source: decision.Source, Chosen: true}}
	for _, alternative := range decision.Alternatives {
		table = append(table, rowOf(alternative, obstacle(plan, decision, alternative, nil)))
	}
	return table
}

// rowOf returns an alternative as a row with a note.
func rowOf(alternative planir.Alternative, note string) Row {
	return Row{Strategy: alternative.Strategy, Shares: alternative.Shares, NS: alternative.PredictNS,
		Source: alternative.Source, Note: note}
}

// unknownDecision returns the error for an operator or a number of rows that the plan does not decide, with what it
// does decide.
func unknownDecision(plan *planir.Plan, node string, rows int) error {
	var nodes []string
	var have []int
	for _, decision := range plan.Decisions {
		if !slices.Contains(nodes, decision.Node) {
			nodes = append(nodes, decision.Node)
		}
		if decision.Node == node {
			have = append(have, decision.Rows)
		}
	}
	if have != nil {
		return diag.New(diag.ClassUsage, "explain %q at %d rows: the plan decides it at %v", node, rows, have).
			WithHint("name one of these numbers, as in %s@%d", node, have[0])
	}
	return diag.New(diag.ClassUsage, "explain %q: the plan has no such operator", node).
		WithHint("%s", diag.DidYouMean(node, nodes))
}

// reprice prices every candidate of a decision's node again, with the rest of its section as the plan has it. It
// poses the section's problem, finds the plan's choices in it, and changes one choice at a time.
func reprice(plan *planir.Plan, about *planir.Decision, in Input) ([]Row, error) {
	// A session of its own: prices are computed as solve computes them, for the given inputs.
	in.attention = &attention{}
	if plan.Attention != nil {
		in.attention.Attention, in.attention.decode = *plan.Attention, plan.Sparse(1)
	}

	fresh, err := newSession(in)
	if err != nil {
		return nil, err
	}

	if fresh.want.Context != plan.MaxContext {
		return nil, diag.New(diag.ClassInput, "explain: the workload caches %d positions, and the plan %d",
			fresh.want.Context, plan.MaxContext).
			WithHint("give the workload the plan was solved for")
	}
	schemeOf := func(node string) op.Scheme {
		if decision := DecisionAt(plan, node, about.Rows); decision != nil {
			return decision.Scheme
		}
		return op.A32W32 // repriceIn reports it
	}
	sections, err := lower.Expand(fresh.graphFor(about.Rows), about.Rows, plan.MaxContext, plan.KV, schemeOf,
		plan.TiersOf(about.Rows), plan.Channels)
	if err != nil {
		return nil, diag.New(diag.ClassInput, "explain %q: %w", about.Node, err)
	}

	for i := range sections {
		isIt := func(n lower.Node) bool { return n.Name == about.Node }
		if at := slices.IndexFunc(sections[i].Nodes, isIt); at >= 0 {
			return fresh.repriceIn(&sections[i], at, plan, about)
		}
	}
	return nil, diag.New(diag.ClassInput, "explain %q: the model has no such operator", about.Node)
}

// repriceIn poses the problem of a section with the plan's decisions. Only the choice of the node at index at changes.
func (s *session) repriceIn(sec *lower.Section, at int, plan *planir.Plan, about *planir.Decision) ([]Row, error) {
	var decided []planir.Decision
	for i := range sec.Nodes {
		decision := DecisionAt(plan, sec.Nodes[i].Name, about.Rows)
		if decision == nil {
			return nil, diag.New(diag.ClassInput, "explain %q: the plan does not decide %q at %d rows",
				about.Node, sec.Nodes[i].Name, about.Rows)
		}
		decided = append(decided, *decision)
	}

	// Candidates at the given costs, with the plan's own ways among them even where they would not be listed.
	section := s.section(sec, about.Rows)
	lists, errs := section.Candidates()
	for i := range decided {
		if errs[i] != nil {
			return nil, errs[i]
		}
		lists[i] = section.WithExactly(section.With(lists[i], i, &decided[i]), i, &decided[i])
	}
	posed, err := pose(section, lists)
	if err != nil {
		return nil, err
	}

	choices := make([]int, len(decided))
	for i := range decided {
		if choices[i] = posed.candidateLike(i, &decided[i]); choices[i] < 0 {
			return nil, diag.New(diag.ClassInput,
				"explain %q: costs and SoC have no price for %q as the plan has it (%s)",
				about.Node, decided[i].Node, decided[i].ShareText())
		}
	}

	table := []Row{{Strategy: about.Strategy, Shares: about.ShareText(),
		NS: posed.decisionNS(choices, at, choices[at]), Source: posed.decisionSource(choices, at), Chosen: true}}
	for _, alternative := range posed.alternatives(choices, at) {
		table = append(table, rowOf(alternative, obstacle(plan, about, alternative, s.in.SoC)))
	}
	for _, refusal := range posed.section.Refused[about.Node] {
		table = append(table, Row{Strategy: planir.Single, Shares: refusal.Proc, Note: refusal.Reason()})
	}
	return table, nil
}

// obstacle returns why an alternative that costs less in its place was not chosen; "" if it costs no less. It derives
// the reason from the plan: cores in common first, then memory, then idle processors.
func obstacle(plan *planir.Plan, decision *planir.Decision, alternative planir.Alternative, soc *socs.SoC) string {
	if alternative.PredictNS >= decision.PredictNS {
		return ""
	}
	procs := processors(alternative.Shares)
	for _, name := range procs {
		proc := plan.Proc(name)
		if proc == nil {
			return "excludes processors that the rest of the section uses"
		}
		if other, node := sharingCore(plan, decision, proc); other != "" {
			return "shares a core with " + other + ", which executes " + node
		}
	}

	if soc != nil {
		for _, name := range procs {
			if proc := soc.Processor(name); proc != nil && proc.AddressBytes > 0 {
				return fmt.Sprintf("what %s would hold beside the rest exceeds its %d bytes", name, proc.AddressBytes)
			}
		}
	}

	if alternative.Strategy == planir.ActivationDivide {
		return "leaves processors idle when a call has fewer rows"
	}
	return "does not fit with the rest of the plan, in cores or memory"
}

// sharingCore returns the first processor that has a core in common with proc and executes another node of the
// decision's section, and that node; "" if there is none.
func sharingCore(plan *planir.Plan, decision *planir.Decision, proc *planir.Proc) (name, node string) {
	section, _, _ := strings.Cut(decision.Node, ".")
	for _, other := range plan.Decisions {
		of, _, _ := strings.Cut(other.Node, ".")
		if of != section || other.Rows != decision.Rows || other.Node == decision.Node {
			continue
		}
		for _, share := range other.Shares {
			user := plan.Proc(share.Proc)
			if user == nil || share.Proc == proc.Name {
				continue
			}
			if slices.ContainsFunc(user.Cores, func(core int) bool { return slices.Contains(proc.Cores, core) }) {
				return share.Proc, other.Node
			}
		}
	}
	return "", ""
}

// processors lists the names in a written form of shares: "cols npu 0:3072, gpu 3072:5632" gives npu and gpu.
func processors(text string) (out []string) {
	_, shares, _ := planir.ParseShares(text) // the solver wrote it
	for _, share := range shares {
		out = append(out, share.Proc)
	}
	return out
}
