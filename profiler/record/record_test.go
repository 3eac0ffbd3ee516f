package record

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/filelock"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/op"
)

func header() Header {
	return Header{Schema: Schema, SoC: "here", SoCDigest: "d1", Fingerprint: "f1", Hetc: "0.1.0", Seed: 7,
		Environment: Environment{OS: "linux", Arch: "amd64", CPU: "cpu <x>", Features: []string{"avx2"}, FrequencyMHz: 2300, Kernels: "avx2/1", Drivers: map[string]string{"host": "1"}}}
}

func matmul(m int) *op.Op {
	return &op.Op{Kind: op.MatMul, M: m, K: 64, N: 96, Scheme: op.A8TQ8C}
}

func measurement(m int) *Measurement {
	return &Measurement{Kind: Op, Proc: "host:0", Op: matmul(m), Layout: "n32", Cold: true,
		Concurrent: []Partner{{Proc: "host:1", Op: matmul(1), Layout: "n32", Cold: true}},
		Unit:       "ns", First: 3000, Loops: 4, Samples: []float64{1000.25, 1001, 999}, Warnings: []string{FewSamples}}
}

func create(t *testing.T, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "r.jsonl")
	w, err := Create(path, header())
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= n; i++ {
		if err := w.Append(measurement(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWriteAndRead(t *testing.T) {
	s, err := Open(create(t, 3))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(s.Header, header()) || s.Len() != 3 || s.Truncated {
		t.Errorf("got %+v, %d measurements", s.Header, s.Len())
	}
	want := measurement(2)
	if got := s.Lookup(want.Key()); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if s.Lookup("x") != nil || s.Has("x") {
		t.Error("unknown key found")
	}
}

// glu is a gated linear unit of one row.
func glu(columns int) *op.Op {
	return &op.Op{Kind: op.GLU, M: 1, N: columns, Interleave: 16, Act: op.SiLU}
}

func TestKey(t *testing.T) {
	o := *matmul(1)
	for _, tt := range []struct {
		m    Measurement
		want string
	}{
		{*measurement(1), "op host:0 matmul[1,64]x[64,96] a8t/q8c n32 cold with host:1 matmul[1,64]x[64,96] a8t/q8c n32 cold"},
		{Measurement{Kind: Bandwidth, Proc: "a", Bytes: 4096, Concurrent: []Partner{{Proc: "b"}, {Proc: "c", Op: &o}}}, "bandwidth a 4096B with b, c matmul[1,64]x[64,96] a8t/q8c"},
		{Measurement{Kind: Sync, Proc: "a", To: "b"}, "sync a to b"},
		{Measurement{Kind: Op, Proc: "a", Op: &o, Cold: true, Footprint: 123}, "op a matmul[1,64]x[64,96] a8t/q8c cold/123"},
		{Measurement{Kind: Op, Proc: "a", Op: &o, GLU: glu(48), Cold: true}, "op a matmul[1,64]x[64,96] a8t/q8c cold ends with glu[1,48] silu"},
	} {
		if got := tt.m.Key(); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}

// TestEveryCut cuts the file at every byte: what remains is read up to the last whole line. For cuts
// in the last line and some before it, resuming and measuring again ends in the same file.
func TestEveryCut(t *testing.T) {
	require.Slow(t)
	syncFile = func(*os.File) error { return nil }
	defer func() { syncFile = (*os.File).Sync }()
	path := create(t, 3)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	full, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := full.Digest()
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(t.TempDir(), "cut.jsonl")
	for n := range len(whole) + 1 {
		if err := os.WriteFile(cut, whole[:n], 0o644); err != nil {
			t.Fatal(err)
		}
		lines := bytes.Count(whole[:n], []byte("\n"))
		s, err := Open(cut)
		if lines == 0 {
			if err == nil || diag.ClassOf(err) != diag.ClassInput {
				t.Fatalf("cut at %d: no header, got %v", n, err)
			}
		} else if err != nil {
			t.Fatalf("cut at %d: %v", n, err)
		} else if s.Len() != lines-1 || s.Truncated != (whole[n-1] != '\n') {
			t.Fatalf("cut at %d: %d measurements, truncated %v, want %d", n, s.Len(), s.Truncated, lines-1)
		}
		if lines < 3 && n%41 != 0 {
			continue
		}
		w, err := Resume(cut, header())
		if err != nil {
			t.Fatalf("cut at %d: resume: %v", n, err)
		}
		if got := w.Set().Len(); got != max(0, lines-1) {
			t.Fatalf("cut at %d: resumed with %d measurements, want %d", n, got, max(0, lines-1))
		}
		for i := 1; i <= 3; i++ {
			if m := measurement(i); !w.Set().Has(m.Key()) {
				if err := w.Append(m); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(cut)
		if err != nil || !bytes.Equal(got, whole) {
			t.Fatalf("cut at %d: resumed file differs:\n%s", n, got)
		}
		if s, err = Open(cut); err != nil {
			t.Fatal(err)
		}
		if d, _ := s.Digest(); d != want {
			t.Fatalf("cut at %d: digest %s, want %s", n, d, want)
		}
	}
}

func TestRefused(t *testing.T) {
	line := func(v any) string {
		b, err := encode(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	h := line(header())
	edit := func(f func(m *Measurement)) string {
		m := measurement(1)
		f(m)
		return line(m)
	}
	good := line(measurement(1))
	otherMachine, otherKernels, otherSoC, otherLibrary := header(), header(), header(), header()
	otherLibrary.Environment.Drivers = map[string]string{"host": "2"}
	otherMachine.Fingerprint, otherKernels.Environment.Kernels, otherSoC.SoCDigest = "f2", "portable/1", "d2"
	tests := []struct{ name, text, want string }{
		{"empty file", "", "r:1: record.syntax: record has no header line"},
		{"measurement first", good, `r:1: decode.schema: key "schema" is missing`},
		{"newer", strings.Replace(h, "record/1", "record/2", 1), `r:1: decode.schema: schema is "hetc.record/2"`},
		{"no fingerprint", strings.Replace(h, `"fingerprint":"f1",`, "", 1), `r:1: record.header: header: key "fingerprint" is missing`},
		{"no SoC", strings.Replace(h, `"soc":"here"`, `"soc":""`, 1), `r:1: record.header: header: key "soc" is missing`},
		{"unknown header key", strings.Replace(h, `"seed"`, `"sede"`, 1), `r:1: decode.unknown-key: unknown key "sede"`},
		{"empty line", h + "\n" + good, "r:2: record.syntax: line is not a JSON object"},
		{"damaged in the middle", h + good[:40] + "\n" + edit(func(m *Measurement) { m.Op.M = 2 }), "r:2: decode.syntax: not valid JSON"},
		{"NUL bytes", h + "\x00\x00\n", "r:2: record.syntax: line is not a JSON object"},
		{"same twice", h + good + good, `r:3: record.measurement: measurement "op host:0 matmul`},
		{"another machine joined", h + line(otherMachine), `r:2: record.mixed: records do not belong together: machine fingerprints "f1" and "f2"`},
		{"another kernel set joined", h + line(otherKernels), `r:2: record.mixed: records do not belong together: kernel sets "avx2/1" and "portable/1"`},
		{"another SoC joined", h + line(otherSoC), `r:2: record.mixed: records do not belong together: digests of SoC here "d1" and "d2"`},
		{"another library joined", h + line(otherLibrary), `r:2: record.mixed: records do not belong together: libraries of driver host "1" and "2"`},
		{"header twice", h + h, "r:2: record.syntax: second header line"},
		{"unknown key", h + strings.Replace(good, `"loops"`, `"lops"`, 1), `r:2: decode.unknown-key: unknown key "lops"`},
		{"unknown kind", h + edit(func(m *Measurement) { m.Kind = "time" }), `r:2: record.measurement: unknown kind of measurement "time"`},
		{"no samples", h + edit(func(m *Measurement) { m.Samples = nil }), "0 samples, want 1..100000"},
		{"negative", h + edit(func(m *Measurement) { m.Samples[1] = -1 }), "sample 1 is -1 ns, want a positive finite time"},
		{"zero", h + edit(func(m *Measurement) { m.Samples[2] = 0 }), "sample 2 is 0 ns, want a positive finite time"},
		{"NaN", h + strings.Replace(good, "1001", "NaN", 1), "r:2: decode.syntax: not valid JSON"},
		{"infinite", h + strings.Replace(good, "1001", "1e999", 1), "r:2: decode.type: samples[1] is a number 1e999, want a finite number"},
		{"null samples", h + strings.Replace(good, "1001", "null", 1), "r:2: decode.type: samples[1] is empty"},
		{"negative first", h + edit(func(m *Measurement) { m.First = -1 }), "first is -1 ns"},
		{"other unit", h + edit(func(m *Measurement) { m.Unit = "ms" }), `unit "ms", want "ns"`},
		{"no loops", h + edit(func(m *Measurement) { m.Loops = 0 }), "loops = 0, want at least 1"},
		{"no operator", h + edit(func(m *Measurement) { m.Op = nil }), "an operator belongs to kinds op, launch and load"},
		{"bad operator", h + edit(func(m *Measurement) { m.Op.N = -5 }), "n = -5"},
		{"unit of other results", h + edit(func(m *Measurement) { m.GLU = glu(96) }), `key "glu" belongs to a product whose results it takes`},
		{"unit of no product", h + edit(func(m *Measurement) { m.Kind, m.GLU = Load, glu(48) }), `key "glu" belongs to a product`},
		{"bad unit", h + edit(func(m *Measurement) { m.GLU = glu(0) }), "n = 0"},
		{"warm with a footprint", h + edit(func(m *Measurement) { m.Cold, m.Footprint = false, 5 }), "footprint = 5 of a measurement with cold = false"},
		{"bad partner", h + edit(func(m *Measurement) { m.Concurrent[0].Proc = "host:0" }), `concurrent processor "host:0", want another one each`},
		{"bad partner operator", h + edit(func(m *Measurement) { m.Concurrent[0].Op.Scheme = "x" }), "concurrent: operator"},
		{"sync to nobody", h + edit(func(m *Measurement) { m.Kind, m.Op = Sync, nil }), `key "to" belongs to kinds sync and copy`},
		{"bandwidth of nothing", h + edit(func(m *Measurement) { m.Kind, m.Op = Bandwidth, nil }), "bytes = 0, want at least 1"},
		{"no processor", h + edit(func(m *Measurement) { m.Proc = "" }), "want a processor"},
		{"simulated among measured", h + edit(func(m *Measurement) { m.Simulated = true }), "simulated = true, the header says false"},
		{"long line", h + `{"proc":"` + strings.Repeat("x", maxLine) + "\"}\n", "r:2: record.syntax: line is longer than"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Read("r", strings.NewReader(tt.text))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
			if err != nil && diag.ClassOf(err) != diag.ClassInput {
				t.Errorf("class %d, want %d", diag.ClassOf(err), diag.ClassInput)
			}
		})
	}
}

// What the hints say can be done: records that were joined have measurements twice, and no header can be made up.
func TestHintsOfHeaders(t *testing.T) {
	head, err := encode(header())
	if err != nil {
		t.Fatal(err)
	}
	line, err := encode(measurement(1))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		string(line): "a record begins with a line that says which machine it is about",
		string(head) + string(line) + string(head): "measure what it lacks with hetc profile --resume -o \"r\"",
	} {
		_, err := Read("r", strings.NewReader(text))
		if hints := diag.HintsOf(err); len(hints) != 1 || !strings.Contains(hints[0], want) {
			t.Errorf("got %v with hints %q, want %q", err, hints, want)
		}
	}
}

func TestWriterRefuses(t *testing.T) {
	path := create(t, 1)
	if _, err := Create(path, header()); err == nil || len(diag.HintsOf(err)) == 0 {
		t.Errorf("create over an existing file: %v", err)
	}
	for _, change := range []func(h *Header){
		func(h *Header) { h.Fingerprint = "f2" },
		func(h *Header) { h.SoCDigest = "d2" },
		func(h *Header) { h.Environment.Kernels = "other" },
		func(h *Header) { h.Simulated = true },
	} {
		h := header()
		change(&h)
		before, _ := os.ReadFile(path)
		if _, err := Resume(path, h); err == nil || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("resume with %+v: %v", h, err)
		}
		if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
			t.Error("a refused resume changed the file")
		}
	}
	w, err := Resume(path, header())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	bad := measurement(2)
	bad.Samples[0] = math.NaN()
	if err := w.Append(bad); err == nil || diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("NaN appended: %v", err)
	}
	if err := w.Append(measurement(1)); err == nil {
		t.Error("a key appended twice")
	}
	if w.Set().Len() != 1 {
		t.Errorf("%d measurements after refusals, want 1", w.Set().Len())
	}
	// The name of a directory that is not there, and a file that is something else.
	if _, err := Create(filepath.Join(path, "x"), header()); diag.ClassOf(err) != diag.ClassIO {
		t.Errorf("create below a file: %v", err)
	}
	other := filepath.Join(t.TempDir(), "notes.txt")
	if err := os.WriteFile(other, []byte("my notes"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Resume(other, header()); err == nil {
		t.Error("resume accepts a text file")
	}
	if b, _ := os.ReadFile(other); string(b) != "my notes" {
		t.Errorf("resume changed a text file to %q", b)
	}
	if _, err := Create(filepath.Join(t.TempDir(), "r"), Header{SoC: "x"}); err == nil {
		t.Error("header without digest accepted")
	}
}

func TestSecondWriterIsKeptOut(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("files are locked on Unix only")
	}
	path := create(t, 1)
	w, err := Resume(path, header())
	if err != nil {
		t.Fatal(err)
	}
	// The one before may be on its way out: a writer waits for it.
	first := w
	time.AfterFunc(100*time.Millisecond, func() { first.Close() })
	second, err := Resume(path, header())
	if err != nil {
		t.Fatalf("while the first one closes: %v", err)
	}
	w = second
	lockPatience = 50 * time.Millisecond
	defer func() { lockPatience = filelock.OfTheKilled }()
	if _, err := Resume(path, header()); err == nil || !strings.Contains(err.Error(), "another hetc writes it") {
		t.Errorf("second writer: %v", err)
	}
	w.Close()
	if w, err = Resume(path, header()); err != nil {
		t.Fatalf("after close: %v", err)
	}
	w.Close()
}

func TestFailedWriteLeavesTheFileWhole(t *testing.T) {
	path := create(t, 1)
	w, err := Resume(path, header())
	if err != nil {
		t.Fatal(err)
	}
	// A read-only descriptor in its place makes every write fail.
	ro, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	rw := w.f
	w.f = ro
	err = w.Append(measurement(2))
	if err == nil || diag.ClassOf(err) != diag.ClassIO {
		t.Errorf("got %v", err)
	}
	w.f = rw
	if err := w.Append(measurement(2)); err != nil {
		t.Errorf("the same measurement after the failure: %v", err)
	}
	w.Close()
	if s, err := Open(path); err != nil || s.Len() != 2 {
		t.Errorf("%v, %v", s, err)
	}
}

func TestMissingFile(t *testing.T) {
	_, err := Open(filepath.Join(t.TempDir(), "none"))
	if !errors.Is(err, os.ErrNotExist) || diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("got %v", err)
	}
}

// TestOrderDoesNotMatter adds measurements in random orders: listing and digest stay.
func TestOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms := rapid.Permutation([]int{1, 2, 3, 12, 64, 100}).Draw(t, "order")
		s, ref := NewSet(header()), NewSet(header())
		for _, m := range ms {
			if err := s.Add(measurement(m)); err != nil {
				t.Fatal(err)
			}
		}
		for _, m := range []int{1, 2, 3, 12, 64, 100} {
			if err := ref.Add(measurement(m)); err != nil {
				t.Fatal(err)
			}
		}
		if !reflect.DeepEqual(s.All(), ref.All()) {
			t.Fatal("order of All depends on order of Add")
		}
		a, _ := s.Digest()
		if b, _ := ref.Digest(); a != b {
			t.Fatal("digest depends on order of Add")
		}
	})
}

