package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/compare"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
)

// newBenchPlans answers what solving gains over rules of thumb, on simulated SoCs; each row of compare.Tables makes one
// comparison.
func newBenchPlans(ui *cli.Streams) *cobra.Command {
	var what, out string
	var names []string
	list := ""
	for _, table := range compare.Tables {
		names = append(names, table.Name)
		list += fmt.Sprintf("  %-10s %s\n", table.Name, table.Short)
	}
	cmd := &cobra.Command{
		Use:   "plans --what " + strings.Join(names, "|"),
		Short: "compare what solve decides with rules of thumb, at the same costs",
		Long: `Solves for catalog SoCs and models at costs of a simulated profile, once as solve decides and once for each of the
rules it is compared with, and writes a Markdown table. Nothing is measured on this machine: all times are
simulated and say so, and the same version of hetc writes the same table.

` + strings.TrimSuffix(list, "\n"),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.Required(cmd, "what"); err != nil {
				return err
			}
			at := slices.Index(names, what)
			if at < 0 {
				return diag.New(diag.ClassUsage, "--what %q: no such comparison", what).
					WithHint("%s", diag.DidYouMean(what, names))
			}
			if out != "" {
				if err := wholefile.Writable(out); err != nil {
					return err
				}
			}
			text, rows, err := compare.Tables[at].Run(cmd.Context())
			if err != nil {
				return err
			}
			if out != "" {
				if err := wholefile.Write(out, []byte(text)); err != nil {
					return err
				}
			} else {
				ui.Printf("%s", text)
			}
			return ui.Result(map[string]any{"what": what, "simulated": true, "rows": rows})
		},
	}
	cmd.Flags().StringVar(&what, "what", "", "comparison to make: "+strings.Join(names, ", "))
	cmd.Flags().StringVarP(&out, "output", "o", "", "Markdown file to write; default: standard output")
	return cmd
}
