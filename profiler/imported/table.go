package imported

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
)

// Bounds of a table, far above any sweep.
const (
	maxBytes    = 64 << 20
	maxRows     = 1 << 16 // that count
	maxColumns  = 1 << 10
	maxMistakes = 20      // that are reported
	maxNS       = 1 << 53 // of a time, as in costs
	maxName     = 200     // bytes of a processor's name
)

// Row is what a table says about one operator; several lines about it are one row.
type Row struct {
	Line int // in the file, of the first row about it
	// name of the processor
	Proc string
	Op   op.Op
	// weights were in no cache
	Cold    bool
	HeldOut bool
	Samples []float64 // ns; none where the operator was refused
	Refused string    // why there is no such operator
}

// key identifies processor, operator and coldness; rows with equal keys measure the same thing.
func (r *Row) key() string {
	m := record.Measurement{Kind: record.Op, Proc: r.Proc, Op: &r.Op, Cold: r.Cold}
	return m.Key()
}

// Table is the rows of a file that count, in the order of the file.
type Table struct {
	File     string // its name without directories
	Digest   string // hex SHA-256 of the file
	Rows     []Row
	Columns  map[string]string // of fields, also those found by their name
	Filtered int               // rows that Where leaves out
	Repeated int               // rows that repeat another one about the same operator
}

// Read reads the table at path.
func Read(path string, m *Mapping) (*Table, error) {
	f, err := wholefile.Open(path)
	if err != nil {
		return nil, diag.New(diag.ClassOf(err), "import: %w", err)
	}
	defer f.Close()
	return readTable(path, f, m)
}

// readTable reads a table of comma-separated values (RFC 4180) with the names of columns in its first
// line. name is shown in errors. At most 20 mistakes are reported, each with its line.
func readTable(name string, r io.Reader, m *Mapping) (*Table, error) {
	if err := m.validate(); err != nil {
		return nil, err
	}
	scale, err := m.scale()
	if err != nil {
		return nil, err
	}
	separator, err := m.separator()
	if err != nil {
		return nil, err
	}
	in := &counted{r: r, sum: sha256.New()}
	body := bufio.NewReader(in)
	if start, err := body.Peek(3); err == nil && bytes.Equal(start, []byte("\ufeff")) {
		_, _ = body.Discard(3) // a mark of byte order, which is no part of the first column's name
	}
	p := &parser{m: m, name: name, scale: scale, in: in, lines: csv.NewReader(body), at: map[string]int{}}
	p.lines.Comma, p.lines.ReuseRecord = separator, true
	p.t = &Table{File: filepath.Base(name), Columns: map[string]string{}}
	if err := p.header(); err != nil {
		return nil, err
	}
	if err := p.body(); err != nil {
		return nil, err
	}
	p.t.Digest = hex.EncodeToString(in.sum.Sum(nil))
	return p.t, nil
}

// counted limits a reader to maxBytes and hashes what it reads.
type counted struct {
	r   io.Reader
	n   int64
	sum hash.Hash
}

// errLarge is what reading a file of more than maxBytes returns.
var errLarge = fmt.Errorf("more than %d MiB", maxBytes>>20)

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	c.sum.Write(p[:n])
	if c.n > maxBytes {
		return 0, errLarge
	}
	return n, err
}

// parser is the state of Parse: what the mapping and the header say, and what the rows so far have
// told.
type parser struct {
	m     *Mapping
	name  string
	scale float64
	in    *counted
	lines *csv.Reader
	t     *Table

	columns  []string       // names, in the order of the file
	mapped   map[string]int // field to column
	where    []condition
	refused  []condition
	at       map[string]int // key of a row to its place in t.Rows
	cells    [][]string     // of these rows, to say how another one differs
	differ   int            // rows that say otherwise than an earlier one
	mistakes diag.List
	seen     map[string]bool // values of the column that left out the most
}

// condition is a column with values.
type condition struct {
	column int
	name   string
	values []string
}

// fail adds the place, a line of the table, to an error about it.
func (p *parser) fail(line int, err error) *diag.Diagnostic {
	var d *diag.Diagnostic
	if !errors.As(err, &d) {
		d = input("%w", err)
	}
	return d.WithCode("import.row").At("%s:%d", p.name, line)
}

