package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/profiler/imported"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/socs"
)

// importOptions are the flags of hetc import. Lists are "a=b".
type importOptions struct {
	out, soc, socOut, mapping                 string
	columns, set, values, where, infeasible   []string
	unit, separator, repeats, source          string
	clock, heldOut, sample, launch, bandwidth float64
	seed                                      uint64
	name, kind, tile                          string
}

func newImport(s *cli.Streams) *cobra.Command {
	var o importOptions
	c := &cobra.Command{
		Use:   "import FILE.csv -o rec.jsonl (--soc-out soc.yaml | --soc soc.yaml)",
		Short: "make a record of times that another program measured",
		Long: `Makes a record of a table of times (CSV with names of columns in its first line), so that hetc fit and hetc solve
work on it. Without --soc it also writes a description of the processors in the table: it has what the rows show and
what flags tell, no driver executes on it, and its launch cost is 0, which means unknown, unless --launch-us says it.
Everything made from the record says that its times were measured elsewhere.

Fields are time, proc, cold, held_out, and those of an operator as in a record: kind, m, k, n, scheme, bias, form,
heads, context and so on (docs/record.md). Columns called m, k and n are found by their names; kind is matmul and
proc is npu unless said otherwise.

  hetc import sweep.csv -o rec.jsonl --soc-out npu.yaml --column time=cycles --time-unit cycles --clock-mhz 1000 \
    --where target=ethos-u85-256 --where op=fc --set scheme=a8t/q8c --source "Arm Vela 5.2.0, estimates" --sample 0.15

--map FILE has the same in a file (schema hetc.import/1), and flags add to it. Rows that repeat an operator with the
same time count once; with another time they are an error, because a column that is not mapped may tell them
apart, unless --repeats samples says that they are samples of one thing.

--sample 0.15 fits 15 % of the operators of each kind and holds out the others for judging predictions; --held-out
0.85 is the same. The corners of the range of sizes are always fitted.

` + cli.ExitCodes,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return runImport(c, s, &o, args[0]) },
	}
	f := c.Flags()
	f.StringVarP(&o.out, "output", "o", "", "record to write")
	f.StringVar(&o.soc, "soc", "", "SoC file or catalog name that the times belong to")
	f.StringVar(&o.socOut, "soc-out", "", "instead of --soc: SoC file to write for the processors of the table")
	f.StringVar(&o.mapping, "map", "", "mapping file")
	f.StringArrayVar(&o.columns, "column", nil, "FIELD=COLUMN: the column of a field; may be repeated")
	f.StringArrayVar(&o.set, "set", nil, "FIELD=VALUE: the value of a field in every row; may be repeated")
	f.StringArrayVar(&o.values, "value", nil, "FIELD:CELL=VALUE: what a cell of a field's column means; may be repeated")
	f.StringArrayVar(&o.where, "where", nil, "COLUMN=VALUE: only these rows; of one column any of its values; may be repeated")
	f.StringArrayVar(&o.infeasible, "infeasible", nil, "COLUMN=VALUE: rows whose operator a compiler refused; may be repeated")
	f.StringVar(&o.unit, "time-unit", "", "ns, us, ms, s or cycles")
	f.Float64Var(&o.clock, "clock-mhz", 0, "clock of the processor, for cycles")
	f.StringVar(&o.separator, "separator", "", "between cells, such as ; (default a comma)")
	f.StringVar(&o.repeats, "repeats", "", "rows about one operator with different times: refuse (default) or samples")
	f.StringVar(&o.source, "source", "", "who measured what with which tool; stands in the record and the SoC file")
	f.Float64Var(&o.heldOut, "held-out", 0, "share of the operators to hold out")
	f.Float64Var(&o.sample, "sample", 0, "share of the operators to fit, the others are held out")
	f.Uint64Var(&o.seed, "seed", 1, "seed of which operators are held out")
	f.StringVar(&o.name, "name", "imported", "name of the SoC that --soc-out describes")
	f.StringVar(&o.kind, "processor-kind", socs.KindNPU, "cpu, gpu or npu, of processors that are not called so themselves")
	f.StringVar(&o.tile, "tile", "", "M,K,N: granularity of the processors, where it is known")
	f.Float64Var(&o.launch, "launch-us", 0, "time to launch a graph, which the times include; 0: unknown")
	f.Float64Var(&o.bandwidth, "bandwidth-gbps", 0, "what a processor reads from memory alone; 0: unknown")
	return c
}

