package imported

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/socs"
)

// plain is a mapping of a table with the columns M, K, N and us.
func plain() *Mapping {
	return &Mapping{Columns: map[string]string{"time": "us"}, Set: map[string]string{"scheme": "a8t/q8c"}, TimeUnit: "us", Source: "a test"}
}

func parse(text string, m *Mapping) (*Table, error) {
	return readTable("t.csv", strings.NewReader(text), m)
}

func TestParse(t *testing.T) {
	full := &Mapping{
		Columns:    map[string]string{"time": "time", "kind": "what", "scheme": "what", "proc": "where", "held_out": "judge", "n": "cols"},
		Values:     map[string]map[string]string{"kind": {"fc": "matmul", "norm": "norm"}, "scheme": {"fc": "a8t/q4b32", "norm": ""}},
		Where:      map[string][]string{"target": {"a", "b"}},
		Infeasible: map[string][]string{"time": {"", "OOM"}},
		TimeUnit:   "cycles", ClockMHz: 500, Separator: ";", Source: "a test",
	}
	// A mark of byte order, line ends of Windows, quotes, blanks, floating point sizes, and a row of another target.
	text := "\ufefftarget;what;where;M;K;cols;time;judge;note\r\n" +
		"a;fc;npu;16;64;32;1000;false;\"with ; and \"\"quotes\"\"\"\r\n" +
		" b ;fc;npu;32.0;64;32; 2000 ;true;\r\n" +
		"c;fc;npu;x;y;z;-1;false;\r\n" +
		"a;norm;gpu;8;;64;10;no;\"two\r\nlines\"\r\n" +
		"a;fc;npu;64;64;32;OOM;false;\r\n" +
		"a;fc;npu;16;64;32;1000;0;\r\n"
	got, err := parse(text, full)
	if err != nil {
		t.Fatal(err)
	}
	want := []Row{
		{Line: 2, Proc: "npu", Op: op.Op{Kind: op.MatMul, M: 16, K: 64, N: 32, Scheme: op.A8TQ4B32}, Samples: []float64{2000}},
		{Line: 3, Proc: "npu", Op: op.Op{Kind: op.MatMul, M: 32, K: 64, N: 32, Scheme: op.A8TQ4B32}, HeldOut: true, Samples: []float64{4000}},
		{Line: 5, Proc: "gpu", Op: op.Op{Kind: op.Norm, M: 8, N: 64}, Samples: []float64{20}},
		{Line: 7, Proc: "npu", Op: op.Op{Kind: op.MatMul, M: 64, K: 64, N: 32, Scheme: op.A8TQ4B32}, Refused: `line 7 of t.csv has "OOM" in column "time"`},
	}
	if fmt.Sprint(got.Rows) != fmt.Sprint(want) || got.Filtered != 1 || got.Repeated != 1 || got.Columns["k"] != "K" || len(got.Digest) != 64 {
		t.Errorf("got  %+v\nwant %+v\n%+v", got.Rows, want, got)
	}
}

func TestUnits(t *testing.T) {
	for unit, want := range map[string]float64{"ns": 5, "us": 5e3, "ms": 5e6, "s": 5e9, "cycles": 5e3 / 250} {
		m := plain()
		if m.TimeUnit = unit; unit == unitCycles {
			m.ClockMHz = 250
		}
		got, err := parse("M,K,N,us\n1,2,3,5\n", m)
		if err != nil || math.Abs(got.Rows[0].Samples[0]-want) > 1e-9 {
			t.Errorf("%s: %+v, %v, want %v ns", unit, got, err, want)
		}
	}
}

