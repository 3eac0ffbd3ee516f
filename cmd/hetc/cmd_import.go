package main

import (
	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/measure"
	"github.com/hetc/hetc/socs"
)

func newImport(s *cli.Streams) *cobra.Command {
	var o measure.ImportOptions
	c := &cobra.Command{
		Use:   "import FILE.csv -o rec.jsonl (--soc-out soc.yaml | --soc soc.yaml)",
		Short: "make a record of times that another program measured",
		Args:  cobra.ExactArgs(1),
		RunE:  func(c *cobra.Command, args []string) error { return measure.Import(c, s, &o, args[0]) },
	}
	f := c.Flags()
	f.StringVarP(&o.Out, "output", "o", "", "record to write")
	f.StringVar(&o.SoC, "soc", "", "SoC file or catalog name that the times belong to")
	f.StringVar(&o.SoCOut, "soc-out", "", "instead of --soc: SoC file to write for the processors of the table")
	f.StringVar(&o.Mapping, "map", "", "mapping file")
	f.StringArrayVar(&o.Columns, "column", nil, "FIELD=COLUMN: the column of a field; may be repeated")
	f.StringArrayVar(&o.Set, "set", nil, "FIELD=VALUE: the value of a field in every row; may be repeated")
	f.StringArrayVar(&o.Values, "value", nil, "FIELD:CELL=VALUE: what a cell of a field's column means; may be repeated")
	f.StringArrayVar(&o.Where, "where", nil, "COLUMN=VALUE: only these rows; of one column any of its values; may be repeated")
	f.StringArrayVar(&o.Infeasible, "infeasible", nil, "COLUMN=VALUE: rows whose operator a compiler refused; may be repeated")
	f.StringVar(&o.Unit, "time-unit", "", "ns, us, ms, s or cycles")
	f.Float64Var(&o.Clock, "clock-mhz", 0, "clock of the processor, for cycles")
	f.StringVar(&o.Separator, "separator", "", "between cells, such as ; (default a comma)")
	f.StringVar(&o.Repeats, "repeats", "", "rows about one operator with different times: refuse (default) or samples")
	f.StringVar(&o.Source, "source", "", "who measured what with which tool; stands in the record and the SoC file")
	f.Float64Var(&o.HeldOut, "held-out", 0, "share of the operators to hold out")
	f.Float64Var(&o.Sample, "sample", 0, "share of the operators to fit, the others are held out")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of which operators are held out")
	f.StringVar(&o.Name, "name", "imported", "name of the SoC that --soc-out describes")
	f.StringVar(&o.Kind, "processor-kind", socs.KindNPU, "cpu, gpu or npu, of processors that are not called so themselves")
	f.StringVar(&o.Tile, "tile", "", "M,K,N: granularity of the processors, where it is known")
	f.Float64Var(&o.Launch, "launch-us", 0, "time to launch a graph, which the times include; 0: unknown")
	f.Float64Var(&o.Bandwidth, "bandwidth-gbps", 0, "what a processor reads from memory alone; 0: unknown")
	return c
}