// next reads the cells of a line, and its number. The cells are valid until the next call.
func (p *parser) next() ([]string, int, error) {
	cells, err := p.lines.Read()
	if err == nil {
		line, _ := p.lines.FieldPos(0)
		return cells, line, nil
	}
	var syntax *csv.ParseError
	switch {
	case errors.Is(err, io.EOF):
		return nil, 0, err
	case errors.Is(err, errLarge):
		return nil, 0, diag.New(diag.ClassInput, "import %q: %w", p.name, errLarge).
			WithHint("cut the table into files, or leave out columns")
	case errors.Is(err, csv.ErrFieldCount):
		return nil, 0, p.fail(syntaxLine(err), input("%d cells, want %d as in the first line", len(cells),
			len(p.columns))).
			WithHint("is a cell with a comma in quotes?")
	case errors.As(err, &syntax):
		return nil, 0, p.fail(syntax.Line, input("%w", syntax.Err))
	}
	return nil, 0, diag.New(diag.ClassIO, "read %q: %w", p.name, err)
}

// syntaxLine returns the line of an error of package csv, 0 where it names none.
func syntaxLine(err error) int {
	if syntax, ok := errors.AsType[*csv.ParseError](err); ok {
		return syntax.Line
	}
	return 0
}

// header reads the names of columns and finds those that the mapping names.
func (p *parser) header() error {
	cells, line, err := p.next()
	if errors.Is(err, io.EOF) {
		return input("import %q: the file is empty, want names of columns in its first line", p.name).
			WithCode("import.header")
	}
	if err != nil {
		return err
	}
	if len(cells) > maxColumns {
		return p.fail(line, input("%d columns, want at most %d", len(cells), maxColumns))
	}
	for i, name := range cells {
		if !utf8.ValidString(name) {
			return p.fail(line, input("the name of column %d is not UTF-8", i+1)).WithHint("save the table as UTF-8")
		}
		p.columns = append(p.columns, strings.Clone(strings.TrimSpace(name)))
	}
	// a single column that contains a usual separator is almost always a wrong separator
	if len(p.columns) == 1 {
		for _, other := range []string{";", "\t", "|", ","} {
			if strings.Contains(p.columns[0], other) {
				return p.fail(line, input("one column, %q", clip(p.columns[0]))).
					WithHint("is the separator another one? --separator %q", other)
			}
		}
	}
	p.mapped = map[string]int{}
	for _, field := range keys(p.m.Columns) {
		i, err := p.find(p.m.Columns[field])
		if err != nil {
			return err
		}
		p.mapped[field], p.t.Columns[field] = i, p.columns[i]
	}
	for _, field := range []string{"m", "k", "n"} {
		if err := p.findSize(field); err != nil {
			return err
		}
	}
	if p.where, err = p.conditions(p.m.Where); err != nil {
		return err
	}
	p.refused, err = p.conditions(p.m.Infeasible)
	return err
}

// findSize maps a size that the mapping does not name to the column of its name, in either case.
func (p *parser) findSize(field string) error {
	_, mapped := p.mapped[field]
	_, set := p.m.Set[field]
	if mapped || set {
		return nil
	}
	named := func(column string) bool { return strings.EqualFold(column, field) }
	i := slices.IndexFunc(p.columns, named)
	if i < 0 {
		return nil
	}
	if other := slices.IndexFunc(p.columns[i+1:], named); other >= 0 {
		return input("import %q: columns %q and %q may both be %s, want one of them", p.name, p.columns[i],
			p.columns[i+1+other], field).
			WithCode("import.column").WithHint("--column %s=COLUMN says which one", field)
	}
	p.mapped[field], p.t.Columns[field] = i, p.columns[i]
	return nil
}

// conditions resolves column names, in ascending order of names.
func (p *parser) conditions(from map[string][]string) (out []condition, err error) {
	for _, name := range keys(from) {
		i, err := p.find(name)
		if err != nil {
			return nil, err
		}
		out = append(out, condition{i, p.columns[i], from[name]})
	}
	return out, nil
}