// Every odd input is an error that says where it is and what to do.
func TestMistakes(t *testing.T) {
	with := func(change func(m *Mapping)) *Mapping {
		m := plain()
		change(m)
		return m
	}
	for _, c := range []struct {
		name, text string
		m          *Mapping
		want       string
	}{
		{"ragged", "M,K,N,us\n1,2,3,4\n1,2,3\n", plain(), "t.csv:3: import.row: 3 cells, want 4"},
		{"unclosed quote", "M,K,N,us\n1,2,3,\"4\n", plain(), "t.csv:2"},
		{"stray quote", "M,K,N,us\n1,2,3\"x,4\n", plain(), "t.csv:2"},
		{"NaN", "M,K,N,us\n1,2,3,nan\n", plain(), "t.csv:2: import.row: time is NaN, want a finite number above 0"},
		{"infinite", "M,K,N,us\n1,2,3,+Inf\n", plain(), "t.csv:2: import.row: time is +Inf"},
		{"negative", "M,K,N,us\n1,2,3,-4\n", plain(), "t.csv:2: import.row: time is -4"},
		{"zero", "M,K,N,us\n1,2,3,0\n", plain(), "t.csv:2: import.row: time is 0"},
		{"empty time", "M,K,N,us\n1,2,3,\n", plain(), "t.csv:2: import.row: time is empty"},
		{"no number", "M,K,N,us\n1,2,3,fast\n", plain(), `t.csv:2: import.row: time "fast" is no number`},
		{"tiny", "M,K,N,us\n1,2,3,1e-9\n", plain(), "want 1..9.007"},
		{"huge", "M,K,N,us\n1,2,3,1e300\n", plain(), "want 1..9.007"},
		{"no rows count", "M,K,N,us\n", plain(), "no row counts"},
		{"no size", "M,K,N,us\n0,2,3,4\n", plain(), "t.csv:2: import.row: operator \"matmul\": m = 0"},
		{"fraction", "M,K,N,us\n1.5,2,3,4\n", plain(), `t.csv:2: import.row: m: "1.5" is no whole number`},
		{"large size", "M,K,N,us\n99999999999,2,3,4\n", plain(), "is no whole number"},
		{"empty", "", plain(), "the file is empty"},
		{"another encoding", "\xff\xfeM\x00,\x00", plain(), "t.csv:1: import.row: the name of column 1 is not UTF-8"},
		{"separator", "M;K;N;us\n1;2;3;4\n", plain(), `--separator ";"`},
		{"unknown column", "M,K,N,time_us\n1,2,3,4\n", with(func(m *Mapping) { m.Columns["time"] = "time_su" }), `did you mean "time_us"?`},
		{"two columns of a name", "M,K,N,us,us\n1,2,3,4,5\n", plain(), `two columns are called "us"`},
		{"two columns of a size", "M,m,K,N,us\n1,9,2,3,4\n", plain(), `columns "M" and "m" may both be m, want one of them`},
		{"which is the size", "M,K,N,n,us\n1,2,3,9,4\n", plain(), "--column n=COLUMN says which one"},
		{"unknown field", "", with(func(m *Mapping) { m.Columns["tiem"] = "us" }), `did you mean "time"?`},
		{"unknown filter", "M,K,N,us\n1,2,3,4\n", with(func(m *Mapping) { m.Where = map[string][]string{"u": {"4"}} }), `no column "u"`},
		{"nothing passes", "M,K,N,us,t\n1,2,3,4,npu-a\n", with(func(m *Mapping) { m.Where = map[string][]string{"t": {"npua"}} }), `did you mean "npu-a"?`},
		{"no times", "", with(func(m *Mapping) { delete(m.Columns, "time") }), "--column time=COLUMN"},
		{"no unit", "", with(func(m *Mapping) { m.TimeUnit = "" }), "--time-unit"},
		{"no clock", "", with(func(m *Mapping) { m.TimeUnit = "cycles" }), "--clock-mhz"},
		{"clock of us", "", with(func(m *Mapping) { m.ClockMHz = 5 }), "only cycles need one"},
		{"no scheme", "M,K,N,us\n1,2,3,4\n", with(func(m *Mapping) { m.Set = nil }), "--set scheme=a8t/q8c"},
		{"unknown scheme", "M,K,N,us\n1,2,3,4\n", with(func(m *Mapping) { m.Set["scheme"] = "int8" }), "int8"},
		{"field twice", "", with(func(m *Mapping) { m.Set["m"] = "1"; m.Columns["m"] = "M" }), "want one of them"},
		{"untranslated", "M,K,N,us,op\n1,2,3,4,fc\n", with(func(m *Mapping) {
			m.Columns["kind"] = "op"
			m.Values = map[string]map[string]string{"kind": {"conv": "matmul"}}
		}), `t.csv:2: import.row: kind: column "op" has "fc", which has no value of kind`},
		{"bad separator", "", with(func(m *Mapping) { m.Separator = "\"" }), "want one character"},
		{"two times", "M,K,N,us,mode\n1,2,3,4,a\n1,2,3,5,b\n", plain(), `t.csv:3: import.row: matmul[1,2]x[2,3] a8t/q8c took 4000 ns in line 2 and 5000 ns here`},
		{"which column", "M,K,N,us,mode\n1,2,3,4,a\n1,2,3,5,b\n", plain(), `the lines differ in "mode"`},
		{"refused and timed", "M,K,N,us,s\n1,2,3,4,ok\n1,2,3,4,bad\n", with(func(m *Mapping) { m.Infeasible = map[string][]string{"s": {"bad"}} }), "was refused in the other"},
		{"held out and not", "M,K,N,us,h\n1,2,3,4,1\n1,2,3,4,0\n", with(func(m *Mapping) { m.Columns["held_out"] = "h" }), "is held out in one of the lines 2 and 3 only"},
		{"neither true nor false", "M,K,N,us,h\n1,2,3,4,maybe\n", with(func(m *Mapping) { m.Columns["held_out"] = "h" }), `held_out: "maybe" is neither true nor false`},
		{"no UTF-8", "M,K,N,us\n1,2,\xff,4\n", plain(), "is not UTF-8"},
	} {
		_, err := parse(c.text, c.m)
		text := fmt.Sprint(err, diag.HintsOf(err))
		for _, e := range diag.All(err) {
			text += fmt.Sprint(e, diag.HintsOf(e))
		}
		if err == nil || !strings.Contains(text, c.want) {
			t.Errorf("%s: got %s\nwant %q", c.name, text, c.want)
		}
		if class := diag.ClassOf(err); err != nil && class != diag.ClassInput && class != diag.ClassUsage {
			t.Errorf("%s: class %v", c.name, class)
		}
	}
}

