package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/diff"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
)

func newDiff(s *cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "diff A B",
		Short: "show in what two plans or two bundles differ",
		Long: `Compares two plans (YAML or JSON) or two bundles: what they were made from, processors, buckets, decisions, schemes, predictions,
memory, and of bundles the blobs. Nothing is verified: hetc verify does that. Plans for different models or SoCs are
compared as far as they have the same names, and it says so. The exit code is 0 whether they differ or not; under --json
"equal" tells.

` + cli.ExitCodes,
		Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			a, err := diff.Open(args[0])
			if err != nil {
				return err
			}
			b, err := diff.Open(args[1])
			if err != nil {
				return err
			}
			if (a.Manifest == nil) != (b.Manifest == nil) {
				return diag.New(diag.ClassUsage, "diff: one of %q and %q is a bundle, and the other a plan", args[0], args[1]).WithHint("compare two plans, or two bundles")
			}
			var list []diff.Unlike
			if a.Manifest != nil {
				list = diff.Bundles(a, b)
			}
			if a.Plan != nil && b.Plan != nil {
				list = append(list, diff.Plans(a.Plan, b.Plan)...)
			}
			var notes []string
			if a.Plan == nil || b.Plan == nil {
				notes = append(notes, "a bundle whose plan cannot be read is compared by its manifest only")
			} else {
				if a.Plan.Model.Name != b.Plan.Model.Name {
					notes = append(notes, fmt.Sprintf("the plans are for different models (%s, %s): only what has the same name is compared", a.Plan.Model.Name, b.Plan.Model.Name))
				}
				if a.Plan.SoC.Name != b.Plan.SoC.Name {
					notes = append(notes, fmt.Sprintf("the plans are for different SoCs (%s, %s): times are of different machines", a.Plan.SoC.Name, b.Plan.SoC.Name))
				}
				for _, x := range []struct {
					name string
					plan *planir.Plan
				}{{"A", a.Plan}, {"B", b.Plan}} {
					if text := x.plan.EvidenceText(); text != "" {
						notes = append(notes, x.name+" is "+text)
					}
				}
				if a.Plan.SoC.Imported || b.Plan.SoC.Imported {
					notes = append(notes, "times of imported records were measured elsewhere")
				}
			}
			if len(list) == 0 {
				s.Printf("equal\n")
			}
			for _, n := range notes {
				s.Printf("%s\n", n)
			}
			var rows [][]string
			for _, d := range list {
				rows = append(rows, []string{d.Section, d.What, diff.Short(d.A), diff.Short(d.B)})
			}
			if rows != nil {
				s.Table([]string{"", "what", "A", "B"}, rows)
				s.Printf("%d differences\n", len(list))
			}
			if list == nil {
				list = []diff.Unlike{}
			}
			doc := map[string]any{"equal": len(list) == 0, "a": args[0], "b": args[1], "notes": notes, "differences": list}
			if a.Plan != nil && b.Plan != nil {
				doc["evidence_a"], doc["evidence_b"] = a.Plan.Evidence(), b.Plan.Evidence()
			}
			return s.Result(doc)
		},
	}
}