// find returns the column of that name.
func (p *parser) find(name string) (int, error) {
	i := slices.Index(p.columns, name)
	if i < 0 {
		return 0, input("import %q: no column %q", p.name, clip(name)).
			WithCode("import.column").WithHint("%s", diag.DidYouMean(name, p.columns))
	}
	if slices.Contains(p.columns[i+1:], name) {
		return 0, input("import %q: two columns are called %q", p.name, clip(name)).
			WithCode("import.column").WithHint("rename one of them")
	}
	return i, nil
}

// body reads the rows.
func (p *parser) body() error {
	for {
		cells, line, err := p.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return errors.Join(p.mistakes.Err(), err)
		}
		if err := p.row(cells, line); err != nil {
			p.mistakes = append(p.mistakes, p.fail(line, err))
			if len(p.mistakes) >= maxMistakes {
				break
			}
		}
		if len(p.t.Rows) > maxRows {
			return p.fail(line, input("more than %d operators", maxRows))
		}
	}
	if len(p.mistakes) > 0 {
		return p.mistakes.Err()
	}
	if len(p.t.Rows) == 0 {
		return p.none()
	}
	return nil
}

// none returns the error for a table of which no row counts; it suggests values of the first --where
// column.
func (p *parser) none() error {
	e := input("import %q: no row counts, %d were left out by --where", p.name, p.t.Filtered).WithCode("import.empty")
	if len(p.where) > 0 && p.seen != nil {
		c := p.where[0]
		values := keys(p.seen)
		e = e.WithHint("column %q: %s", c.name, diag.DidYouMean(c.values[0], values))
	}
	return e
}

// row interprets one line: filter, operator, refusal or time.
func (p *parser) row(cells []string, line int) error {
	if !p.kept(cells) {
		p.t.Filtered++
		return nil
	}
	r := Row{Line: line}
	if err := p.operator(&r, cells); err != nil {
		return err
	}
	for _, c := range p.refused {
		if slices.Contains(c.values, strings.TrimSpace(cells[c.column])) {
			r.Refused = fmt.Sprintf("line %d of %s has %q in column %q", line, clip(p.t.File),
				clip(strings.ToValidUTF8(cells[c.column], "")), clip(c.name))
			return p.add(r, cells)
		}
	}
	cell, _, err := p.cell(fieldTime, cells)
	if err != nil {
		return err
	}
	ns, err := p.time(cell)
	if err != nil {
		return err
	}
	r.Samples = []float64{ns}
	return p.add(r, cells)
}

// kept reports whether a row passes every condition. For the hint of none it collects the values
// that the first condition rejects.
func (p *parser) kept(cells []string) bool {
	const mostShown = 100

	for i, c := range p.where {
		value := strings.TrimSpace(cells[c.column])
		if slices.Contains(c.values, value) {
			continue
		}
		if i == 0 && len(p.seen) < mostShown {
			if p.seen == nil {
				p.seen = map[string]bool{}
			}
			p.seen[strings.ToValidUTF8(clip(strings.Clone(value)), "")] = true
		}
		return false
	}
	return true
}

// cell returns a row's value of a field, translated where the mapping says so; false where neither
// a column nor Set has it.
func (p *parser) cell(field string, cells []string) (string, bool, error) {
	if v, ok := p.m.Set[field]; ok {
		return v, true, nil
	}
	i, ok := p.mapped[field]
	if !ok {
		return "", false, nil
	}
	v := strings.TrimSpace(cells[i])
	if !utf8.ValidString(v) {
		return "", false, input("column %q is not UTF-8", clip(p.columns[i]))
	}
	if table, ok := p.m.Values[field]; ok {
		to, ok := table[v]
		if !ok {
			return "", false, input("column %q has %q, which has no value of %s", clip(p.columns[i]), clip(v), field).
				WithHint("--value %s:%s=VALUE translates it, --where leaves rows out", field, clip(v))
		}
		v = to
	}
	return strings.Clone(v), true, nil
}

