// Package imported knows how a table of times that another program measured becomes a record: what its columns mean, in
// which unit they are, which rows count, and which of them are kept for judging predictions.
package imported

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// schema names the format of a mapping file.
const schema = "hetc.import/1"

// Fields of a row beside those of its operator. The latter have the names of the record's JSON.
const (
	fieldTime    = "time"     // of one execution
	fieldProc    = "proc"     // processor of the SoC
	fieldCold    = "cold"     // weights were in no cache
	fieldHeldOut = "held_out" // for judging predictions, never fitted
)

// Values of Mapping.Repeats: what to do with rows about one operator that have different times.
const (
	Refuse  = "refuse"
	Samples = "samples"
)

// Mapping says what the columns of a table mean, in which units they are, and which rows count.
type Mapping struct {
	Schema string `json:"schema,omitempty" yaml:"schema,omitempty"`
	// Columns are the columns of fields, Set the fields with one value for all rows. Values translates the cells of a
	// field.
	Columns map[string]string            `json:"columns,omitempty" yaml:"columns,omitempty"`
	Set     map[string]string            `json:"set,omitempty" yaml:"set,omitempty"`
	Values  map[string]map[string]string `json:"values,omitempty" yaml:"values,omitempty"`
	// Where keeps the rows that have one of the values in each of these columns. Infeasible marks rows whose operator a
	// compiler refused: those with one of the values in any of the columns.
	Where      map[string][]string `json:"where,omitempty" yaml:"where,omitempty"`
	Infeasible map[string][]string `json:"infeasible,omitempty" yaml:"infeasible,omitempty"`

	TimeUnit  string  `json:"time_unit,omitempty" yaml:"time_unit,omitempty"` // ns, us, ms, s or cycles
	ClockMHz  float64 `json:"clock_mhz,omitempty" yaml:"clock_mhz,omitempty"` // of cycles
	Separator string  `json:"separator,omitempty" yaml:"separator,omitempty"` // between cells; "": a comma
	Repeats   string  `json:"repeats,omitempty" yaml:"repeats,omitempty"`     // refuse ("") or samples
	Source    string  `json:"source,omitempty" yaml:"source,omitempty"`       // what was measured, by whom, with which tool
}

// Open reads a mapping file.
func Open(path string) (*Mapping, error) {
	var m Mapping
	if err := decode.File(path, schema, &m); err != nil {
		return nil, err
	}
	return &m, nil
}

// ParseMapping reads a mapping from the bytes of a file; name is shown in errors.
func ParseMapping(name string, data []byte) (*Mapping, error) {
	var m Mapping
	if err := decode.Bytes(name, data, schema, &m); err != nil {
		return nil, err
	}
	return &m, m.validate()
}

