package planview

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
)

// CompiledFor is what the compiler said about the graphs that programs of so many rows use.
func CompiledFor(p *planir.Plan, rows int) (out []planir.Compiled) {
	for _, c := range p.Compiled {
		c.Graphs = slices.DeleteFunc(slices.Clone(c.Graphs), func(g planir.CompiledGraph) bool { return !slices.Contains(g.For, rows) })
		if len(c.Graphs) > 0 {
			out = append(out, c)
		}
	}
	return out
}

// CompiledWords says why graphs have the numbers of rows that they have, operators of the same answer together.
func CompiledWords(list []planir.Compiled) []string {
	var order []string
	nodes := map[string][]string{}
	add := func(node, text string) {
		if nodes[text] == nil {
			order = append(order, text)
		}
		if !slices.Contains(nodes[text], node) {
			nodes[text] = append(nodes[text], node)
		}
	}
	for _, c := range list {
		for _, g := range c.Graphs {
			switch own := unit.Bytes(max(0, g.SpillBytes)); {
			case len(g.Avoided) > 0:
				var other []string
				for _, a := range g.Avoided[:min(4, len(g.Avoided))] {
					other = append(other, fmt.Sprintf("%v at %d rows", unit.Bytes(a.Bytes), a.Rows))
				}
				none := fmt.Sprintf("%v there", own)
				if own == 0 {
					none = "none there"
				}
				if g.SpillBytes < 0 {
					none = "nothing known of it there"
				}
				add(c.Node, fmt.Sprintf("computed at %d rows on %s for %s: that takes the same predicted time, and spills less: %s, %s (spill bytes reported by the compiler, not a time)",
					g.Rows, c.Proc, forRows(g.For), none, cli.Enumerate(other)))
			case g.SpillBytes > 0:
				add(c.Node, fmt.Sprintf("computed at %d rows on %s for %s, where the compiler reports %v of spill (bytes, not a time): no length of the same time is known to spill less", g.Rows, c.Proc, forRows(g.For), own))
			}
		}
	}
	var out []string
	for _, text := range order {
		out = append(out, cli.Enumerate(nodes[text])+" is "+text+".")
		if len(nodes[text]) > 1 {
			out[len(out)-1] = cli.Enumerate(nodes[text]) + " are " + text + "."
		}
	}
	return out
}

func forRows(rows []int) string {
	if len(rows) == 1 && rows[0] == 1 {
		return "1 row"
	}
	var list []string
	for _, n := range rows {
		list = append(list, fmt.Sprint(n))
	}
	return cli.Enumerate(list) + " rows"
}

// ShowCompiled tells what the binaries of a device's NPU are charged with.
func ShowCompiled(s *cli.Streams, p *planir.Plan) {
	if len(p.Compiled) == 0 {
		if p.SoC.Target {
			s.Notef("no compiler facts of the target are known: hetc profile --compiler-only --target %s records what its compiler says", p.SoC.Name)
		}
		return
	}
	var charged, alone int64
	graphs := 0
	for _, c := range p.Compiled {
		charged += int64(c.Copies) * c.ChargedBytes
		alone += int64(c.Copies) * c.AloneBytes
		graphs += c.Copies * len(c.Graphs)
	}
	s.Printf("compiled: %d graphs charged with %v by compiler facts, %.3f times what one length each takes\n", graphs, unit.Bytes(charged), float64(charged)/float64(max(1, alone)))
	for _, line := range CompiledWords(p.Compiled) {
		s.Printf("compiled: %s\n", line)
	}
}
