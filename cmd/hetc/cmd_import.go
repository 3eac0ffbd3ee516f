package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/measure"
	"github.com/hetc/hetc/socs"
)

// newImport makes a record of another program's table of times; measure.Import maps its columns.
func newImport(ui *cli.Streams) *cobra.Command {
	var opts measure.ImportOptions
	cmd := &cobra.Command{
		Use:   "import FILE.csv -o rec.jsonl (--soc-out soc.yaml | --soc soc.yaml)",
		Short: "make a record of times that another program measured",
		Args:  cobra.ExactArgs(1),
		RunE:  func(c *cobra.Command, args []string) error { return measure.Import(c, ui, &opts, args[0]) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&opts.Out, "output", "o", "", "record to write")
	flags.StringVar(&opts.SoC, "soc", "", "SoC file or catalog name that the times belong to")
	flags.StringVar(&opts.SoCOut, "soc-out", "", "instead of --soc: SoC file to write for the processors of the table")
	flags.StringVar(&opts.Mapping, "map", "", "mapping file")
	flags.StringArrayVar(&opts.Columns, "column", nil, "FIELD=COLUMN: the column of a field; may be repeated")
	flags.StringArrayVar(&opts.Set, "set", nil, "FIELD=VALUE: the value of a field in every row; may be repeated")
	flags.StringArrayVar(&opts.Values, "value", nil,
		"FIELD:CELL=VALUE: what a cell of a field's column means; may be repeated")
	flags.StringArrayVar(&opts.Where, "where", nil,
		"COLUMN=VALUE: only these rows; of one column any of its values; may be repeated")
	flags.StringArrayVar(&opts.Infeasible, "infeasible", nil,
		"COLUMN=VALUE: rows whose operator a compiler refused; may be repeated")
	flags.StringVar(&opts.Unit, "time-unit", "", "ns, us, ms, s or cycles")
	flags.Float64Var(&opts.Clock, "clock-mhz", 0, "clock of the processor, for cycles")
	flags.StringVar(&opts.Separator, "separator", "", "between cells, such as ; (default a comma)")
	flags.StringVar(&opts.Repeats, "repeats", "",
		"rows about one operator with different times: refuse (default) or samples")
	flags.StringVar(&opts.Source, "source", "",
		"who measured what with which tool; stands in the record and the SoC file")
	flags.Float64Var(&opts.HeldOut, "held-out", 0, "share of the operators to hold out")
	flags.Float64Var(&opts.Sample, "sample", 0, "share of the operators to fit, the others are held out")
	flags.Uint64Var(&opts.Seed, "seed", 1, "seed of which operators are held out")
	flags.StringVar(&opts.Name, "name", "imported", "name of the SoC that --soc-out describes")
	flags.StringVar(&opts.Kind, "processor-kind", socs.KindNPU,
		"cpu, gpu or npu, of processors that are not called so themselves")
	flags.StringVar(&opts.Tile, "tile", "", "M,K,N: granularity of the processors, where it is known")
	flags.Float64Var(&opts.Launch, "launch-us", 0, "time to launch a graph, which the times include; 0: unknown")
	flags.Float64Var(&opts.Bandwidth, "bandwidth-gbps", 0, "what a processor reads from memory alone; 0: unknown")
	return cmd
}