// pairs reads "a=b" into a map. what names the flag.
func pairs(what string, given []string, add func(key, value string) bool) error {
	for _, text := range given {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return diag.New(diag.ClassUsage, "--%s %q: want NAME=VALUE", what, text)
		}
		if !add(key, value) {
			return diag.New(diag.ClassUsage, "--%s %q: %q is said twice", what, text, key)
		}
	}
	return nil
}

// once adds what flags say to a map of a mapping file; two flags may not say two things about one key.
func once(to *map[string]string) func(key, value string) bool {
	said := map[string]bool{}
	return func(key, value string) bool {
		if *to == nil {
			*to = map[string]string{}
		}
		again := said[key]
		said[key], (*to)[key] = true, value
		return !again
	}
}

// each adds what flags say to the lists of a mapping file.
func each(to *map[string][]string) func(key, value string) bool {
	return func(key, value string) bool {
		if *to == nil {
			*to = map[string][]string{}
		}
		(*to)[key] = append((*to)[key], value)
		return true
	}
}

// read is the mapping of the file and the flags.
func (o *importOptions) read() (*imported.Mapping, error) {
	m := &imported.Mapping{}
	if o.mapping != "" {
		var err error
		if m, err = imported.Open(o.mapping); err != nil {
			return nil, err
		}
	}
	err := errors.Join(
		pairs("column", o.columns, once(&m.Columns)),
		pairs("set", o.set, once(&m.Set)),
		pairs("where", o.where, each(&m.Where)),
		pairs("infeasible", o.infeasible, each(&m.Infeasible)),
		pairs("value", o.values, func(key, value string) bool {
			field, cell, _ := strings.Cut(key, ":")
			if m.Values == nil {
				m.Values = map[string]map[string]string{}
			}
			if m.Values[field] == nil {
				m.Values[field] = map[string]string{}
			}
			m.Values[field][cell] = value
			return true
		}))
	if err != nil {
		return nil, err
	}
	m.TimeUnit = cmp.Or(o.unit, m.TimeUnit)
	m.ClockMHz = cmp.Or(o.clock, m.ClockMHz)
	m.Separator = cmp.Or(o.separator, m.Separator)
	m.Repeats = cmp.Or(o.repeats, m.Repeats)
	m.Source = cmp.Or(o.source, m.Source)
	if m.Source == "" {
		return nil, diag.New(diag.ClassUsage, "import: nothing says where the times come from").
			WithHint(`--source "who measured what with which tool": it stands in the record and the SoC file`)
	}
	return m, nil
}

// held is the share of operators to hold out; false where the flags say none.
func (o *importOptions) held(c *cobra.Command) (float64, bool, error) {
	heldOut, sample := c.Flags().Changed("held-out"), c.Flags().Changed("sample")
	share := o.heldOut
	if sample {
		share = 1 - o.sample
	}
	switch {
	case heldOut && sample:
		return 0, false, diag.New(diag.ClassUsage, "import: --held-out and --sample say the same in two ways, want one of them")
	case !heldOut && !sample:
		return 0, false, nil
	case !(share > 0 && share < 1):
		return 0, false, diag.New(diag.ClassUsage, "import: %v %% of the operators held out, want more than 0 and less than 100", 100*share)
	}
	return share, true, nil
}

// tileOf reads --tile.
func tileOf(text string) (socs.Tile, error) {
	if text == "" {
		return socs.Tile{}, nil
	}
	var n [3]int
	parts := strings.Split(text, ",")
	for i, x := range parts {
		v, err := strconv.Atoi(strings.TrimSpace(x))
		if err != nil || len(parts) != len(n) || v < 1 {
			return socs.Tile{}, diag.New(diag.ClassUsage, "--tile %q: want three numbers from 1, such as 1,32,16", text)
		}
		n[i] = v
	}
	return socs.Tile{M: n[0], K: n[1], N: n[2]}, nil
}

