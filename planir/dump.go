package planir

import (
	"fmt"
	"strings"
)

// Dump renders a plan as text with one line per element and per step, in the order of execution
// within each lane. Equal plans have equal dumps, and a changed step changes its line only.
func Dump(p *Plan) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("plan %s model %s soc %s control %s context %d kv %s", p.Schema, p.Model.Name, p.SoC.Name, p.SoC.Control, p.MaxContext, p.KV)
	for i := range p.Procs {
		q := &p.Procs[i]
		line("proc %s %s %s/%s cores %v tile k%d n%d%s%s", q.Name, q.Kind, q.Driver, q.Select, q.Cores, q.Tile.K, q.Tile.N, when(q.Bakes, " bakes"), when(q.Shares, " shares"))
	}
	if t := p.Target; t != nil {
		line("target %s%s%s", t.SoC, when(t.Emulator, " emulator"), when(t.Simulated, " simulated times"))
		for _, f := range t.Fallbacks {
			line("fallback %s@%d from %s: %s", f.Node, f.Rows, f.From, f.Reason)
		}
	}
	for i := range p.Decisions {
		d := &p.Decisions[i]
		line("decide %s@%d %s %s %s", d.Node, d.Rows, d.Strategy, orDash(string(d.Scheme)), d.ShareText())
	}
	pr := &p.Program
	line("cache %s layers %d heads %d context %d dim %d%s", pr.Cache.Type, pr.Cache.Layers, pr.Cache.KVHeads, pr.Cache.MaxContext, pr.Cache.HeadDim, sequences(pr.Cache.Sequences))
	for _, v := range pr.Buffers {
		line("buffer %s %s [%d,%d]", v.Name, v.Type, v.Rows, v.Cols)
	}
	for _, w := range pr.Weights {
		folds := ""
		if w.FoldRows != "" {
			folds += " rows times " + w.FoldRows
		}
		if w.FoldCols != "" {
			folds += fmt.Sprintf(" columns of source %d by %s", w.FoldSource, w.FoldCols)
		}
		from := orDash(strings.Join(w.From, " "))
		if w.ScaleOf != "" {
			from = "the range of " + w.ScaleOf
		}
		line("weight %s [%d,%d] layers %v from %s%s", w.Name, w.K, w.N, w.Layers, from, folds)
	}
	for _, k := range pr.Packs {
		line("pack %s of %s [%d:%d,%d:%d] %s %s %d bytes%s", k.Name, k.Weight, k.K0, k.K1, k.N0, k.N1, k.Scheme, k.Layout, k.Bytes, when(k.Baked, " baked"))
	}
	for _, g := range pr.Graphs {
		ops := make([]string, len(g.Graph.Nodes))
		for i, n := range g.Graph.Nodes {
			ops[i] = n.Op.Key()
		}
		line("graph %s on %s as %s%s: %s", g.Name, g.Proc, g.Artifact, when(g.Context != "", " in "+g.Context), strings.Join(ops, "; "))
	}
	for i := range pr.Programs {
		ph := &pr.Programs[i]
		line("program %s %s rows %d", ph.Name, ph.Phase, ph.Rows)
		for j := range ph.Sections {
			s := &ph.Sections[j]
			line("  section %s layers %d:%d flags %d logits %v", s.Name, s.First, s.First+s.Layers, s.Flags, s.Logits)
			for _, l := range s.Lanes {
				for k := range l.Steps {
					line("    %s %d %s", l.Proc, k, l.Steps[k].dump())
				}
			}
		}
	}
	for _, d := range pr.Decider {
		line("tokens %d..%d: %s", d.Min, d.Max, d.Program)
	}
	return b.String()
}

func when(set bool, s string) string {
	if set {
		return s
	}
	return ""
}

func sequences(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" sequences %d", n)
}

// ShareText is the written form of the shares: "cols npu 0:3072, gpu 3072:5632".
func (d *Decision) ShareText() string {
	var parts []string
	for _, s := range d.Shares {
		t := s.Proc
		if d.Axis != AxisNone {
			t += fmt.Sprintf(" %d:%d", s.From, s.To)
		}
		if s.PadRows > 0 {
			t += fmt.Sprintf(" rows %d", s.PadRows)
		}
		if s.Form != "" {
			t += fmt.Sprintf(" as %s", s.Form)
		}
		parts = append(parts, t)
	}
	text := strings.Join(parts, ", ")
	if d.Axis != AxisNone {
		text = string(d.Axis) + " " + text
	}
	return text
}

func (st *Step) dump() string {
	var b strings.Builder
	b.WriteString(st.Node)
	for i, w := range st.Wait {
		t, _ := w.MarshalText()
		b.WriteString([]string{" wait ", ","}[min(i, 1)] + string(t))
	}
	fmt.Fprintf(&b, " run %s", st.Run)
	if st.R0 > 0 {
		fmt.Fprintf(&b, " from row %d", st.R0)
	}
	list := func(word string, n int, text func(int) string) {
		for i := range n {
			b.WriteString([]string{" " + word + " ", ","}[min(i, 1)] + text(i))
		}
	}
	list("in", len(st.In), func(i int) string { return st.In[i].String() })
	list("w", len(st.W), func(i int) string { return st.W[i].String() })
	list("out", len(st.Out), func(i int) string { return st.Out[i].String() })
	if st.Heads != nil {
		fmt.Fprintf(&b, " heads %d:%d", st.Heads[0], st.Heads[1])
	}
	if st.Set != nil {
		fmt.Fprintf(&b, " set %d", *st.Set)
	}
	if st.ExpectNS > 0 {
		fmt.Fprintf(&b, " expect %dns", st.ExpectNS)
	}
	return b.String()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
