package measure

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/profiler/imported"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/socs"
)

// ImportOptions are the flags of hetc import. Elements of lists have the form NAME=VALUE.
type ImportOptions struct {
	Out, SoC, SoCOut, Mapping               string
	Columns, Set, Values, Where, Infeasible []string
	// as in imported.Mapping
	Unit, Separator, Repeats, Source string
	// the clock in MHz; shares of 0..1 to hold out and to fit; us to launch a graph; GB/s
	Clock, HeldOut, Sample, Launch, Bandwidth float64
	Seed                                      uint64
	Name, Kind, Tile                          string
}

// pairs splits NAME=VALUE arguments of a flag and passes them to add, which returns false for a
// name that is given twice.
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

// once stores values in a map of the mapping. A flag may override the file, but not another flag.
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

// each appends values to the lists of the mapping.
func each(to *map[string][]string) func(key, value string) bool {
	return func(key, value string) bool {
		if *to == nil {
			*to = map[string][]string{}
		}
		(*to)[key] = append((*to)[key], value)
		return true
	}
}

// read merges the mapping file with the flags, which take precedence.
func (o *ImportOptions) read() (*imported.Mapping, error) {
	mapping := &imported.Mapping{}
	if o.Mapping != "" {
		var err error
		if mapping, err = imported.Open(o.Mapping); err != nil {
			return nil, err
		}
	}
	err := errors.Join(
		pairs("column", o.Columns, once(&mapping.Columns)),
		pairs("set", o.Set, once(&mapping.Set)),
		pairs("where", o.Where, each(&mapping.Where)),
		pairs("infeasible", o.Infeasible, each(&mapping.Infeasible)),
		o.readValues(mapping))
	if err != nil {
		return nil, err
	}
	mapping.TimeUnit = cmp.Or(o.Unit, mapping.TimeUnit)
	mapping.ClockMHz = cmp.Or(o.Clock, mapping.ClockMHz)
	mapping.Separator = cmp.Or(o.Separator, mapping.Separator)
	mapping.Repeats = cmp.Or(o.Repeats, mapping.Repeats)
	mapping.Source = cmp.Or(o.Source, mapping.Source)
	if mapping.Source == "" {
		return nil, diag.New(diag.ClassUsage, "import: nothing says where the times come from").
			WithHint(`--source "who measured what with which tool": it stands in the record and the SoC file`)
	}
	return mapping, nil
}

// readValues adds --value FIELD:CELL=VALUE to the mapping: what a cell of the field's column means.
func (o *ImportOptions) readValues(mapping *imported.Mapping) error {
	said := map[string]bool{}
	for _, text := range o.Values {
		key, value, ok := strings.Cut(text, "=")
		field, cell, two := strings.Cut(key, ":")
		if !ok || !two || field == "" {
			return diag.New(diag.ClassUsage, "--value %q: want FIELD:CELL=VALUE", text)
		}
		if said[key] {
			return diag.New(diag.ClassUsage, "--value %q: %q is said twice", text, key)
		}
		said[key] = true
		if mapping.Values == nil {
			mapping.Values = map[string]map[string]string{}
		}
		if mapping.Values[field] == nil {
			mapping.Values[field] = map[string]string{}
		}
		mapping.Values[field][cell] = value
	}
	return nil
}

// held returns the share of operators to hold out, false where no flag asks for it.
func (o *ImportOptions) held(c *cobra.Command) (float64, bool, error) {
	heldOut, sample := c.Flags().Changed("held-out"), c.Flags().Changed("sample")
	share, flag, given := o.HeldOut, "held-out", o.HeldOut
	if sample {
		// --sample says what is fitted, --held-out the rest.
		share, flag, given = 1-o.Sample, "sample", o.Sample
	}
	switch {
	case heldOut && sample:
		return 0, false, diag.New(diag.ClassUsage,
			"import: --held-out and --sample say the same in two ways, want one of them")
	case !heldOut && !sample:
		return 0, false, nil
	case !(share > 0 && share < 1):
		return 0, false, diag.New(diag.ClassUsage,
			"import: --%s %v: want a share of the operators, more than 0 and less than 1", flag, given).
			WithHint("--sample 0.15 fits 15 %% of them and holds out the others; without it all are fitted")
	}
	return share, true, nil
}

// tileOf parses --tile: rows, K and N.
func tileOf(text string) (capability.Tile, error) {
	if text == "" {
		return capability.Tile{}, nil
	}
	var sizes [3]int
	parts := strings.Split(text, ",")
	for i, part := range parts {
		size, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || len(parts) != len(sizes) || size < 1 {
			return capability.Tile{}, diag.New(diag.ClassUsage, "--tile %q: want three numbers from 1, such as 1,32,16",
				text)
		}
		sizes[i] = size
	}
	return capability.Tile{M: sizes[0], K: sizes[1], N: sizes[2]}, nil
}