// Many mistakes are reported together, each once, and not without end.
func TestManyMistakes(t *testing.T) {
	for _, row := range []string{"1,2,3,nan\n", "x,2,3,4\n"} {
		for rows, want := range map[int]int{1: 1, 1000: maxMistakes} {
			_, err := parse("M,K,N,us\n"+strings.Repeat(row, rows), plain())
			if got := strings.Count(fmt.Sprint(err), "\n") + 1; got != want {
				t.Errorf("%d rows %q: %d mistakes reported, want %d:\n%v", rows, row, got, want, err)
			}
		}
	}
}

func TestLargeFiles(t *testing.T) {
	line := strings.Repeat("x", 1<<20) + "\n"
	_, err := readTable("t.csv", &repeated{head: "M,K,N,us,note\n", line: "1,2,3,4," + line}, plain())
	if err == nil || !strings.Contains(err.Error(), "more than 64 MiB") {
		t.Errorf("got %v", err)
	}
	_, err = readTable("t.csv", &repeated{head: "M,K,N,us,note\n", line: "1,2,3,4,\"" + line}, plain()) // one cell without an end
	if err == nil {
		t.Error("a cell without an end was read")
	}
}

// repeated is a line without end.
type repeated struct{ head, line string }

func (r *repeated) Read(p []byte) (int, error) {
	if r.head == "" {
		r.head = r.line
	}
	n := copy(p, r.head)
	r.head = r.head[n:]
	return n, nil
}

