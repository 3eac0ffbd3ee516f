package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/catalog"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/socs"
)

// newRun is hetrun with the simulation beside it.
func newRun(s *cli.Streams) *cobra.Command {
	var soc string
	c := runcmd.New(s, "run", true, func(p *planir.Plan) ([]driver.Driver, error) {
		x, err := bindings.SoCOf(p, soc)
		return bindings.Drivers(x), err
	})
	c.Flags().StringVar(&soc, "soc", "", "SoC file of a simulated plan whose SoC is not in the catalog")
	return c
}

func newSocs(s *cli.Streams) *cobra.Command {
	c := &cobra.Command{Use: "socs", Short: "list and show SoCs", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	list := &cobra.Command{Use: "list", Short: "list the catalog (simulated SoCs)", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var rows [][]string
			var docs []any
			for _, name := range socs.Catalog() {
				x, err := socs.Open(name)
				if err != nil {
					return err
				}
				var procs []string
				for _, p := range x.Processors {
					procs = append(procs, p.Name)
				}
				target := ""
				if npu := x.TargetNPU(); npu != nil {
					target = npu.Target.Driver
				}
				rows = append(rows, []string{name, strings.Join(procs, " "), cmp.Or(target, "-"), fmt.Sprint(len(x.Assumptions())), catalog.FirstSentence(x.Description)})
				docs = append(docs, map[string]any{"name": name, "processors": procs, "target": target, "assumptions": len(x.Assumptions()), "description": x.Description})
			}
			s.Table([]string{"soc", "processors", "target", ">assumed", "<what"}, rows)
			return s.Result(docs)
		}}
	list.Long = list.Short + ". Descriptions are cut to a sentence here; hetc socs show has them whole.\n\n" + cli.ExitCodes
	show := &cobra.Command{Use: "show SOC", Short: "show every number of a SoC with its source", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			x, err := socs.Open(args[0])
			if err != nil {
				return err
			}
			var rows [][]string
			for _, n := range x.Numbers() {
				rows = append(rows, []string{n.Path, n.Value, n.Kind, n.Text})
			}
			s.Printf("%s: %s\n", x.Name, x.Description)
			s.Table([]string{"value", ">number", "source", "<where"}, rows)
			return s.Result(x)
		}}
	c.AddCommand(list, show)
	return c
}