// Import makes a record of a table that another program measured, and a SoC file where --soc-out
// asks for one.
func Import(cmd *cobra.Command, ui *cli.Streams, options *ImportOptions, path string) error {
	if err := cli.Required(cmd, "output"); err != nil {
		return err
	}
	if err := options.checkSoC(cmd); err != nil {
		return err
	}
	mapping, err := options.read()
	if err != nil {
		return err
	}
	share, hold, err := options.held(cmd)
	if err != nil {
		return err
	}
	if hold && mapping.Columns["held_out"] != "" {
		return diag.New(diag.ClassUsage,
			"import: a column says what is held out, and a flag does too, want one of them")
	}
	if hold && mapping.Set["held_out"] != "" {
		return diag.New(diag.ClassUsage, "import: --set says what is held out, and a flag does too, want one of them")
	}
	table, err := imported.Read(path, mapping)
	if err != nil {
		return err
	}
	if hold {
		table.HoldOut(share, options.Seed)
	}
	soc, err := options.describe(table, mapping.Source)
	if err != nil {
		return err
	}
	set, err := table.Record(soc, mapping.Source, cli.Version, options.Seed)
	if err != nil {
		return err
	}
	if set.Training().Len() == 0 {
		return diag.New(diag.ClassInput,
			"import %q: nothing is left to fit, %d operators are held out and %d were refused", path,
			set.HeldOut().Len(), len(set.Facts()))
	}
	// write only when nothing can fail any more
	if err := replaceable(options.Out); err != nil {
		return err
	}
	if options.SoCOut != "" {
		if err := replaceableSoC(options.SoCOut); err != nil {
			return err
		}
		if err := socs.Write(options.SoCOut, soc); err != nil {
			return err
		}
	}
	if err := record.Write(options.Out, set); err != nil {
		return err
	}
	return showImport(ui, options, table, set, soc)
}

// checkSoC wants one of --soc and --soc-out, and refuses what describes processors that a file describes already.
func (o *ImportOptions) checkSoC(cmd *cobra.Command) error {
	if (o.SoC == "") == (o.SoCOut == "") {
		return diag.New(diag.ClassUsage, "import: want one of --soc and --soc-out").
			WithHint("--soc-out FILE describes the processors of the table, --soc FILE says which SoC they are of")
	}
	for _, name := range []string{"name", "processor-kind", "tile", "launch-us", "bandwidth-gbps"} {
		if o.SoC != "" && cmd.Flags().Changed(name) {
			return diag.New(diag.ClassUsage, "import: --%s needs --soc-out", name).
				WithHint("leave it out, or correct the file of --soc")
		}
	}
	return nil
}

// describe returns the SoC that the times belong to.
func (o *ImportOptions) describe(t *imported.Table, source string) (*socs.SoC, error) {
	if o.SoC != "" {
		return socs.Open(o.SoC)
	}
	tile, err := tileOf(o.Tile)
	if err != nil {
		return nil, err
	}
	return t.SoC(imported.Description{Name: o.Name, Kind: o.Kind, Tile: tile, LaunchUS: o.Launch,
		BandwidthGBps: o.Bandwidth, Source: source})
}

// replaceable refuses to overwrite measurements. What was imported may be replaced, because it can be imported again.
func replaceable(path string) error {
	if err := wholefile.Writable(path); err != nil {
		return err
	}
	old, err := record.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	// A file that is no record, or one that took hours to measure.
	if err != nil || len(old.Header.Imported) == 0 {
		return diag.New(diag.ClassInput, "import: %q is there, and no imported record", path).
			WithHint("name another file")
	}
	// hetc profile --resume may have added to an imported record.
	if measurements, facts := imported.Own(old); measurements+facts > 0 {
		return diag.New(diag.ClassInput, "import: %q holds %s and %s beside imported times", path,
			cli.Count(measurements, "measurement"), cli.Count(facts, "compiler fact")).
			WithHint("name another file")
	}
	return nil
}

// replaceableSoC refuses to overwrite a file that no import has described: a SoC that was probed or written by hand.
func replaceableSoC(path string) error {
	if err := wholefile.Writable(path); err != nil {
		return err
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	old, err := socs.Open(path)
	if err != nil || !old.Imported() {
		return diag.New(diag.ClassInput, "import: %q is there, and no SoC file of an import", path).
			WithHint("name another file")
	}
	return nil
}

// showImport prints how many operators were imported from which columns, and how many were filtered
// out, repeated or held out.
func showImport(ui *cli.Streams, options *ImportOptions, table *imported.Table, set *record.Set, soc *socs.SoC) error {
	procs := map[string]bool{}
	for _, measurement := range set.All() {
		procs[measurement.Proc] = true
	}
	names := slices.Sorted(maps.Keys(procs))
	held := set.HeldOut().Len()
	ui.Printf("%s: %d operators of %s, measured elsewhere (imported): %d to fit, %d held out, %d refused by their "+
		"compiler\n",
		options.Out, set.Len(), strings.Join(names, ", "), set.Len()-held, held, len(set.Facts()))
	var used []string
	for _, field := range slices.Sorted(maps.Keys(table.Columns)) {
		used = append(used, field+" from "+strconv.Quote(table.Columns[field]))
	}
	ui.Printf("%s: %s; %d rows filtered out, %d repeated\n", table.File, strings.Join(used, ", "), table.Filtered,
		table.Repeated)
	if options.SoCOut != "" {
		unknown := "; launch cost unknown"
		if options.Launch > 0 {
			unknown = fmt.Sprintf("; %g us to launch a graph, as told", options.Launch)
		}
		ui.Printf("%s: SoC %s%s\n", options.SoCOut, soc.Name, unknown)
	}
	return ui.Result(map[string]any{"file": options.Out, "soc": soc.Name, "soc_file": options.SoCOut,
		"processors": names, "operators": set.Len(), "held_out": held, "refused": len(set.Facts()),
		"columns": table.Columns, "filtered": table.Filtered, "repeated": table.Repeated, "sha256": table.Digest,
		"imported": true, "simulated": soc.Simulated()})
}
