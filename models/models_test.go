package models

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models/safetensors"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
)

// checkOperators expects valid operators in every node of a graph.
func checkOperators(t *testing.T, model *Model) {
	t.Helper()
	graph := model.Graph()
	for _, section := range graph.Sections {
		for _, node := range section.Nodes {
			for _, operator := range node.At(1, 1) {
				if err := operator.Validate(); err != nil {
					t.Errorf("%s: %s.%s: %v", model.Name, section.Name, node.Name, err)
				}
			}
		}
	}
}

// Graphs of the catalog, of the demo model, and of one with odd sizes have weights of the shapes that their operators
// take, each used, and values that are declared.
func TestGraphIsConsistent(t *testing.T) {
	models := []*Model{openTiny(t)}
	for _, name := range CatalogNames() {
		model, err := Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if len(model.UnreadKeys()) > 0 {
			t.Errorf("%s: keys that mean nothing: %v", name, model.UnreadKeys())
		}
		models = append(models, model)
	}
	config := small()
	config["intermediate_size"], config["head_dim"], config["tie_word_embeddings"] = 18, 6, true
	odd, err := readSmall(t, config)
	if err != nil {
		t.Fatal(err)
	}
	for _, model := range append(models, odd) {
		graph := model.Graph()
		used := map[string]bool{}
		for i := range graph.Sections {
			checkSection(t, model.Name, &graph, &graph.Sections[i], used)
		}
		for i := range graph.Weights {
			weight := &graph.Weights[i]
			checkSources(t, model.Name, weight)
			if !used[weight.Name] {
				t.Errorf("%s: weight %s is listed but not used", model.Name, weight.Name)
			}
		}
	}
	graph := odd.Graph()
	const unit = 7 // node of the gated unit
	if got := graph.Weight("layers.ffn_gate_up").Interleave[0]; got != 2 {
		t.Errorf("18 columns of gate and up are interleaved by %d, want 2", got)
	}
	if got := graph.Section("layers").Nodes[unit].Ops[0].Interleave; got != 2 {
		t.Errorf("the gated unit takes columns by %d, want 2", got)
	}
}

// checkSection compares the nodes of a section with its values and the graph's weights, and notes the weights they use.
func checkSection(t *testing.T, name string, graph *Graph, section *Section, used map[string]bool) {
	t.Helper()
	declared := map[string]bool{}
	for _, value := range section.Values {
		declared[value.Name] = true
	}
	for _, node := range section.Nodes {
		operands := 0
		for _, operator := range node.At(3, 7) {
			if err := operator.Validate(); err != nil {
				t.Errorf("%s %s: %v", name, node.Name, err)
			}
			for _, role := range operator.Sig().W {
				weight, spec := graph.Weight(node.W[operands]), operator.WeightSpec(role, "n32")
				if weight == nil || weight.K != spec.K || weight.N != spec.N {
					t.Errorf("%s %s: weight %v, want [%d,%d]", name, node.Name, weight, spec.K, spec.N)
				}
				operands++
			}
		}
		if operands != len(node.W) {
			t.Errorf("%s %s: %d weights, operators take %d", name, node.Name, len(node.W), operands)
		}
		for _, weight := range node.W {
			used[weight] = true
		}
		for _, value := range slices.Concat(node.In, node.Out) {
			if !declared[value] {
				t.Errorf("%s %s: value %q is not declared", name, node.Name, value)
			}
		}
	}
}

// checkSources expects as many stored numbers as a weight has, and columns that take turns only where several tensors
// make one weight.
func checkSources(t *testing.T, name string, weight *op.Weight) {
	t.Helper()
	stored := 0
	for i := range weight.From {
		stored += int(elements(sourceShape(weight, i)))
	}
	if weight.Const != nil && len(weight.Const) != weight.N {
		t.Errorf("%s %s: %d constants, want %d", name, weight.Name, len(weight.Const), weight.N)
	}
	if weight.Const == nil && stored != weight.K*weight.N {
		t.Errorf("%s %s: sources hold %d values, want [%d,%d]", name, weight.Name, stored, weight.K, weight.N)
	}
	several := strings.Contains(weight.Name, "gate_up") || strings.HasPrefix(weight.Name, "layers.qkv")
	if weight.Interleave != nil && !several {
		t.Errorf("%s: %s is interleaved", name, weight.Name)
	}
}

