package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/socs"
)

// showTarget tells that a plan is for the device of its SoC.
func showTarget(s *cli.Streams, p *planir.Plan) {
	if !p.SoC.Target {
		return
	}
	var procs []string
	for i := range p.Procs {
		procs = append(procs, p.Procs[i].Name)
	}
	times := ""
	if p.SoC.Simulated {
		times = "; its times are simulated"
	}
	s.Printf("target %s: only processors with target data, with what they execute there (%s)%s\n", p.SoC.Name, strings.Join(procs, ", "), times)
}

// runCompilerOnly asks the compilers of a target about a model's graphs, and measures nothing.
func runCompilerOnly(c *cobra.Command, s *cli.Streams, o *profileOptions) error {
	if o.target == "" {
		return diag.New(diag.ClassUsage, "profile: --compiler-only asks the compiler of a target, and --target is missing").WithHint("catalog SoCs that are targets: %s", targetNames())
	}
	for _, name := range []string{"budget", "rounds", "held-out"} {
		if c.Flags().Changed(name) {
			return diag.New(diag.ClassUsage, "profile: --%s is for measuring, and --compiler-only measures nothing", name)
		}
	}
	soc, err := socs.OpenTarget(o.target)
	if err != nil {
		return err
	}
	part, err := soc.Restricted()
	if err != nil {
		return err
	}
	m, needs, err := openPlanned(o.model, o.workload)
	if err != nil {
		return err
	}
	defer m.Close()
	schemes := slices.DeleteFunc(needs.On(part), func(x op.Scheme) bool {
		return !slices.ContainsFunc(part.Processors, func(p socs.Processor) bool { return p.Kind == socs.KindNPU && slices.Contains(p.Schemes, x) })
	})
	requests, err := profiler.FactRequests(part, m, profiler.Want{Buckets: needs.Buckets, Batches: needs.Batches, Schemes: schemes, MaxContext: needs.Context}, needs.Lengths)
	if err != nil {
		return err
	}
	if o.dryRun {
		var keys []string
		for i := range requests {
			keys = append(keys, requests[i].Keys()...)
		}
		for _, k := range keys {
			s.Printf("%s\n", k)
		}
		return s.Result(map[string]any{"compiler_facts": keys})
	}
	header, err := profiler.Header(soc, host.Fingerprint(), host.Kernels(), cli.Version, o.seed)
	if err != nil {
		return err
	}
	open := record.Create
	if o.resume {
		open = record.Resume
	}
	rec, err := open(o.out, header)
	if err != nil {
		return err
	}
	defer rec.Close()
	fo := profiler.FactOptions{Bakers: map[string]driver.Baker{}, Seed: o.seed}
	for _, x := range compilers(nil) {
		if b, ok := x.(driver.Baker); ok {
			fo.Bakers[b.Name()] = b
		}
	}
	line := s.Line(false)
	fo.Progress = func(done, all int, key string) { line.Bar("compile", done, all, key) }
	rep, err := profiler.CompilerFacts(c.Context(), part, requests, rec, fo)
	line.End()
	if err != nil {
		if set := rec.Set(); set.Len() == 0 && len(set.Facts()) == 0 { // there is nothing to resume
			return errors.Join(err, rec.Close(), os.Remove(o.out))
		}
		s.Notef("%d compiler facts are in %q: the same command with --resume goes on", len(rec.Set().Facts()), o.out)
		return err
	}
	s.Printf("%s: %d compiler facts added, %d reused, %d graphs refused by the compiler; no time of the device was measured or simulated\n", o.out, rep.Added, rep.Present, len(rep.Refused))
	for _, f := range rep.Refused {
		s.Warnf("%s: %s", f.Op.Key(), f.Refused)
	}
	showFacts(s, rec.Set().Facts())
	return s.Result(map[string]any{"file": o.out, "added": rep.Added, "present": rep.Present, "refused": len(rep.Refused), "facts": rec.Set().Facts()})
}

// targetNames lists the catalog's targets.
func targetNames() string {
	names, err := socs.Targets()
	if err != nil {
		return "see hetc socs list"
	}
	return strings.Join(names, ", ")
}

// showFacts is a table of what a compiler said.
func showFacts(s *cli.Streams, facts []*record.Facts) {
	facts = slices.Clone(facts)
	shape := func(f *record.Facts) string { return fmt.Sprintf("%s [%d,%d] %s", f.Proc, f.Op.K, f.Op.N, f.Op.Scheme) }
	slices.SortStableFunc(facts, func(a, b *record.Facts) int {
		return cmp.Or(cmp.Compare(shape(a), shape(b)), cmp.Compare(len(a.Rows), len(b.Rows)), a.Op.M-b.Op.M)
	})
	var rows [][]string
	for _, f := range facts {
		n, compile := fmt.Sprint(f.Op.M), "-"
		if f.Rows != nil {
			n = strings.Trim(strings.ReplaceAll(fmt.Sprint(f.Rows), " ", "+"), "[]") + " shared"
		}
		if f.CompileMS > 0 {
			compile = fmt.Sprintf("%.0f", f.CompileMS)
		}
		if f.Refused != "" {
			rows = append(rows, []string{shape(f), n, "refused", "", "", compile})
			continue
		}
		rows = append(rows, []string{shape(f), n, unit.Bytes(f.Bytes).String(), unit.Bytes(f.SpillBytes).String(), unit.Bytes(f.VTCMBytes).String(), compile})
	}
	if len(rows) > 0 {
		s.Printf("sizes that the compiler reports; spill is a buffer in main memory, not a time:\n")
		s.Table([]string{"product", ">rows", ">binary", ">spill", ">VTCM", ">ms to compile here"}, rows)
	}
}

// compiledFor is what the compiler said about the graphs that programs of so many rows use.
func compiledFor(p *planir.Plan, rows int) (out []planir.Compiled) {
	for _, c := range p.Compiled {
		c.Graphs = slices.DeleteFunc(slices.Clone(c.Graphs), func(g planir.CompiledGraph) bool { return !slices.Contains(g.For, rows) })
		if len(c.Graphs) > 0 {
			out = append(out, c)
		}
	}
	return out
}

// compiledWords says why graphs have the numbers of rows that they have, operators of the same answer together.
func compiledWords(list []planir.Compiled) []string {
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
					g.Rows, c.Proc, forRows(g.For), none, and(other)))
			case g.SpillBytes > 0:
				add(c.Node, fmt.Sprintf("computed at %d rows on %s for %s, where the compiler reports %v of spill (bytes, not a time): no length of the same time is known to spill less", g.Rows, c.Proc, forRows(g.For), own))
			}
		}
	}
	var out []string
	for _, text := range order {
		out = append(out, and(nodes[text])+" is "+text+".")
		if len(nodes[text]) > 1 {
			out[len(out)-1] = and(nodes[text]) + " are " + text + "."
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
	return and(list) + " rows"
}

// showCompiled tells what the binaries of a device's NPU are charged with.
func showCompiled(s *cli.Streams, p *planir.Plan) {
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
	for _, line := range compiledWords(p.Compiled) {
		s.Printf("compiled: %s\n", line)
	}
}