func runImport(c *cobra.Command, s *cli.Streams, o *importOptions, path string) error {
	if err := cli.Required(c, "output"); err != nil {
		return err
	}
	if (o.soc == "") == (o.socOut == "") {
		return diag.New(diag.ClassUsage, "import: want one of --soc and --soc-out").WithHint("--soc-out FILE describes the processors of the table, --soc FILE says which SoC they are of")
	}
	m, err := o.read()
	if err != nil {
		return err
	}
	share, hold, err := o.held(c)
	if err != nil {
		return err
	}
	table, err := imported.Read(path, m)
	if err != nil {
		return err
	}
	if hold {
		if m.Columns["held_out"] != "" {
			return diag.New(diag.ClassUsage, "import: a column says what is held out, and a flag does too, want one of them")
		}
		table.HoldOut(share, o.seed)
	}
	soc, err := o.describe(table, m.Source)
	if err != nil {
		return err
	}
	set, err := table.Record(soc, m.Source, cli.Version, o.seed)
	if err != nil {
		return err
	}
	if set.Training().Len() == 0 {
		return diag.New(diag.ClassInput, "import %q: nothing is left to fit, %d operators are held out and %d were refused", path, set.HeldOut().Len(), len(set.Facts()))
	}
	if err := replaceable(o.out); err != nil {
		return err
	}
	if o.socOut != "" {
		if err := socs.Write(o.socOut, soc); err != nil {
			return err
		}
	}
	if err := record.Write(o.out, set); err != nil {
		return err
	}
	return showImport(s, o, table, set, soc)
}

// describe returns the SoC that the times belong to.
func (o *importOptions) describe(t *imported.Table, source string) (*socs.SoC, error) {
	if o.soc != "" {
		return socs.Open(o.soc)
	}
	tile, err := tileOf(o.tile)
	if err != nil {
		return nil, err
	}
	return t.SoC(imported.Description{Name: o.name, Kind: o.kind, Tile: tile, LaunchUS: o.launch, BandwidthGBps: o.bandwidth, Source: source})
}

// replaceable refuses to write over measurements: what was imported can be imported again.
func replaceable(path string) error {
	if err := wholefile.Writable(path); err != nil {
		return err
	}
	old, err := record.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || len(old.Header.Imported) == 0 {
		return diag.New(diag.ClassInput, "import: %q is there, and no imported record", path).WithHint("name another file")
	}
	return nil
}

func showImport(s *cli.Streams, o *importOptions, t *imported.Table, set *record.Set, soc *socs.SoC) error {
	procs := map[string]bool{}
	for _, m := range set.All() {
		procs[m.Proc] = true
	}
	names := slices.Sorted(maps.Keys(procs))
	held := set.HeldOut().Len()
	s.Printf("%s: %d operators of %s, measured elsewhere (imported): %d to fit, %d held out, %d refused by their compiler\n",
		o.out, set.Len(), strings.Join(names, ", "), set.Len()-held, held, len(set.Facts()))
	var used []string
	for _, field := range slices.Sorted(maps.Keys(t.Columns)) {
		used = append(used, field+" from "+strconv.Quote(t.Columns[field]))
	}
	s.Printf("%s: %s; %d rows filtered out, %d repeated\n", t.File, strings.Join(used, ", "), t.Filtered, t.Repeated)
	if o.socOut != "" {
		unknown := "; launch cost unknown"
		if o.launch > 0 {
			unknown = fmt.Sprintf("; %g us to launch a graph, as told", o.launch)
		}
		s.Printf("%s: SoC %s%s\n", o.socOut, soc.Name, unknown)
	}
	return s.Result(map[string]any{"file": o.out, "soc": soc.Name, "soc_file": o.socOut, "processors": names, "operators": set.Len(), "held_out": held, "refused": len(set.Facts()),
		"columns": t.Columns, "filtered": t.Filtered, "repeated": t.Repeated, "sha256": t.Digest, "imported": true, "simulated": soc.Simulated()})
}