// The published numbers of parameters are those of the catalog's shapes.
func TestCatalogParameters(t *testing.T) {
	want := map[string]int64{
		"gemma-2b":          2506172416,
		"internlm2-1.8b":    1889110016,
		"llama-2-7b":        6738415616,
		"llama-3-8b":        8030261248,
		"llama-3.2-1b":      1235814400,
		"llama-3.2-3b":      3212749824,
		"mistral-7b":        7241732096,
		"mixtral-8x7b":      46702792704,
		"olmoe-1b-7b":       6919161856,
		"phi-2":             2779683840,
		"phi-3.5-moe":       41873153344,
		"phi-tiny-moe":      3755220288,
		"qwen1.5-1.8b":      1836828672,
		"qwen1.5-moe-a2.7b": 14315784192,
		"qwen2-0.5b":        494032768,
		"qwen2-1.5b":        1543714304,
		"qwen3-4b":          4022468096,
		"qwen3-30b-a3b":     30532122624,
		"tinyllama-1.1b":    1100048384,

		// counted here: they are not published
		"olmoe-0.7b":     732587008,
		"tinyllama-0.2b": 219162624,
	}
	for _, name := range CatalogNames() {
		model, err := Open(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := model.Parameters(); got != want[name] {
			t.Errorf("%s: %d parameters, want %d", name, got, want[name])
		}
		if model.Name != name || model.Source == "" || model.HasWeights() {
			t.Errorf("%s: name %q, source %q, weights %v", name, model.Name, model.Source, model.HasWeights())
		}
		_, err = model.Tensor("model.norm.weight")
		if diag.ClassOf(err) != diag.ClassInput || len(diag.HintsOf(err)) != 1 {
			t.Errorf("%s: reading a tensor: got %v %q, want an error with a hint", name, err, diag.HintsOf(err))
		}
		checkOperators(t, model)
	}
}

// What is neither a file nor a catalog entry is told what is near it.
func TestUnknownNamesGetASuggestion(t *testing.T) {
	_, err := Open("tinylama-1.1b")
	hints := strings.Join(diag.HintsOf(err), " ")
	if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(hints, `did you mean "tinyllama-1.1b"?`) {
		t.Errorf("got %v, hints %q", err, hints)
	}
	for _, name := range []string{
		"",
		"no/such/dir",
		"../catalog/llama-3-8b",
		filepath.Join(tinyDir, "config.json"),
		"a\x00b",
	} {
		if _, err := Open(name); diag.ClassOf(err) != diag.ClassInput || len(diag.HintsOf(err)) == 0 {
			t.Errorf("%q: got %v, hints %q", name, err, diag.HintsOf(err))
		}
	}
}

// A plan holds the name of its model as text. A path may hold any bytes.
func TestNameOfNoText(t *testing.T) {
	for path, want := range map[string]string{
		"/models/llama":        "llama",
		"/models/модель ☃":     "модель ☃",
		"/models/m\xff":        "m\uFFFD",
		"/models/m\xff\xfe.xy": "m\uFFFD.xy",
	} {
		if got := nameOf(path); got != want {
			t.Errorf("name of %q: got %q, want %q", path, got, want)
		}
	}
}

// copyModel makes a directory of the demo model's files whose files a test may change.
func copyModel(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{configName, generationName, singleName} {
		data, err := os.ReadFile(filepath.Join(tinyDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// storedTensors are those of the demo model.
func storedTensors(t testing.TB) []safetensors.Tensor {
	t.Helper()
	file, err := safetensors.Open(filepath.Join(tinyDir, singleName))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	var out []safetensors.Tensor
	for _, name := range file.Names() {
		tensor, _ := file.Tensor(name)
		out = append(out, tensor)
	}
	return out
}

// damage changes a copy of the demo model.
type damage func(t *testing.T, dir string)

// normName is a tensor of the demo model with 256 numbers.
const normName = "model.norm.weight"

// withTensors writes the tensors again for which keep returns true; it may change them.
func withTensors(keep func(tensor *safetensors.Tensor) bool) damage {
	return func(t *testing.T, dir string) {
		var out []safetensors.Tensor
		for _, tensor := range storedTensors(t) {
			if keep(&tensor) {
				out = append(out, tensor)
			}
		}
		if err := safetensors.Write(filepath.Join(dir, singleName), out, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// withKey sets a key of the configuration.
func withKey(key string, value any) damage {
	return func(t *testing.T, dir string) {
		path := filepath.Join(dir, configName)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var config map[string]any
		if err := json.Unmarshal(data, &config); err != nil {
			t.Fatal(err)
		}
		config[key] = value
		if err := writeJSON(path, config); err != nil {
			t.Fatal(err)
		}
	}
}

// withoutFile removes a file.
func withoutFile(name string) damage {
	return func(t *testing.T, dir string) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// withIndex makes the weights a shard called a.safetensors, with an index.
func withIndex(weightMap any) damage {
	return func(t *testing.T, dir string) {
		if err := os.Rename(filepath.Join(dir, singleName), filepath.Join(dir, "a.safetensors")); err != nil {
			t.Fatal(err)
		}
		if err := writeJSON(filepath.Join(dir, indexName), map[string]any{"weight_map": weightMap}); err != nil {
			t.Fatal(err)
		}
	}
}

// refuseDamaged expects that damaged copies of the demo model are refused with these words, in few of them.
func refuseDamaged(t *testing.T, copies map[string]struct {
	damage damage
	want   string
}) {
	t.Helper()
	for name, test := range copies {
		t.Run(name, func(t *testing.T) {
			dir := copyModel(t)
			test.damage(t, dir)
			model, err := Open(dir)
			if err == nil {
				model.Close()
				t.Fatalf("opened, want %q", test.want)
			}
			if !strings.Contains(err.Error(), test.want) || diag.ClassOf(err) != diag.ClassInput {
				t.Errorf("got %v\nwant %q", err, test.want)
			}
			if length := len(err.Error()); length > 4000 {
				t.Errorf("error has %d characters", length)
			}
		})
	}
}

// A directory without a file, or whose configuration and tensors do not fit each other, is refused.
func TestBrokenDirectories(t *testing.T) {
	refuseDamaged(t, map[string]struct {
		damage damage
		want   string
	}{
		"no config": {withoutFile(configName), "config.json"},
		"no weights": {
			damage: withoutFile(singleName),
			want:   "found neither model.safetensors nor model.safetensors.index.json",
		},
		"missing tensor": {
			damage: withTensors(func(tensor *safetensors.Tensor) bool { return tensor.Name != normName }),
			want:   `1 of the tensors its graph needs are missing: "model.norm.weight" [256]`,
		},
		"wrong shape": {
			damage: withTensors(func(tensor *safetensors.Tensor) bool {
				if tensor.Name == normName {
					tensor.Shape = []int{16, 16}
				}
				return true
			}),
			want: `tensor "model.norm.weight": got shape [16 16], want [256]`,
		},
		"wrong type": {
			damage: withTensors(func(tensor *safetensors.Tensor) bool {
				retype(tensor, normName, "i16")
				return true
			}),
			want: `tensor "model.norm.weight": got element type "i16", want f32, f16 or bf16`,
		},
		"other config": {
			damage: withKey("intermediate_size", 512),
			want:   `tensor "model.layers.0.mlp.down_proj.weight": got shape [256 768], want [256 512]`,
		},
		"untied":      {withKey("tie_word_embeddings", false), `"lm_head.weight" [2048 256]`},
		"more layers": {withKey("num_hidden_layers", 100), "846 of the tensors its graph needs are missing"},
		"huge layers": {withKey("num_hidden_layers", 5000), `key "num_hidden_layers": got 5000`},
		"bad generation": {
			damage: func(t *testing.T, dir string) {
				writeText(t, filepath.Join(dir, generationName), `{"eos_token_id": "x"}`)
			},
			want: `generation_config.json:1: model.config: key "eos_token_id"`,
		},
	})
}

// An index that names no shard, a shard that does not hold the tensor, or a file elsewhere, is refused.
func TestBrokenIndexes(t *testing.T) {
	inFile := func(file string) damage { return withIndex(map[string]string{normName: file}) }
	refuseDamaged(t, map[string]struct {
		damage damage
		want   string
	}{
		"without shards": {withIndex(map[string]string{}), "0 shards"},
		"to nowhere":     {inFile("b.safetensors"), "b.safetensors"},
		"lies": {
			damage: withIndex(map[string]string{"x": "a.safetensors"}),
			want:   `tensor "x": the index says it is in "a.safetensors", which does not hold it`,
		},
		"climbs":         {inFile("../a.safetensors"), `got "../a.safetensors", want the plain name`},
		"is absolute":    {inFile("/a.safetensors"), "want the plain name"},
		"with backslash": {inFile(`..\a.safetensors`), "want the plain name"},
		"hidden":         {inFile(".safetensors"), "want the plain name"},
		"NUL":            {inFile("a\x00.safetensors"), "want the plain name"},
		"other file":     {inFile("config.json"), "want the plain name"},
		"number":         {withIndex(map[string]int{normName: 1}), "got 1, want the plain name"},
		"list":           {withIndex([]string{normName}), `key "weight_map"`},
	})
}

// Weights of another form than can be read come with a hint how to get others.
func TestUnreadableWeightsCarryAHint(t *testing.T) {
	const query = "model.layers.0.self_attn.q_proj"
	for name, test := range map[string]struct {
		change     func(tensor *safetensors.Tensor)
		want, hint string
	}{
		"f64": {
			change: func(tensor *safetensors.Tensor) { retype(tensor, normName, "f64") },
			want:   `got element type "f64"`,
			hint:   "save the model as bfloat16",
		},
		"i8": {
			change: func(tensor *safetensors.Tensor) { retype(tensor, normName, "i8") },
			want:   `got element type "i8"`,
			hint:   quantisedHint,
		},
		"GPTQ":           {rename(query+".weight", query+".qweight"), "1 of the tensors", quantisedHint},
		"compressed":     {rename(query+".weight", query+".weight_packed"), "1 of the tensors", quantisedHint},
		"another tensor": {rename(query+".weight", query+".other"), "1 of the tensors", "a shard may be missing"},
		"another's qweight": {
			change: rename(query+".weight", "model.layers.1.qweight"),
			want:   "1 of the tensors",
			hint:   "a shard may be missing",
		},
	} {
		dir, tensors := copyModel(t), storedTensors(t)
		for i := range tensors {
			test.change(&tensors[i])
			tensors[i].Data = make([]byte, bytesOf(&tensors[i]))
		}
		if err := safetensors.Write(filepath.Join(dir, singleName), tensors, nil); err != nil {
			t.Fatal(err)
		}
		_, err := Open(dir)
		hints := strings.Join(diag.HintsOf(err), "")
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(hints, test.hint) {
			t.Errorf("%s: got %v with hints %q, want %q with %q", name, err, hints, test.want, test.hint)
		}
	}
}

// A model that was saved without its head lacks the prefix of all names but the head's, as those of models for
// embeddings do. It is the same model.
func TestNamesWithoutPrefix(t *testing.T) {
	want, err := openTiny(t).Digest()
	if err != nil {
		t.Fatal(err)
	}
	dir := copyModel(t)
	tensors := storedTensors(t)
	for i := range tensors {
		tensors[i].Name = strings.TrimPrefix(tensors[i].Name, "model.")
	}
	if err := safetensors.Write(filepath.Join(dir, singleName), tensors, nil); err != nil {
		t.Fatal(err)
	}
	model, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	if got, err := model.Digest(); err != nil || got != want || len(model.Ignored()) > 0 {
		t.Errorf("got %s, %v, ignoring %v, want %s", got, err, model.Ignored(), want)
	}
}

// rename gives the tensor of one name another.
func rename(from, to string) func(tensor *safetensors.Tensor) {
	return func(tensor *safetensors.Tensor) {
		if tensor.Name == from {
			tensor.Name = to
		}
	}
}

// retype changes the type of the tensor of a name.
func retype(tensor *safetensors.Tensor, name string, to op.Type) {
	if tensor.Name == name {
		tensor.Type = to
	}
}

// bytesOf returns the size of a tensor of the types that are tried here.
func bytesOf(tensor *safetensors.Tensor) int {
	size := map[op.Type]int{"f64": 8, op.F32: 4, op.F16: 2, op.BF16: 2, "i8": 1}[tensor.Type]
	return size * int(elements(tensor.Shape))
}

// writeText writes a file.
func writeText(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Sharding, names and unused tensors do not change what a model is.
func TestDigestOfShards(t *testing.T) {
	whole := openTiny(t)
	want := digestOf(t, whole)
	if again, _ := whole.computeDigest(); again != want || len(want) != 64 {
		t.Fatalf("got %q and %q", want, again)
	}
	dir := copyModel(t)
	withoutFile(singleName)(t, dir)
	unused := safetensors.Tensor{Name: "unused", Type: "i64", Shape: []int{1}, Data: make([]byte, 8)}
	shards := [2][]safetensors.Tensor{}
	files := map[string]string{} // by tensor
	name := func(shard int) string { return fmt.Sprintf("part-%d.safetensors", shard) }
	for i, tensor := range append(storedTensors(t), unused) {
		shards[i%2] = append(shards[i%2], tensor)
		files[tensor.Name] = name(i % 2)
	}
	for i, tensors := range shards {
		if err := safetensors.Write(filepath.Join(dir, name(i)), tensors, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeJSON(filepath.Join(dir, indexName), map[string]any{"weight_map": files}); err != nil {
		t.Fatal(err)
	}
	sharded, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer sharded.Close()
	if got := digestOf(t, sharded); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := sharded.Ignored(); !slices.Equal(got, []string{"unused"}) {
		t.Errorf("ignored tensors: got %v, want the unused one", got)
	}
}

// distinct are digests that must differ, with what each is of.
type distinct map[string]string

// add computes the digest of a model, and expects a new one.
func (d distinct) add(t *testing.T, what string, model *Model) {
	t.Helper()
	digest, err := model.computeDigest()
	if err != nil {
		t.Fatal(err)
	}
	if other, known := d[digest]; known {
		t.Errorf("%s has the digest of %s", what, other)
	}
	d[digest] = what
}

// Whatever changes what a model computes, or when an answer ends, changes its digest.
func TestDigestOfChanges(t *testing.T) {
	whole := openTiny(t)
	seen := distinct{}
	seen.add(t, "the model", whole)
	copied := func() *Model {
		decoder := *whole.decoder
		return &Model{
			Architecture: whole.Architecture,
			Hidden:       whole.Hidden,
			Layers:       whole.Layers,
			Heads:        whole.Heads,
			KVHeads:      whole.KVHeads,
			HeadDim:      whole.HeadDim,
			FFN:          whole.FFN,
			Vocab:        whole.Vocab,
			MaxContext:   whole.MaxContext,
			NormEps:      whole.NormEps,
			Dir:          whole.Dir,
			BOS:          whole.BOS,
			EOS:          whole.EOS,
			Stored:       whole.Stored,
			Tied:         whole.Tied,
			decoder:      &decoder,
			graph:        whole.graph,
			tensors:      whole.tensors,
		}
	}
	if digest, err := copied().computeDigest(); err != nil || seen[digest] == "" {
		t.Fatalf("a copy has another digest (%v)", err)
	}
	for what, change := range map[string]func(*Model){
		"another theta": func(m *Model) { m.decoder.rope.table = inverseFrequencies(20000, m.HeadDim) },
		"another eps":   func(m *Model) { m.NormEps = 1e-6 },
		"a soft cap":    func(m *Model) { m.decoder.attnCap = 30 },
		"another window": func(m *Model) {
			m.decoder.window, m.decoder.windowed = 7, func(int) bool { return true }
		},
		"another end": func(m *Model) { m.EOS = []int{3} },
		"no weights":  func(m *Model) { m.Dir, m.tensors = "", nil },
	} {
		model := copied()
		change(model)
		model.graph = decoderGraph(model)
		seen.add(t, what, model)
	}
}

// One bit of a weight changes the digest.
func TestDigestOfOneBit(t *testing.T) {
	whole := openTiny(t)
	straight := &Model{Dir: whole.Dir, Architecture: whole.Architecture, tensors: whole.tensors}
	bent := &Model{Dir: whole.Dir, Architecture: whole.Architecture, tensors: maps.Clone(whole.tensors)}
	table := bent.tensors["model.embed_tokens.weight"].(plainTensor)
	table.t.Data = slices.Clone(table.t.Data)
	table.t.Data[len(table.t.Data)-1] ^= 1
	bent.tensors[table.t.Name] = table

	seen := distinct{}
	seen.add(t, "the weights", straight)
	seen.add(t, "one bit", bent)
}

// pack reads weights from Tensor, Sources and Interleave; it has to agree with the words of Weight.
func TestPackReadsTheSameWeights(t *testing.T) {
	const layer = 1
	model := openTiny(t)
	graph := model.Graph()
	for i := range graph.Weights {
		weight := &graph.Weights[i]
		if weight.Const != nil {
			continue
		}
		var sources []pack.Source
		for i, name := range weight.Sources(layer, 0) {
			tensor, err := model.Tensor(name)
			if err != nil {
				t.Fatal(err)
			}
			cols := int(elements(sourceShape(weight, i))) / weight.K
			source, err := pack.Tensor(tensor, weight.K, cols, weight.Transposed)
			if err != nil {
				t.Fatal(err)
			}
			sources = append(sources, source)
		}
		source := sources[0]
		if weight.Interleave != nil {
			var err error
			if source, err = pack.Interleave(sources, weight.Interleave); err != nil {
				t.Fatal(err)
			}
		}
		got, want := make([]float32, weight.K*weight.N), assemble(t, model, weight, layer)
		if err := source.Read(got, 0, weight.K, 0, weight.N); err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if float64(got[i]) != want[i] {
				t.Fatalf("%s: column %d, row %d: pack reads %v, want %v", weight.Name, i/weight.K, i%weight.K, got[i],
					want[i])
			}
		}
	}
}

// A model knows its tensors as long as it is open.
func TestTensorsOfAModel(t *testing.T) {
	model, err := Open(tinyDir)
	if err != nil {
		t.Fatal(err)
	}
	if model.Name != "tiny-llama-kjv" || !model.Tied || model.Stored != op.BF16 || model.Parameters() != 5_246_208 {
		t.Errorf("got %s, tied %v, %s, %d parameters", model.Name, model.Tied, model.Stored, model.Parameters())
	}
	if model.BOS != 1 || !slices.Equal(model.EOS, []int{2}) {
		t.Errorf("got begin %d, end %v, want 1 and 2", model.BOS, model.EOS)
	}
	if _, err := model.Tensor("nope"); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("unknown tensor: got %v", err)
	}

	if err := errors.Join(model.Close(), model.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := model.Tensor(normName); err == nil {
		t.Error("a closed model still gives tensors")
	}
	if digest, err := model.Digest(); err == nil {
		t.Errorf("a closed model has digest %s", digest)
	}
	if _, err := Open(filepath.Join(tinyDir, "..")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no config.json: got %v", err)
	}
}

// What is accepted of an index are plain names of files.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":1},"weight_map":{"a":"x.safetensors","b":"x.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../x.safetensors"}}`))
	f.Add([]byte(`{"weight_map":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		parsed, err := decode.Parse(indexName, data)
		if err != nil {
			return
		}
		document, err := newDocument(parsed)
		if err != nil {
			return
		}
		shards, err := document.shards()
		if err != nil {
			return
		}
		for name := range shards {
			if filepath.Base(name) != name || strings.ContainsAny(name, "/\\:\x00") {
				t.Errorf("accepted shard name %q", name)
			}
		}
	})
}

// rewritten copies a model with another text of its configuration, and zeros of another shape in one of its tensors.
func rewritten(t *testing.T, from string, change func(config string) string, tensor string, shape []int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	text, err := os.ReadFile(filepath.Join(from, configName))
	if err != nil {
		t.Fatal(err)
	}
	writeText(t, filepath.Join(dir, configName), change(string(text)))
	file, err := safetensors.Open(filepath.Join(from, singleName))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var tensors []safetensors.Tensor
	for _, name := range file.Names() {
		stored, _ := file.Tensor(name)
		if name == tensor {
			stored.Shape, stored.Data = shape, make([]byte, 2*elements(shape))
		}
		tensors = append(tensors, stored)
	}
	if err := safetensors.Write(filepath.Join(dir, singleName), tensors, nil); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A tensor of several projections or experts that holds more or less than the configuration says belongs to another
// one: the rest would be read from the wrong rows, or one expert in the place of all.
func TestTensorsOfSeveralAreWhole(t *testing.T) {
	const down, gateUp = "model.layers.1.mlp.experts.down_proj", "model.layers.0.mlp.experts.gate_up_proj"
	keep := func(config string) string { return config }
	for _, test := range []struct {
		model  string
		change func(config string) string
		tensor string // gets the shape
		shape  []int
		want   string
	}{
		{
			model: "phi3-window",
			change: func(config string) string {
				return strings.Replace(config, `"num_key_value_heads": 2`, `"num_key_value_heads": 1`, 1)
			},
			want: `tensor "model.layers.0.self_attn.qkv_proj.weight": got shape [64 32], which is 2048 values, ` +
				`want 1536`,
		},
		{
			model: "mixtral-window-fused", change: keep, tensor: down, shape: []int{1, 32, 20},
			want: `tensor "` + down + `": got shape [1 32 20], which is 640 values, want 2560`,
		},
		{
			model: "mixtral-window-fused", change: keep, tensor: gateUp, shape: []int{4, 41, 32},
			want: `tensor "` + gateUp + `": got shape [4 41 32], which is 5248 values, want 5120`,
		},
		{
			model: "mixtral-window-fused", change: keep, tensor: gateUp, shape: []int{5, 40, 32},
			want: `tensor "` + gateUp + `": got shape [5 40 32], which is 6400 values, want 5120`,
		},
	} {
		dir := rewritten(t, filepath.Join("../testdata/arch", test.model), test.change, test.tensor, test.shape)
		model, err := Open(dir)
		if err == nil {
			model.Close()
		}
		if err == nil || !strings.Contains(err.Error(), test.want) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v\nwant %s", test.model, err, test.want)
		}
	}
}

// refused are the models of testdata/arch with a feature that is refused by its key.
var refused = map[string]string{
	"phi-qk-layernorm": `key "qk_layernorm"`,
}

// Every model of testdata/arch opens, with nothing left unread or unused; so do other spellings of its
// configuration beside it, and they mean the same graph.
func TestReferenceModelsOpen(t *testing.T) {
	files, err := filepath.Glob("../testdata/arch/*/config.json")
	if err != nil || len(files) < 20 {
		t.Fatalf("found %d models (%v)", len(files), err)
	}
	for _, file := range files {
		dir := filepath.Dir(file)
		model, err := Open(dir)
		if want, no := refused[filepath.Base(dir)]; no {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %s", dir, err, want)
			}
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		if len(model.UnreadKeys()) > 0 || len(model.Ignored()) > 0 {
			t.Errorf("%s: keys that mean nothing %v, tensors that nobody uses %v", dir, model.UnreadKeys(),
				model.Ignored())
		}
		checkSpellings(t, dir, model)
		model.Close()
	}
}

// checkSpellings expects the graph of a model from each other configuration in its directory.
func checkSpellings(t *testing.T, dir string, model *Model) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "config.*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		other, err := readBytes(file, data)
		if err != nil {
			t.Error(err)
			continue
		}
		other.Stored = model.Stored
		if !reflect.DeepEqual(decoderGraph(other), model.Graph()) {
			t.Errorf("%s: another graph than config.json", file)
		}
	}
}

// A chat template in a file of its own takes the place of the one in tokenizer_config.json.
func TestTokenizerFiles(t *testing.T) {
	files, err := openTiny(t).TokenizerFiles()
	if err != nil || len(files) != 2 {
		t.Fatalf("got %d files, %v", len(files), err)
	}
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		writeText(t, filepath.Join(dir, name), text)
	}
	configuration := func() (string, error) {
		files, err := (&Model{Dir: dir}).TokenizerFiles()
		return string(files["config"]), err
	}
	write(tokenizerName, "{}")
	write(templateName, "{{ \"a\" }}\n")
	const template = `"chat_template":"{{ \"a\" }}\n"`
	if got, err := configuration(); err != nil || got != `{`+template+`}` {
		t.Errorf("no configuration: got %s, %v", got, err)
	}
	write(tokenizerConfigName, `{"chat_template": "old", "bos_token": {"content": "s"}}`)
	if got, err := configuration(); err != nil || got != `{"bos_token":{"content":"s"},`+template+`}` {
		t.Errorf("both: got %s, %v", got, err)
	}
	for _, bad := range []string{"[]", "null", "{"} {
		write(tokenizerConfigName, bad)
		if _, err := configuration(); diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("configuration %s: got %v", bad, err)
		}
	}
}
