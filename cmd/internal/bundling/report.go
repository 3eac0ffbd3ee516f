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
	"github.com/hetc/hetc/planir/bundle"
)

// TargetText says where a bundle may run.
func TargetText(t *bundle.Target) string {
	system := "any system"
	if t.OS != "" || t.Arch != "" {
		system = cmp.Or(t.OS, "any system") + "/" + cmp.Or(t.Arch, "any architecture")
	}
	return fmt.Sprintf("soc %v, %s", t.SoC, system)
}

// claimedReport is what a bundle file says about its compiled graphs, nil for one without such.
func claimedReport(path string) (*emit.Report, error) {
	const most = 64 << 20
	text, err := bundle.Claimed(path, emit.ReportBlob, most)
	if text == nil || err != nil {
		return nil, err
	}
	r, err := emit.DecodeReport(text)
	if err != nil {
		return nil, diag.New(diag.ClassOf(err), "%s: %w", path, err).WithHint("hetc verify says whether the file is what was signed")
	}
	return r, nil
}

// showReport prints what is known of compiled graphs: those of all layers on one line.
func showReport(s *cli.Streams, r *emit.Report) {
	what := ""
	if t := r.Target; t != nil {
		what = " for " + t.SoC
		if t.Emulator {
			what += ", the twin for its emulator"
		}
	}
	var bytes int64
	for _, b := range r.Binaries {
		bytes += b.Bytes
	}
	for _, g := range r.Graphs {
		bytes += g.Bytes
	}
	s.Printf("%d graphs compiled with their weights%s, %s", len(r.Graphs), what, unit.Bytes(bytes))
	if n := len(r.Binaries); n > 0 {
		s.Printf(", in %d binaries that those of the same weights share", n)
	}
	s.Printf("\n")
	for _, c := range r.Compilers {
		s.Printf("%s: compiled by %s for %s, token %s\n", c.Proc, c.Version, optionText(c.Options), c.Token)
	}
	type line struct {
		first        *emit.ReportGraph
		layers       int
		bytes, spill int64
		twins        int
		errors       *emit.ReportErrors
	}
	var order []*line
	byName := map[string]*line{}
	tried := map[string]*emit.ReportErrors{}
	for i := range r.Graphs {
		if g := &r.Graphs[i]; g.Errors != nil {
			tried[g.Blob] = g.Errors
		}
	}
	for i := range r.Graphs {
		g := &r.Graphs[i]
		x := byName[g.Name]
		if x == nil {
			x = &line{first: g, errors: tried[g.Tried]}
			byName[g.Name], order = x, append(order, x)
		}
		x.layers++
		x.bytes += g.Bytes
		x.spill = max(x.spill, g.Facts["spill_bytes"])
		if g.Twin != "" {
			x.twins++
		}
	}
	for _, x := range order {
		s.Printf("%s\n  %s\n  ", x.first.Name, strings.Join(x.first.Ops, "; "))
		if x.first.Layer >= 0 {
			s.Printf("%d layers, ", x.layers)
		}
		s.Printf("%s, spill %s, ", unit.Bytes(x.bytes), unit.Bytes(x.spill))
		if e := x.errors; e != nil {
			s.Printf("error %.1e from float32 (at most %.1e), %.1e from the uncompiled model (at most %.1e)", e.Float32, e.Float32Bound, e.Portable, e.PortableBound)
		} else {
			s.Printf("not executed")
		}
		if t := r.Target; t != nil && !t.Emulator {
			s.Printf(", %d of %d twins known", x.twins, x.layers)
		}
		s.Printf("\n")
	}
	s.Printf("errors: %s\n", r.Bounds)
	if t := r.Target; t != nil {
		for _, f := range t.Fallbacks {
			s.Printf("fallback: %s at %d rows is on the control processor instead of %s: %s\n", f.Node, f.Rows, f.From, f.Reason)
		}
	}
	for _, u := range r.Unchecked {
		s.Printf("not checked: %s\n", u)
	}
}

func optionText(o map[string]string) string {
	var parts []string
	for k, v := range o {
		parts = append(parts, k+" "+v)
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