// units are the nanoseconds of each unit of time; those of cycles follow from the clock.
var units = map[string]float64{"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}

// unitCycles is the unit of time that needs a clock.
const unitCycles = "cycles"

// maxClock bounds a stated clock, MHz.
const maxClock = 1e6

// scale returns the nanoseconds of the mapping's unit of time.
func (m *Mapping) scale() (float64, error) {
	if m.TimeUnit == unitCycles {
		if !(m.ClockMHz > 0 && m.ClockMHz <= maxClock) {
			return 0, usage("times are in cycles, and the clock is %v MHz, want a number in 0..%g", m.ClockMHz,
				float64(maxClock)).
				WithHint("say at which clock the processor runs: --clock-mhz 1000")
		}
		return 1e3 / m.ClockMHz, nil
	}
	if m.ClockMHz != 0 {
		return 0, usage("a clock of %v MHz for times in %q: only cycles need one", m.ClockMHz, m.TimeUnit).
			WithHint("--time-unit cycles")
	}
	ns, ok := units[m.TimeUnit]
	if !ok {
		return 0, usage("unit of time %q, want ns, us, ms, s or cycles", clip(m.TimeUnit)).
			WithHint("say it with --time-unit")
	}
	return ns, nil
}

// separator returns the rune between cells.
func (m *Mapping) separator() (rune, error) {
	if m.Separator == "" {
		return ',', nil
	}
	r, size := utf8.DecodeRuneInString(m.Separator)
	if size != len(m.Separator) || strings.ContainsRune("\"\r\n\x00\ufffd\ufeff", r) {
		return 0, usage("separator %q, want one character such as ; or a tab", clip(m.Separator))
	}
	return r, nil
}

// validate reports errors that do not depend on the table.
func (m *Mapping) validate() error {
	known := fields()
	for _, x := range []struct {
		what string
		has  []string
	}{{"column", keys(m.Columns)}, {"set", keys(m.Set)}, {"value", keys(m.Values)}} {
		for _, name := range x.has {
			if !slices.Contains(known, name) {
				return usage("--%s %s: no such field", x.what, clip(name)).WithHint("%s", diag.DidYouMean(name, known))
			}
		}
	}
	for _, name := range keys(m.Set) {
		if _, both := m.Columns[name]; both {
			return usage("field %q has a column and one value for all rows, want one of them", name)
		}
	}
	for _, name := range keys(m.Values) {
		if _, ok := m.Columns[name]; !ok {
			return usage("values of field %q are translated, and no column is its own", name).
				WithHint("--column %s=COLUMN", name)
		}
	}
	if m.Columns[fieldTime] == "" {
		return usage("no column has the times").WithHint("--column time=COLUMN")
	}
	if m.Repeats != "" && m.Repeats != Refuse && m.Repeats != Samples {
		return usage("repeats %q, want %s or %s", clip(m.Repeats), Refuse, Samples)
	}
	return nil
}

// fields lists what a column can mean, ascending.
func fields() []string {
	out := append([]string{fieldTime, fieldProc, fieldCold, fieldHeldOut}, opNames...)
	slices.Sort(out)
	return out
}

// opFields maps the JSON name of each field of op.Op to its index, so that a new field can be
// imported without code here.
var opFields = func() map[string]int {
	out := map[string]int{}
	t := reflect.TypeFor[op.Op]()
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		out[name] = i
	}
	return out
}()

// opNames are the names of these fields, ascending.
var opNames = keys(opFields)

// assign parses a cell into a field of an operator. An empty cell leaves the field at zero.
func assign(o *op.Op, field, cell string) error {
	if cell == "" {
		return nil
	}
	v := reflect.ValueOf(o).Elem().Field(opFields[field])
	switch v.Kind() {
	case reflect.Int:
		n, err := whole(cell)
		if err != nil {
			return err
		}
		v.SetInt(n)
	case reflect.Float64:
		x, err := strconv.ParseFloat(cell, 64)
		if err != nil {
			return input("%q is no number", clip(cell))
		}
		v.SetFloat(x)
	case reflect.Bool:
		b, err := truth(cell)
		if err != nil {
			return err
		}
		v.SetBool(b)
	default:
		v.SetString(cell)
	}
	return nil
}

// whole parses a whole number. It accepts 64.0 for 64, because tables written from floating point
// have that.
func whole(cell string) (int64, error) {
	text := cell
	if head, tail, ok := strings.Cut(cell, "."); ok && strings.Trim(tail, "0") == "" {
		text = head
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0, input("%q is no whole number in %d..%d", clip(cell), -1<<31, 1<<31-1)
	}
	return n, nil
}

// truth reads a cell that says yes or no.
func truth(cell string) (bool, error) {
	switch strings.ToLower(cell) {
	case "true", "yes", "1", "1.0":
		return true, nil
	case "false", "no", "0", "0.0", "":
		return false, nil
	}
	return false, input("%q is neither true nor false", clip(cell))
}

// keys returns the keys of a map, sorted for messages.
func keys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// usage returns an error of the flags or the mapping.
func usage(format string, args ...any) *diag.Diagnostic {
	return diag.New(diag.ClassUsage, "import: "+format, args...)
}

// input returns an error of the table itself.
func input(format string, args ...any) *diag.Diagnostic {
	return diag.New(diag.ClassInput, format, args...)
}

// clip shortens what an error quotes from a table.
func clip(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:80], "") + "..."
	}
	return s
}
