package bundling

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
)

// TargetText describes where a bundle may run.
func TargetText(t *bundle.Target) string {
	system := "any system"
	if t.OS != "" || t.Arch != "" {
		system = cmp.Or(t.OS, "any system") + "/" + cmp.Or(t.Arch, "any architecture")
	}
	return fmt.Sprintf("soc %v, %s", t.SoC, system)
}

// claimedReport returns what a bundle file claims about its compiled graphs, nil for a file without any.
func claimedReport(path string) (*emit.Report, error) {
	const most = 64 << 20
	text, err := bundle.Claimed(path, emit.ReportBlob, most)
	if text == nil || err != nil {
		return nil, err
	}
	report, err := emit.DecodeReport(text)
	if err != nil {
		return nil, diag.New(diag.ClassOf(err), "%s: %w", path, err).
			WithHint("hetc verify says whether the file is what was signed")
	}
	return report, nil
}

// showReport prints what is known about compiled graphs, with the graphs of all layers on one line.
func showReport(ui *cli.Streams, report *emit.Report) {
	what := ""
	if target := report.Target; target != nil {
		what = " for " + target.SoC
		if target.Emulator {
			what += ", the twin for its emulator"
		}
	}
	var bytes int64
	for _, item := range report.Binaries {
		bytes += item.Bytes
	}
	for _, graph := range report.Graphs {
		bytes += graph.Bytes
	}
	ui.Printf("%d graphs compiled with their weights%s, %s", len(report.Graphs), what, unit.Bytes(bytes))
	if n := len(report.Binaries); n > 0 {
		ui.Printf(", in %d binaries that those of the same weights share", n)
	}
	ui.Printf("\n")
	for _, compiler := range report.Compilers {
		ui.Printf("%s: compiled by %s for %s, token %s\n", compiler.Proc, compiler.Version,
			optionText(compiler.Options), compiler.Token)
	}
	for _, line := range byName(report.Graphs) {
		line.show(ui, report.Target)
	}
	ui.Printf("errors: %s\n", report.Bounds)
	if target := report.Target; target != nil {
		for _, fallback := range target.Fallbacks {
			ui.Printf("fallback: %s at %d rows is on the control processor instead of %s: %s\n", fallback.Node,
				fallback.Rows, fallback.From, fallback.Reason)
		}
	}
	for _, unchecked := range report.Unchecked {
		ui.Printf("not checked: %s\n", unchecked)
	}
}

// graphLine is the graphs of one name in all layers.
type graphLine struct {
	first  *emit.ReportGraph
	layers int
	bytes  int64              // of all
	spill  int64              // bytes, of the one with most
	twins  int                // that are known
	errors *emit.ReportErrors // of the one that was executed on behalf of all; nil: none was
}

// byName adds graphs up by name, in the order of the report. Errors were measured for one graph of
// each kind, and hold for all that name it in Tried.
func byName(graphs []emit.ReportGraph) (order []*graphLine) {
	lines := map[string]*graphLine{}
	tried := map[string]*emit.ReportErrors{} // by blob
	for i := range graphs {
		if graph := &graphs[i]; graph.Errors != nil {
			tried[graph.Blob] = graph.Errors
		}
	}
	for i := range graphs {
		graph := &graphs[i]
		line := lines[graph.Name]
		if line == nil {
			line = &graphLine{first: graph, errors: tried[graph.Tried]}
			lines[graph.Name], order = line, append(order, line)
		}
		line.layers++
		line.bytes += graph.Bytes
		line.spill = max(line.spill, graph.Facts["spill_bytes"])
		if graph.Twin != "" {
			line.twins++
		}
	}
	return order
}

// show prints operators, sizes and errors of the graphs, and for a device how many emulator twins
// are known.
func (l *graphLine) show(ui *cli.Streams, target *planir.Target) {
	ui.Printf("%s\n  %s\n  ", l.first.Name, strings.Join(l.first.Ops, "; "))
	if l.first.Layer >= 0 {
		ui.Printf("%d layers, ", l.layers)
	}
	ui.Printf("%s, spill %s, ", unit.Bytes(l.bytes), unit.Bytes(l.spill))
	if errors := l.errors; errors != nil {
		ui.Printf("error %.1e from float32 (at most %.1e), %.1e from the uncompiled model (at most %.1e)",
			errors.Float32, errors.Float32Bound, errors.Portable, errors.PortableBound)
	} else {
		ui.Printf("not executed")
	}
	if target != nil && !target.Emulator {
		ui.Printf(", %d of %d twins known", l.twins, l.layers)
	}
	ui.Printf("\n")
}

// optionText lists options in the order of their names.
func optionText(options map[string]string) string {
	var parts []string
	for name, value := range options {
		parts = append(parts, name+" "+value)
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