func FuzzRead(f *testing.F) {
	h, _ := encode(header())
	m, _ := encode(measurement(1))
	f.Add([]byte(string(h) + string(m)))
	f.Add([]byte(string(h) + string(m[:30])))
	f.Add(h)
	f.Add([]byte("{}\n"))
	c, _ := encode(facts(8))
	f.Add([]byte(string(h) + string(c)))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Read("r", bytes.NewReader(b))
		if err != nil {
			if diag.ClassOf(err) != diag.ClassInput {
				t.Fatalf("class %d: %v", diag.ClassOf(err), err)
			}
			return
		}
		// What was accepted can be written and read again.
		var out bytes.Buffer
		line, err := encode(&s.Header)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(line)
		for _, m := range s.All() {
			if line, err = encode(m); err != nil {
				t.Fatal(err)
			}
			out.Write(line)
		}
		for _, x := range s.Facts() {
			if line, err = encode(x); err != nil {
				t.Fatal(err)
			}
			out.Write(line)
		}
		again, err := Read("again", &out)
		if err != nil {
			t.Fatal(err)
		}
		a, _ := s.Digest()
		if b, _ := again.Digest(); a != b {
			t.Fatal("digest changed")
		}
		if a, b := must(s.FactsDigest()), must(again.FactsDigest()); a != b {
			t.Fatal("digest of facts changed")
		}
	})
}