func TestRepeats(t *testing.T) {
	m := plain()
	m.Repeats = Samples
	got, err := parse("M,K,N,us\n1,2,3,4\n5,2,3,4\n1,2,3,6\n", m)
	if err != nil || len(got.Rows) != 2 || !slices.Equal(got.Rows[0].Samples, []float64{4000, 6000}) || got.Repeated != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// The sweep in testdata, read as docs/import.md does.
func sweep(t *testing.T) *Table {
	t.Helper()
	m := &Mapping{Columns: map[string]string{"time": "cycles"}, Set: map[string]string{"scheme": "a8t/q8c"}, Where: map[string][]string{"target": {"ethos-u85-256"}},
		TimeUnit: "cycles", ClockMHz: 1000, Source: "Arm Vela 5.2.0"}
	got, err := Read("../../testdata/sweeps/npu-vela.csv", m)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// Corners of the sizes are never held out, the share is kept, and the same seed gives the same rows.
func TestHoldOut(t *testing.T) {
	got, again, other := sweep(t), sweep(t), sweep(t)
	held := got.HoldOut(0.85, 1)
	again.HoldOut(0.85, 1)
	other.HoldOut(0.85, 2)
	if want := int(math.Round(0.85 * float64(len(got.Rows)))); max(held-want, want-held) > 1 {
		t.Errorf("%d of %d held out, want %d", held, len(got.Rows), want)
	}
	same := true
	least, most := math.MaxInt, 0
	for i := range got.Rows {
		if got.Rows[i].HeldOut != again.Rows[i].HeldOut {
			t.Fatalf("row %d: two runs differ", i)
		}
		same = same && got.Rows[i].HeldOut == other.Rows[i].HeldOut
		least, most = min(least, got.Rows[i].Op.M), max(most, got.Rows[i].Op.M)
	}
	if same {
		t.Error("two seeds hold out the same")
	}
	for i := range got.Rows {
		if o := got.Rows[i].Op; (o.M == least || o.M == most) && o.K == 1024 && o.N == 1024 && got.Rows[i].HeldOut {
			t.Errorf("%s is held out, and is an end of the sweep", o.Key())
		}
	}
}

func TestRecord(t *testing.T) {
	m := plain()
	m.Columns["proc"], m.Infeasible = "proc", map[string][]string{"us": {"failed"}}
	table, err := parse("proc,M,K,N,us\nnpu,1,64,32,4\nnpu,2,64,32,failed\ndsp,1,64,32,5\n", m)
	if err != nil {
		t.Fatal(err)
	}
	soc, err := table.SoC(Description{Name: "two", Kind: socs.KindNPU, Tile: capability.Tile{M: 1, K: 32, N: 16}, LaunchUS: 3, Source: m.Source})
	if err != nil {
		t.Fatal(err)
	}
	if len(soc.Processors) != 2 || !soc.Imported() || soc.Simulated() || soc.Control != "npu" || soc.Processor("dsp").Kind != socs.KindNPU ||
		!slices.Equal(soc.Processor("npu").Schemes, []op.Scheme{op.A8TQ8C}) || !slices.Equal(soc.Processor("npu").Kinds, []op.Kind{op.MatMul}) {
		t.Errorf("%+v", soc)
	}
	for _, x := range soc.Numbers() {
		if want := "assumed"; x.Kind != want || x.Text != "given to hetc import" {
			t.Errorf("%s = %s has source %s: %s, want %s", x.Path, x.Value, x.Kind, x.Text, want)
		}
	}
	set, err := table.Record(soc, m.Source, "0.0.0", 1)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "rec.jsonl")
	if err := record.Write(path, set); err != nil {
		t.Fatal(err)
	}
	back, err := record.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if back.Len() != 2 || len(back.Facts()) != 1 || len(back.Header.Imported) != 1 || back.Header.Imported[0].SHA256 != table.Digest {
		t.Errorf("%+v", back.Header)
	}
	if err := back.Header.Compatible(&set.Header); err != nil {
		t.Error(err)
	}
	other, err := socs.Open("snapdragon-8gen3")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Record(other, m.Source, "0.0.0", 1); err == nil || !strings.Contains(err.Error(), `line 4 is about processor "dsp"`) {
		t.Errorf("a processor that the SoC lacks: %v", err)
	}
}

// FuzzParse: whatever the table and the mapping say, there is a table that can be recorded, or an error with a class.
func FuzzParse(f *testing.F) {
	text, err := os.ReadFile("../../testdata/sweeps/npu-vela.csv")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text[:2000], "cycles", "target", "ethos-u85-256", ",")
	f.Add([]byte("\ufeffM;K;N;cycles;kind\r\n1;2;3;\"4\";norm\r\n"), "cycles", "kind", "norm", ";")
	f.Add([]byte("M,K,N,t\n1,2,3,nan\n1,2,3,4\n1,2,3,5\n"), "t", "M", "1", "")
	f.Fuzz(func(t *testing.T, text []byte, column, where, value, separator string) {
		m := &Mapping{Columns: map[string]string{"time": column}, Set: map[string]string{"scheme": "a8t/q8c"}, Where: map[string][]string{where: {value}},
			Infeasible: map[string][]string{column: {"failed"}}, TimeUnit: "us", Separator: separator, Source: "fuzz"}
		if where == "kind" {
			m.Columns["kind"] = where
		}
		table, err := readTable("fuzz.csv", strings.NewReader(string(text)), m)
		if err != nil {
			if diag.ClassOf(err) == diag.ClassInternal {
				t.Fatalf("no class: %v", err)
			}
			return
		}
		table.HoldOut(0.5, 1)
		soc, err := table.SoC(Description{Name: "fuzz", Kind: socs.KindNPU, Source: m.Source})
		if err != nil {
			return // such as a name of a processor
		}
		set, err := table.Record(soc, m.Source, "0.0.0", 1)
		if err != nil {
			t.Fatalf("a table that was read cannot be recorded: %v", err)
		}
		if set.Len()+len(set.Facts()) != len(table.Rows) {
			t.Fatalf("%d measurements and %d refusals of %d rows", set.Len(), len(set.Facts()), len(table.Rows))
		}
	})
}
