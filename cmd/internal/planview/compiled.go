package planview

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
)

// CompiledFor returns what the compiler said about the graphs that programs of so many rows use.
func CompiledFor(p *planir.Plan, rows int) (out []planir.Compiled) {
	for _, compiled := range p.Compiled {
		// The plan's own list stays as it is.
		compiled.Graphs = slices.DeleteFunc(slices.Clone(compiled.Graphs),
			func(g planir.CompiledGraph) bool { return !slices.Contains(g.For, rows) })
		if len(compiled.Graphs) > 0 {
			out = append(out, compiled)
		}
	}
	return out
}

// CompiledWords says why graphs have the numbers of rows that they have, operators of the same answer together.
func CompiledWords(list []planir.Compiled) []string {
	var order []string
	nodes := map[string][]string{}
	// Operators of one text become one sentence, in the order in which texts first occur.
	add := func(node, text string) {
		if nodes[text] == nil {
			order = append(order, text)
		}
		if !slices.Contains(nodes[text], node) {
			nodes[text] = append(nodes[text], node)
		}
	}
	for _, compiled := range list {
		for _, graph := range compiled.Graphs {
			// Negative spill means that it is not known.
			switch own := unit.Bytes(max(0, graph.SpillBytes)); {
			case len(graph.Avoided) > 0:
				var other []string
				for _, spill := range graph.Avoided[:min(4, len(graph.Avoided))] {
					other = append(other, fmt.Sprintf("%v at %d rows", unit.Bytes(spill.Bytes), spill.Rows))
				}
				none := fmt.Sprintf("%v there", own)
				if own == 0 {
					none = "none there"
				}
				if graph.SpillBytes < 0 {
					none = "nothing known of it there"
				}
				add(compiled.Node, fmt.Sprintf("computed at %d rows on %s for %s: that takes the same predicted "+
					"time, and spills less: %s, %s (spill bytes reported by the compiler, not a time)",
					graph.Rows, compiled.Proc, forRows(graph.For), none, cli.Enumerate(other)))
			// A graph that neither spills nor was chosen for that has nothing to be explained.
			case graph.SpillBytes > 0:
				add(compiled.Node, fmt.Sprintf("computed at %d rows on %s for %s, where the compiler reports %v of "+
					"spill (bytes, not a time): no length of the same time is known to spill less", graph.Rows,
					compiled.Proc, forRows(graph.For), own))
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

// forRows writes numbers of rows as a sentence does.
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
func ShowCompiled(ui *cli.Streams, plan *planir.Plan) {
	if len(plan.Compiled) == 0 {
		if plan.SoC.Target {
			ui.Notef("no compiler facts of the target are known: hetc profile --compiler-only --target %s records "+
				"what its compiler says", plan.SoC.Name)
		}
		return
	}
	// All layers count: each has a copy of the graphs with weights of its own.
	var charged, alone int64
	graphs := 0
	for _, compiled := range plan.Compiled {
		charged += int64(compiled.Copies) * compiled.ChargedBytes
		alone += int64(compiled.Copies) * compiled.AloneBytes
		graphs += compiled.Copies * len(compiled.Graphs)
	}
	ui.Printf("compiled: %d graphs charged with %v by compiler facts, %.3f times what one length each takes\n", graphs,
		unit.Bytes(charged), float64(charged)/float64(max(1, alone)))
	for _, line := range CompiledWords(plan.Compiled) {
		ui.Printf("compiled: %s\n", line)
	}
}
