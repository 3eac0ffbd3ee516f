package measure

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

// ImportOptions are the flags of hetc import. Lists are "a=b".
type ImportOptions struct {
	Out, SoC, SoCOut, Mapping                 string
	Columns, Set, Values, Where, Infeasible   []string
	Unit, Separator, Repeats, Source          string
	Clock, HeldOut, Sample, Launch, Bandwidth float64
	Seed                                      uint64
	Name, Kind, Tile                          string
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
func (o *ImportOptions) read() (*imported.Mapping, error) {
	m := &imported.Mapping{}
	if o.Mapping != "" {
		var err error
		if m, err = imported.Open(o.Mapping); err != nil {
			return nil, err
		}
	}
	err := errors.Join(
		pairs("column", o.Columns, once(&m.Columns)),
		pairs("set", o.Set, once(&m.Set)),
		pairs("where", o.Where, each(&m.Where)),
		pairs("infeasible", o.Infeasible, each(&m.Infeasible)),
		pairs("value", o.Values, func(key, value string) bool {
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
	m.TimeUnit = cmp.Or(o.Unit, m.TimeUnit)
	m.ClockMHz = cmp.Or(o.Clock, m.ClockMHz)
	m.Separator = cmp.Or(o.Separator, m.Separator)
	m.Repeats = cmp.Or(o.Repeats, m.Repeats)
	m.Source = cmp.Or(o.Source, m.Source)
	if m.Source == "" {
		return nil, diag.New(diag.ClassUsage, "import: nothing says where the times come from").
			WithHint(`--source "who measured what with which tool": it stands in the record and the SoC file`)
	}
	return m, nil
}

// held is the share of operators to hold out; false where the flags say none.
func (o *ImportOptions) held(c *cobra.Command) (float64, bool, error) {
	heldOut, sample := c.Flags().Changed("held-out"), c.Flags().Changed("sample")
	share := o.HeldOut
	if sample {
		share = 1 - o.Sample
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

func Import(c *cobra.Command, s *cli.Streams, o *ImportOptions, path string) error {
	if err := cli.Required(c, "output"); err != nil {
		return err
	}
	if (o.SoC == "") == (o.SoCOut == "") {
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
		table.HoldOut(share, o.Seed)
	}
	soc, err := o.describe(table, m.Source)
	if err != nil {
		return err
	}
	set, err := table.Record(soc, m.Source, cli.Version, o.Seed)
	if err != nil {
		return err
	}
	if set.Training().Len() == 0 {
		return diag.New(diag.ClassInput, "import %q: nothing is left to fit, %d operators are held out and %d were refused", path, set.HeldOut().Len(), len(set.Facts()))
	}
	if err := replaceable(o.Out); err != nil {
		return err
	}
	if o.SoCOut != "" {
		if err := socs.Write(o.SoCOut, soc); err != nil {
			return err
		}
	}
	if err := record.Write(o.Out, set); err != nil {
		return err
	}
	return showImport(s, o, table, set, soc)
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
	return t.SoC(imported.Description{Name: o.Name, Kind: o.Kind, Tile: tile, LaunchUS: o.Launch, BandwidthGBps: o.Bandwidth, Source: source})
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

func showImport(s *cli.Streams, o *ImportOptions, t *imported.Table, set *record.Set, soc *socs.SoC) error {
	procs := map[string]bool{}
	for _, m := range set.All() {
		procs[m.Proc] = true
	}
	names := slices.Sorted(maps.Keys(procs))
	held := set.HeldOut().Len()
	s.Printf("%s: %d operators of %s, measured elsewhere (imported): %d to fit, %d held out, %d refused by their compiler\n",
		o.Out, set.Len(), strings.Join(names, ", "), set.Len()-held, held, len(set.Facts()))
	var used []string
	for _, field := range slices.Sorted(maps.Keys(t.Columns)) {
		used = append(used, field+" from "+strconv.Quote(t.Columns[field]))
	}
	s.Printf("%s: %s; %d rows filtered out, %d repeated\n", t.File, strings.Join(used, ", "), t.Filtered, t.Repeated)
	if o.SoCOut != "" {
		unknown := "; launch cost unknown"
		if o.Launch > 0 {
			unknown = fmt.Sprintf("; %g us to launch a graph, as told", o.Launch)
		}
		s.Printf("%s: SoC %s%s\n", o.SoCOut, soc.Name, unknown)
	}
	return s.Result(map[string]any{"file": o.Out, "soc": soc.Name, "soc_file": o.SoCOut, "processors": names, "operators": set.Len(), "held_out": held, "refused": len(set.Facts()),
		"columns": t.Columns, "filtered": t.Filtered, "repeated": t.Repeated, "sha256": t.Digest, "imported": true, "simulated": soc.Simulated()})
}
