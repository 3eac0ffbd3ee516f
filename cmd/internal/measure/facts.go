package measure

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/socs"
)

// CompilerFacts asks the compilers of a target about a model's graphs, without measuring anything.
func CompilerFacts(cmd *cobra.Command, ui *cli.Streams, options *ProfileOptions) error {
	if err := options.checkFacts(cmd); err != nil {
		return err
	}
	soc, err := socs.OpenTarget(options.Target)
	if err != nil {
		return err
	}
	part, err := soc.Restricted()
	if err != nil {
		return err
	}
	requests, err := options.factRequests(part)
	if err != nil {
		return err
	}
	if options.DryRun {
		return listFacts(ui, requests)
	}

	header, err := profiler.Header(soc, host.Fingerprint(), host.Kernels(), cli.Version, options.Seed)
	if err != nil {
		return err
	}
	rec, err := options.openRecord(header)
	if err != nil {
		return err
	}
	defer rec.Close()
	line := ui.Line(false)
	report, err := profiler.CompilerFacts(cmd.Context(), part, requests, rec, profiler.FactOptions{
		Compilers: groupCompilers(), Seed: options.Seed,
		Progress: func(done, all int, key string) { line.Bar("compile", done, all, key) },
	})
	line.End()
	facts := rec.Set().Facts()
	if err != nil {
		if empty, failed := options.removeEmpty(rec); empty {
			return errors.Join(err, failed)
		}
		ui.Notef("%d compiler facts are in %q: the same command with --resume goes on", len(facts), options.Out)
		return err
	}

	ui.Printf("%s: %d compiler facts added, %d reused, %d graphs refused by the compiler; no time of the device was "+
		"measured or simulated\n",
		options.Out, report.Added, report.Present, len(report.Refused))
	for _, refused := range report.Refused {
		ui.Warnf("%s: %s", refused.Op.Key(), refused.Refused)
	}
	showFacts(ui, facts)
	return ui.Result(map[string]any{
		"file": options.Out, "added": report.Added, "present": report.Present, "refused": len(report.Refused),
		"facts": facts,
	})
}

// checkFacts refuses a command line without a target, and flags of measuring, which would have no effect.
func (o *ProfileOptions) checkFacts(cmd *cobra.Command) error {
	if o.Target == "" {
		return diag.New(diag.ClassUsage,
			"profile: --compiler-only asks the compiler of a target, and --target is missing").
			WithHint("catalog SoCs that are targets: %s", targetNames())
	}
	for _, name := range []string{"budget", "rounds", "held-out", "plan", "flagged"} {
		if cmd.Flags().Changed(name) {
			return diag.New(diag.ClassUsage,
				"profile: --%s cannot be combined with --compiler-only, which measures nothing", name)
		}
	}
	return nil
}

// groupCompilers returns the compilers of this program that compile weights into their artifacts, by name. One whose
// artifacts take weights at run time has nothing to say about sizes.
func groupCompilers() map[string]driver.GroupCompiler {
	out := map[string]driver.GroupCompiler{}
	for _, compiler := range bindings.Compilers(nil) {
		if ofGroups, ok := compiler.(driver.GroupCompiler); ok {
			out[ofGroups.Name()] = ofGroups
		}
	}
	return out
}

// factRequests lists the graphs to ask about: products, in those of the workload's schemes that an
// NPU of the target executes.
func (o *ProfileOptions) factRequests(part *socs.SoC) ([]profiler.FactRequest, error) {
	model, needs, err := openPlanned(o.Model, o.Workload)
	if err != nil {
		return nil, err
	}
	defer model.Close()
	schemes := slices.DeleteFunc(needs.On(part), func(scheme op.Scheme) bool {
		return !slices.ContainsFunc(part.Processors, func(p socs.Processor) bool {
			return p.Kind == socs.KindNPU && slices.Contains(p.Schemes, scheme)
		})
	})
	want := profiler.Want{Buckets: needs.Buckets, Batches: needs.Batches, Schemes: schemes, MaxContext: needs.Context,
		Caches: needs.Caches}
	return profiler.FactRequests(part, model, want, needs.Lengths)
}

// listFacts prints what compilers would be asked about.
func listFacts(ui *cli.Streams, requests []profiler.FactRequest) error {
	var keys []string
	for i := range requests {
		keys = append(keys, requests[i].Keys()...)
	}
	for _, key := range keys {
		ui.Printf("%s\n", key)
	}
	return ui.Result(map[string]any{"compiler_facts": keys})
}

// targetNames lists the catalog's targets.
func targetNames() string {
	names, err := socs.Targets()
	if err != nil {
		return "see hetc socs list"
	}
	return strings.Join(names, ", ")
}

// showFacts prints a table of the answers, by product and number of rows.
func showFacts(ui *cli.Streams, facts []*record.Facts) {
	facts = slices.Clone(facts)
	shape := func(f *record.Facts) string { return fmt.Sprintf("%s [%d,%d] %s", f.Proc, f.Op.K, f.Op.N, f.Op.Scheme) }
	slices.SortStableFunc(facts, func(a, b *record.Facts) int {
		return cmp.Or(cmp.Compare(shape(a), shape(b)), cmp.Compare(len(a.Rows), len(b.Rows)), a.Op.M-b.Op.M)
	})
	var rows [][]string
	for _, said := range facts {
		rowsText, compile := fmt.Sprint(said.Op.M), "-"
		// Several numbers of rows are one binary, in which graphs share the weights.
		if said.Rows != nil {
			rowsText = strings.Trim(strings.ReplaceAll(fmt.Sprint(said.Rows), " ", "+"), "[]") + " shared"
		}
		if said.CompileMS > 0 {
			compile = fmt.Sprintf("%.0f", said.CompileMS)
		}
		if said.Refused != "" {
			rows = append(rows, []string{shape(said), rowsText, "refused", "", "", compile})
			continue
		}
		rows = append(rows, []string{shape(said), rowsText, unit.Bytes(said.Bytes).String(),
			unit.Bytes(said.SpillBytes).String(), unit.Bytes(said.VTCMBytes).String(), compile})
	}
	if len(rows) > 0 {
		ui.Printf("sizes that the compiler reports; spill is a buffer in main memory, not a time:\n")
		ui.Table([]string{"product", ">rows", ">binary", ">spill", ">VTCM", ">ms to compile here"}, rows)
	}
}
