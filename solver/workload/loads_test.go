package workload

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
)

// traced reads the loads that were traced of a small model.
func traced(t testing.TB) *Loads {
	t.Helper()
	loads, err := ReadLoads("loads/tiny-moe-kjv.json")
	if err != nil {
		t.Fatal(err)
	}
	return loads
}

// catalog opens a model.
func catalog(t testing.TB, name string) *models.Model {
	t.Helper()
	model, err := models.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	return model
}

// Traced loads are read and written to the byte, and repeated for a model with more layers.
func TestTracedLoads(t *testing.T) {
	loads := traced(t)
	if loads.Source != "traced" || loads.Experts != 16 || len(loads.Layers) != 4 {
		t.Fatalf("%s loads of %d experts in %d layers", loads.Source, loads.Experts, len(loads.Layers))
	}
	data, err := loads.Encode()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile("loads/tiny-moe-kjv.json")
	if err != nil {
		t.Fatal(err)
	}
	if string(data) != string(file) {
		t.Error("encoding the file again gives other bytes")
	}

	for i := range loads.Layers {
		if imbalance := loads.Imbalance(i); imbalance < 1 || imbalance > 16 {
			t.Errorf("layer %d: imbalance %v, want 1..16", i, imbalance)
		}
	}

	if err := loads.Fits(catalog(t, "phi-3.5-moe")); err == nil || !strings.Contains(err.Error(), "4 layers") {
		t.Errorf("loads of four layers fit phi-3.5-moe: %v", err)
	}
	as, err := loads.As(catalog(t, "phi-3.5-moe"))
	if err != nil {
		t.Fatal(err)
	}
	if as.Source != "synthetic" || len(as.Layers) != 32 || as.Imbalance(5) != loads.Imbalance(1) {
		t.Errorf("repeated loads: %s, %d layers", as.Source, len(as.Layers))
	}
}

// Merged chunks have the rows of those that they are made of.
func TestMergedLoads(t *testing.T) {
	loads := traced(t)
	merged := loads.Merged(4, loads.Chunks)
	for layer := range merged {
		for chunk := range loads.Chunks / 4 {
			sum := 0
			for expert := range merged[layer] {
				sum += int(merged[layer][expert][chunk])
			}
			if sum != 4*64*2 {
				t.Fatalf("layer %d, chunk %d: %d rows, want %d", layer, chunk, sum, 4*64*2)
			}
		}
	}
}

// Generators make the same loads every time, as uneven as their names say, and wrong names are refused.
func TestSyntheticLoads(t *testing.T) {
	model := catalog(t, "olmoe-1b-7b")
	imbalance := func(generator string) float64 {
		loads, err := Synthetic(model, generator, 64, 64, 1)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Synthetic(model, generator, 64, 64, 1)
		if err != nil {
			t.Fatal(err)
		}
		first, _ := loads.Digest()
		if second, _ := again.Digest(); first != second {
			t.Errorf("%s: two digests", generator)
		}
		return loads.Imbalance(3)
	}

	even, skewed, more := imbalance("uniform"), imbalance("zipf:0.8"), imbalance("zipf:1.4")
	if !(even < 1.2 && skewed > 2 && more > skewed) {
		t.Errorf("imbalances %v, %v, %v", even, skewed, more)
	}
	if hot := imbalance("hot:4:0.5"); hot < 3 {
		t.Errorf("hot experts: imbalance %v", hot)
	}
	for _, bad := range []string{
		"", "zipf", "zipf:x", "zipf:-1", "zipf:NaN", "uniform:1", "hot:64:0.5", "hot:4", "hot:0:0.5", "hot:4:1",
		"normal",
	} {
		if _, err := Synthetic(model, bad, 64, 64, 1); diag.ClassOf(err) != diag.ClassUsage {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// A file that makes no sense is refused with what is wanted.
func TestHostileLoads(t *testing.T) {
	good, err := os.ReadFile("loads/tiny-moe-kjv.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ old, new, want string }{
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
		text := strings.Replace(string(good), test.old, test.new, 1)
		if text == string(good) {
			t.Fatalf("%q is not in the file", test.old)
		}
		_, err := parseLoads("loads.json", []byte(text))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s for %s: %v, want %q", test.new, test.old, err, test.want)
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
		_, err := parseLoads("cut.json", good[:part])
		if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "cut.json") {
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

// firstLoads and secondLoads are of earlier versions of the format.
const (
	firstLoads = `{"schema":"hetc.loads/1","source":"synthetic","model":"m","generator":"uniform","experts":2,` +
		`"experts_per_token":1,"chunk_tokens":2,"chunks":2,"layers":[{"layer":0,"rows":["1 2","1 0"]}]}`
	secondLoads = `{"schema":"hetc.loads/2","source":"synthetic","model":"m","generator":"uniform","experts":2,` +
		`"experts_per_token":1,"chunk_tokens":2,"chunks":2,` +
		`"layers":[{"layer":0,"rows":["1 2","1 0"],"saliency":["0 1","2 3"]}]}`
)

// What earlier versions wrote is read, without what it said of saliency.
func TestEarlierLoads(t *testing.T) {
	for _, text := range []string{firstLoads, secondLoads} {
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
	for rows, want := range map[int][][]int32{
		8: {{4, 4}, {4, 4}}, 4: {{1, 3, 4, 0}, {3, 1, 0, 4}}, 2: {{1, 2, 2, 0}, {2, 1, 0, 2}}, 6: {{3, 3}, {3, 3}},
	} {
		got, err := loads.Scaled(rows)
		if err != nil || !reflect.DeepEqual(got[0], want) {
			t.Errorf("%d rows: %v, %v, want %v", rows, got, err, want)
		}
	}
	if _, err := loads.Scaled(17); err == nil || !strings.Contains(err.Error(), "a program has 17 rows") {
		t.Errorf("17 rows of 16 tokens: %v", err)
	}
}

// Whatever a file has, loads that are accepted are written and read again as they are.
func FuzzParseLoads(f *testing.F) {
	f.Add([]byte(firstLoads))
	f.Add([]byte(`{"schema":"hetc.loads/1","source":"synthetic","model":"m","generator":"x","experts":1,` +
		`"experts_per_token":1,"chunk_tokens":1,"chunks":1,"layers":[{"layer":3,"rows":["1"]}]}`))
	f.Add([]byte("schema: hetc.loads/1\nlayers: [{rows: ['']}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		loads, err := parseLoads("loads.json", data)
		if err != nil {
			return
		}
		encoded, err := loads.Encode()
		if err != nil {
			t.Fatalf("accepted, but %v", err)
		}
		again, err := parseLoads("loads.json", encoded)
		if err != nil {
			t.Fatal(err)
		}
		first, _ := loads.Digest()
		if second, _ := again.Digest(); first != second {
			t.Fatal("another digest after encoding")
		}
	})
}
