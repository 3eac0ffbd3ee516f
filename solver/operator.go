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
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/price"
)

// Row is one way to execute an operator and what it costs in its place of the plan.
type Row struct {
	Strategy planir.Strategy `json:"strategy"`
	Shares   string          `json:"shares"` // "cols npu 0:3072, gpu 3072:5632"
	NS       int64           `json:"ns"`     // hand-over and execution, with everything else of the plan as it is; 0: it cannot be
	Procs    []string        `json:"-"`
	Chosen   bool            `json:"chosen,omitempty"`
	Note     string          `json:"note,omitempty"` // why it could not be chosen although it costs less, or at all
}

// Explain tells what every strategy for an operator ("layers.ffn_down") at a number of rows would have
// cost, cheapest first. With an input everything is priced again by its costs, the chosen way
// included, and processors that cannot execute it follow, with the reason; without one (nil) the plan's own
// alternatives are told.
//
// The last matrix is decided at one row whatever the bucket is. An operator or number of rows that the
// plan does not decide is an error of class ClassUsage that names the nearest.
func Explain(p *planir.Plan, node string, rows int, in *Input) ([]Row, error) {
	d := p.DecisionFor(node, rows)
	if d == nil {
		return nil, unknown(p, node, rows)
	}
	var out []Row
	if in == nil {
		out = append(out, Row{Strategy: d.Strategy, Shares: d.ShareText(), NS: d.PredictNS, Chosen: true})
		for _, a := range d.Alternatives {
			out = append(out, Row{Strategy: a.Strategy, Shares: a.Shares, NS: a.PredictNS, Note: obstacle(p, d, a, nil)})
		}
	} else {
		var err error
		if out, err = reprice(p, d, *in); err != nil {
			return nil, err
		}
	}
	plain := price.Candidate{Decision: *d}
	for i := range out {
		out[i].Procs = processors(out[i].Shares)
		if x := plain.WithoutForms(); !out[i].Chosen && out[i].Strategy == d.Strategy && out[i].Shares == x.ShareText() {
			out[i].Note = "the default form"
		}
	}
	sort.SliceStable(out, func(a, b int) bool {
		if (out[a].NS == 0) != (out[b].NS == 0) {
			return out[b].NS == 0
		}
		return out[a].NS < out[b].NS
	})
	return out, nil
}

func unknown(p *planir.Plan, node string, rows int) error {
	var nodes []string
	var have []int
	for _, d := range p.Decisions {
		if !slices.Contains(nodes, d.Node) {
			nodes = append(nodes, d.Node)
		}
		if d.Node == node {
			have = append(have, d.Rows)
		}
	}
	if have != nil {
		return diag.New(diag.ClassUsage, "explain %q at %d rows: the plan decides it at %v", node, rows, have)
	}
	return diag.New(diag.ClassUsage, "explain %q: the plan has no such operator", node).WithHint("%s", diag.DidYouMean(node, nodes))
}

// reprice prices every candidate of a decision's node again, with the rest of its section as the plan has it.
func reprice(p *planir.Plan, d *planir.Decision, in Input) ([]Row, error) {
	s, err := newSession(in)
	if err != nil {
		return nil, err
	}
	if s.want.Context != p.MaxContext {
		return nil, diag.New(diag.ClassInput, "explain: the workload caches %d positions, and the plan %d", s.want.Context, p.MaxContext).
			WithHint("give the workload the plan was solved for")
	}
	sections, err := lower.Expand(s.of(d.Rows), d.Rows, p.MaxContext, p.KV, func(node string) op.Scheme {
		if x := DecisionAt(p, node, d.Rows); x != nil {
			return x.Scheme
		}
		return op.A32W32 // reported below
	})
	if err != nil {
		return nil, diag.New(diag.ClassInput, "explain %q: %w", d.Node, err)
	}
	for i := range sections {
		sec := &sections[i]
		at := slices.IndexFunc(sec.Nodes, func(n lower.Node) bool { return n.Name == d.Node })
		if at < 0 {
			continue
		}
		var decided []planir.Decision
		for k := range sec.Nodes {
			x := DecisionAt(p, sec.Nodes[k].Name, d.Rows)
			if x == nil {
				return nil, diag.New(diag.ClassInput, "explain %q: the plan does not decide %q at %d rows", d.Node, sec.Nodes[k].Name, d.Rows)
			}
			decided = append(decided, *x)
		}
		st := s.stage(sec, d.Rows)
		lists, errs := st.Candidates()
		for k := range decided {
			if errs[k] != nil {
				return nil, errs[k]
			}
			lists[k] = st.WithExactly(st.With(lists[k], k, &decided[k]), k, &decided[k])
		}
		inst, err := pose(st, lists)
		if err != nil {
			return nil, err
		}
		choices := make([]int, len(decided))
		for k := range decided {
			choices[k] = inst.find(k, &decided[k])
			if choices[k] < 0 {
				return nil, diag.New(diag.ClassInput, "explain %q: costs and SoC have no price for %q as the plan has it (%s)", d.Node, decided[k].Node, decided[k].ShareText())
			}
		}
		out := []Row{{Strategy: d.Strategy, Shares: d.ShareText(), NS: inst.price(choices, at, choices[at]), Chosen: true}}
		for _, a := range inst.alternatives(choices, at) {
			out = append(out, Row{Strategy: a.Strategy, Shares: a.Shares, NS: a.PredictNS, Note: obstacle(p, d, a, in.SoC)})
		}
		for _, r := range inst.stage.Refused[d.Node] {
			out = append(out, Row{Strategy: planir.Single, Shares: r.Proc, Note: r.Reason()})
		}
		return out, nil
	}
	return nil, diag.New(diag.ClassInput, "explain %q: the model has no such operator", d.Node)
}

// obstacle says why an alternative that costs less in its place was not chosen.
func obstacle(p *planir.Plan, d *planir.Decision, a planir.Alternative, soc *socs.SoC) string {
	if a.PredictNS >= d.PredictNS {
		return ""
	}
	section, _, _ := strings.Cut(d.Node, ".")
	for _, name := range processors(a.Shares) {
		q := p.Proc(name)
		if q == nil {
			return "excludes processors that the rest of the section uses"
		}
		for _, other := range p.Decisions {
			if s, _, _ := strings.Cut(other.Node, "."); s != section || other.Rows != d.Rows || other.Node == d.Node {
				continue
			}
			for _, sh := range other.Shares {
				if r := p.Proc(sh.Proc); r != nil && sh.Proc != name && slices.ContainsFunc(r.Cores, func(c int) bool { return slices.Contains(q.Cores, c) }) {
					return "shares a core with " + sh.Proc + ", which executes " + other.Node
				}
			}
		}
	}
	for _, name := range processors(a.Shares) {
		if soc == nil {
			break
		}
		if q := soc.Processor(name); q != nil && q.AddressBytes > 0 {
			return fmt.Sprintf("what %s would hold beside the rest exceeds its %d bytes", name, q.AddressBytes)
		}
	}
	if a.Strategy == planir.ActivationDivide {
		return "leaves processors idle when a call has fewer rows"
	}
	return "does not fit with the rest of the plan, in cores or memory"
}

// processors lists the names in a written form of shares.
func processors(text string) []string {
	for _, axis := range []planir.Axis{planir.AxisCols, planir.AxisRows, planir.AxisK, planir.AxisHeads} {
		if rest, ok := strings.CutPrefix(text, string(axis)+" "); ok {
			text = rest
			break
		}
	}
	var out []string
	for _, part := range strings.Split(text, ", ") {
		name, _, _ := strings.Cut(part, " ")
		out = append(out, name)
	}
	return out
}
