package workload

import (
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
)

func traced(t testing.TB) *Loads {
	t.Helper()
	l, err := ReadLoads("loads/tiny-moe-kjv.json")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func catalog(t testing.TB, name string) *models.Model {
	t.Helper()
	m, err := models.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestTracedLoads(t *testing.T) {
	l := traced(t)
	if l.Source != "traced" || l.Experts != 16 || len(l.Layers) != 4 {
		t.Fatalf("%s loads of %d experts in %d layers", l.Source, l.Experts, len(l.Layers))
	}
	b, err := l.Encode()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile("loads/tiny-moe-kjv.json")
	if err != nil {
		t.Fatal(err)
	}
	if string(b) != string(file) {
		t.Error("encoding the file again gives other bytes")
	}
	for i := range l.Layers {
		if x := l.Imbalance(i); x < 1 || x > 16 {
			t.Errorf("layer %d: imbalance %v, want 1..16", i, x)
		}
	}
	if err := l.Fits(catalog(t, "phi-3.5-moe")); err == nil || !strings.Contains(err.Error(), "4 layers") {
		t.Errorf("loads of four layers fit phi-3.5-moe: %v", err)
	}
	as, err := l.As(catalog(t, "phi-3.5-moe"))
	if err != nil {
		t.Fatal(err)
	}
	if as.Source != "synthetic" || len(as.Layers) != 32 || as.Imbalance(5) != l.Imbalance(1) {
		t.Errorf("repeated loads: %s, %d layers", as.Source, len(as.Layers))
	}
}

func TestMergedLoads(t *testing.T) {
	l := traced(t)
	m := l.Merged(4, l.Chunks)
	for i := range m {
		for c := range l.Chunks / 4 {
			sum := 0
			for e := range m[i] {
				sum += int(m[i][e][c])
			}
			if sum != 4*64*2 {
				t.Fatalf("layer %d, chunk %d: %d rows, want %d", i, c, sum, 4*64*2)
			}
		}
	}
}

func TestSyntheticLoads(t *testing.T) {
	m := catalog(t, "olmoe-1b-7b")
	imbalance := func(generator string) float64 {
		l, err := Synthetic(m, generator, 64, 64, 1)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Synthetic(m, generator, 64, 64, 1)
		if err != nil {
			t.Fatal(err)
		}
		a, _ := l.Digest()
		if b, _ := again.Digest(); a != b {
			t.Errorf("%s: two digests", generator)
		}
		return l.Imbalance(3)
	}
	even, skewed, more := imbalance("uniform"), imbalance("zipf:0.8"), imbalance("zipf:1.4")
	if !(even < 1.2 && skewed > 2 && more > skewed) {
		t.Errorf("imbalances %v, %v, %v", even, skewed, more)
	}
	if hot := imbalance("hot:4:0.5"); hot < 3 {
		t.Errorf("hot experts: imbalance %v", hot)
	}
	for _, bad := range []string{"", "zipf", "zipf:x", "zipf:-1", "zipf:NaN", "uniform:1", "hot:64:0.5", "hot:4", "hot:0:0.5", "hot:4:1", "normal"} {
		var d *diag.Diagnostic
		if _, err := Synthetic(m, bad, 64, 64, 1); !errors.As(err, &d) || d.Class != diag.ClassUsage {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestHostileLoads(t *testing.T) {
	good, err := os.ReadFile("loads/tiny-moe-kjv.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ old, new, want string }{
		{`"traced"`, `"guessed"`, "want traced or synthetic"},
		{`"chunks": 256`, `"chunks": 255`, "want 255"},
		{`"chunks": 256`, `"chunks": -1`, "want 1.."},
		{`"chunk_tokens": 64`, `"chunk_tokens": 63`, "rows in chunk"},
		{`"experts": 16`, `"experts": 17`, "want 17"},
		{`"experts_per_token": 2`, `"experts_per_token": 99`, "want 1..16"},
		{`"layer": 1,`, `"layer": 0,`, "ascending"},
		{`"0 0 1 2 3`, `"1 0 1 2 3`, "rows in chunk 0"},
		{`"0 0 1 2 3`, `"0  0 1 2 3`, "single spaces"},
		{`"0 0 1 2 3`, `"00 0 1 2 3`, "whole numbers"},
		{`"0 0 1 2 3`, `"-1 0 1 2 3`, "whole numbers"},
		{`"0 0 1 2 3`, `"99999999 0 1 2 3`, "whole numbers"},
		{`"0 0 1 2 3`, `"NaN 0 1 2 3`, "whole numbers"},
		{`"0 0 1 2 3`, `"0.5 0 1 2 3`, "whole numbers"},
		{`"model_digest": "5`, `"model_digest": "`, "64 hexadecimal"},
		{`hetc.loads/3`, `hetc.loads/9`, "hetc.loads"},
		{`"layer": 1,`, `"layer": 1, "saliency": ["1 2"],`, "has no saliency"},
		{`"experts"`, `"expert"`, "expert"},
	} {
		text := strings.Replace(string(good), x.old, x.new, 1)
		if text == string(good) {
			t.Fatalf("%q is not in the file", x.old)
		}
		_, err := parseLoads("loads.json", []byte(text))
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s for %s: %v, want %q", x.new, x.old, err, x.want)
		}
	}
}

// A file that ends anywhere is refused, with its name.
func TestCutLoads(t *testing.T) {
	good, err := os.ReadFile("loads/tiny-moe-kjv.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []int{0, 1, 10, 100, len(good) / 3, len(good) / 2, len(good) - 3} {
		if _, err := parseLoads("cut.json", good[:part]); diag.ClassOf(err) != diag.ClassInput ||
			!strings.Contains(err.Error(), "cut.json") {
			t.Errorf("the first %d of %d bytes: %v", part, len(good), err)
		}
	}
}

// Traced loads are those of one model: of another one's weights, layers or experts they are refused.
func TestLoadsOfAnotherModel(t *testing.T) {
	model := catalog(t, "../../testdata/models/tiny-moe-kjv")
	defer model.Close()
	if err := traced(t).Fits(model); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(l *Loads){
		"were traced with model": func(l *Loads) { l.ModelDigest = strings.Repeat("0", 64) },
		"of 3 layers":            func(l *Loads) { l.Layers = l.Layers[:3] },
		"with 15 experts":        func(l *Loads) { l.Experts = 15 },
		"3 a token":              func(l *Loads) { l.ExpertsPerToken = 3 },
		"loads are of layer 7":   func(l *Loads) { l.Layers[3].Layer = 7 },
	} {
		loads := traced(t)
		change(loads)
		if err := loads.Fits(model); diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := traced(t).Fits(catalog(t, "qwen3-4b")); err == nil || !strings.Contains(err.Error(), "has no experts") {
		t.Errorf("loads of experts fit qwen3-4b: %v", err)
	}
}

// What earlier versions wrote is read, without what it said of saliency.
func TestEarlierLoads(t *testing.T) {
	for _, text := range []string{
		`{"schema":"hetc.loads/1","source":"synthetic","model":"m","generator":"uniform","experts":2,"experts_per_token":1,"chunk_tokens":2,"chunks":2,"layers":[{"layer":0,"rows":["1 2","1 0"]}]}`,
		`{"schema":"hetc.loads/2","source":"synthetic","model":"m","generator":"uniform","experts":2,"experts_per_token":1,"chunk_tokens":2,"chunks":2,"layers":[{"layer":0,"rows":["1 2","1 0"],"saliency":["0 1","2 3"]}]}`,
	} {
		loads, err := parseLoads("loads.json", []byte(text))
		if err != nil || loads.Schema != LoadsSchema || loads.Layers[0].Saliency != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Loads of a program's rows keep the shares: merged where chunks are shorter, reduced where they are longer.
func TestScaledLoads(t *testing.T) {
	loads := &Loads{Experts: 2, ExpertsPerToken: 1, ChunkTokens: 4, Chunks: 4,
		Layers: []LoadLayer{{Rows: []Counts{{1, 3, 4, 0}, {3, 1, 0, 4}}}}}
	for rows, want := range map[int][][]int32{8: {{4, 4}, {4, 4}}, 4: {{1, 3, 4, 0}, {3, 1, 0, 4}}, 2: {{1, 2, 2, 0}, {2, 1, 0, 2}}, 6: {{3, 3}, {3, 3}}} {
		got, err := loads.Scaled(rows)
		if err != nil || !reflect.DeepEqual(got[0], want) {
			t.Errorf("%d rows: %v, %v, want %v", rows, got, err, want)
		}
	}
	if _, err := loads.Scaled(17); err == nil || !strings.Contains(err.Error(), "a program has 17 rows") {
		t.Errorf("17 rows of 16 tokens: %v", err)
	}
}

func FuzzParseLoads(f *testing.F) {
	f.Add([]byte(`{"schema":"hetc.loads/1","source":"synthetic","model":"m","generator":"uniform","experts":2,"experts_per_token":1,"chunk_tokens":2,"chunks":2,"layers":[{"layer":0,"rows":["1 2","1 0"]}]}`))
	f.Add([]byte(`{"schema":"hetc.loads/1","source":"synthetic","model":"m","generator":"x","experts":1,"experts_per_token":1,"chunk_tokens":1,"chunks":1,"layers":[{"layer":3,"rows":["1"]}]}`))
	f.Add([]byte("schema: hetc.loads/1\nlayers: [{rows: ['']}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := parseLoads("loads.json", data)
		if err != nil {
			return
		}
		b, err := l.Encode()
		if err != nil {
			t.Fatalf("accepted, but %v", err)
		}
		again, err := parseLoads("loads.json", b)
		if err != nil {
			t.Fatal(err)
		}
		x, _ := l.Digest()
		if y, _ := again.Digest(); x != y {
			t.Fatal("another digest after encoding")
		}
	})
}