// operator reads processor, operator and marks of a row. Without a word about them, the processor
// is npu and the operator a product.
func (p *parser) operator(r *Row, cells []string) error {
	r.Proc, r.Op.Kind = "npu", op.MatMul
	for _, field := range opNames {
		v, ok, err := p.cell(field, cells)
		if err == nil && ok {
			err = assign(&r.Op, field, v)
		}
		if err != nil {
			return input("%s: %w", field, err)
		}
	}
	proc, ok, err := p.cell(fieldProc, cells)
	if err != nil {
		return err
	}
	if ok {
		r.Proc = proc
	}
	if r.Proc == "" || len(r.Proc) > maxName {
		return input("processor %q, want a name of at most %d bytes", clip(r.Proc), maxName)
	}
	if r.Cold, err = p.flag(fieldCold, cells); err != nil {
		return err
	}
	if r.HeldOut, err = p.flag(fieldHeldOut, cells); err != nil {
		return err
	}
	if r.Op.Scheme == "" && r.Op.HasScheme() {
		return input("a %s without a scheme", r.Op.Kind).
			WithHint("--set scheme=a8t/q8c for all rows, or --column scheme=COLUMN")
	}
	return r.Op.Validate()
}

// flag reads a field that is true or false; absent means false.
func (p *parser) flag(field string, cells []string) (bool, error) {
	v, _, err := p.cell(field, cells)
	if err != nil {
		return false, err
	}
	yes, err := truth(v)
	if err != nil {
		return false, input("%s: %w", field, err)
	}
	return yes, nil
}

// time reads a time in nanoseconds.
func (p *parser) time(cell string) (float64, error) {
	if cell == "" {
		return 0, input("time is empty").
			WithHint("a row whose operator could not be compiled is marked by --infeasible COLUMN=VALUE")
	}
	x, err := strconv.ParseFloat(cell, 64)
	if err != nil {
		return 0, input("time %q is no number", clip(cell))
	}
	ns := x * p.scale
	switch {
	case math.IsNaN(x) || math.IsInf(x, 0) || x <= 0:
		return 0, input("time is %v, want a finite number above 0", x).
			WithHint("a row whose operator could not be compiled is marked by --infeasible COLUMN=VALUE")
	case ns < 1 || ns > maxNS:
		return 0, input("time is %v %s, which is %.3g ns, want 1..%g", x, p.m.TimeUnit, ns, float64(maxNS)).
			WithHint("is the unit right? --time-unit, --clock-mhz")
	}
	return ns, nil
}

// add appends a row, or joins it to an earlier one about the same operator. Rows that contradict
// each other are an error; with Repeats = samples, different times are samples of one operator.
func (p *parser) add(r Row, cells []string) error {
	key := r.key()
	i, again := p.at[key]
	if !again {
		p.at[key] = len(p.t.Rows)
		p.t.Rows = append(p.t.Rows, r)
		p.cells = append(p.cells, strings.Split(strings.Join(cells, "\x00"), "\x00")) // cells are reused
		return nil
	}
	old := &p.t.Rows[i]
	p.t.Repeated++
	switch {
	case (old.Refused == "") != (r.Refused == ""):
		return input("%s has a time in one of the lines %d and %d, and was refused in the other", r.Op.Key(), old.Line,
			r.Line).
			WithHint("keep one of them by --where")
	case old.HeldOut != r.HeldOut:
		return input("%s is held out in one of the lines %d and %d only", r.Op.Key(), old.Line, r.Line)
	case r.Refused != "":
		return nil
	case p.m.Repeats == Samples:
		old.Samples = append(old.Samples, r.Samples...)
		return nil
	case old.Samples[0] == r.Samples[0]:
		return nil
	}
	if p.differ++; p.differ > 1 {
		return nil // the first says enough
	}
	e := input("%s took %.6g ns in line %d and %.6g ns here", r.Op.Key(), old.Samples[0], old.Line, r.Samples[0])
	if columns := p.apart(p.cells[i], cells); len(columns) > 0 {
		return e.WithHint("the lines differ in %s: keep one by --where, or map the column; if they are samples of "+
			"one thing, --repeats samples", strings.Join(columns, ", "))
	}
	return e.WithHint("if they are samples of one thing, --repeats samples")
}

// apart lists the quoted names of the columns in which two rows differ, without that of the times.
func (p *parser) apart(a, b []string) (out []string) {
	for i := range a {
		if i < len(b) && a[i] != b[i] && i != p.mapped[fieldTime] {
			out = append(out, strconv.Quote(clip(p.columns[i])))
		}
	}
	return out
}
