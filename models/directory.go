package models

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/models/gguf"
	"github.com/hetc/hetc/models/safetensors"
	"github.com/hetc/hetc/planir/op"
)

// Files of a Hugging Face directory.
const (
	configName     = "config.json"
	generationName = "generation_config.json"
	singleName     = "model.safetensors"
	indexName      = "model.safetensors.index.json"

	maxShards   = 4096
	maxReported = 10 // problems of one kind named in an error
)

// Open opens a model: a directory with config.json and safetensors, a GGUF file, or the name of a catalog
// entry (shapes only). A directory or file of that name wins. The caller closes the model.
func Open(nameOrDir string) (*Model, error) {
	st, err := os.Stat(nameOrDir)
	if err == nil && st.IsDir() {
		return openDir(nameOrDir)
	}
	if isGGUF(nameOrDir) {
		return openGGUF(nameOrDir)
	}
	if model, ok, err := openCatalog(nameOrDir); ok || err != nil {
		return model, err
	}
	if err == nil {
		return nil, diag.New(diag.ClassInput, "open model %q: a file, want a directory, a .gguf file or a catalog name",
			nameOrDir).
			WithHint("give the directory that holds config.json and *.safetensors")
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, diag.New(diag.ClassInput, "open model: %w", err)
	}
	names := CatalogNames()
	return nil, diag.New(diag.ClassInput, "open model %q: no such directory and no such catalog entry", nameOrDir).
		WithHint("%s (or give a directory with config.json and *.safetensors)", diag.DidYouMean(nameOrDir, names))
}

// noConfig returns the error of a directory without config.json: perhaps a GGUF file in it was meant.
func noConfig(dir string) error {
	const what = "open model %q: no %s in the directory: %w"
	problem := diag.New(diag.ClassInput, what, dir, configName, fs.ErrNotExist).
		WithHint("give the directory that holds config.json and *.safetensors, or a .gguf file")
	if files, err := filepath.Glob(filepath.Join(dir, "*.gguf")); err == nil && len(files) > 0 {
		problem.WithHint("did you mean the file %q?", files[0])
	}
	return problem
}

// openDir opens a Hugging Face directory. Its graph is built when the configuration is known, and again when the
// stored tensors are: they decide about a tied head and the type of the embedding table.
func openDir(dir string) (model *Model, err error) {
	cfg, err := readJSONFile(filepath.Join(dir, configName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noConfig(dir)
	}
	var opened *Model
	defer func() {
		if err == nil {
			return
		}
		model, err = nil, fmt.Errorf("open model %q: %w", dir, err)
		if opened != nil {
			opened.Close()
		}
	}()
	if err != nil {
		return nil, err
	}
	if model, err = cfg.model(); err != nil {
		return nil, err
	}
	// Tokens that end a text may stand in a file of their own, which need not exist.
	generation, err := readJSONFile(filepath.Join(dir, generationName))
	if err == nil {
		err = generation.generation(model)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	model.Dir, model.Name, model.config = dir, nameOf(abs), cfg.keys
	model.graph = decoderGraph(model)
	opened = model
	// Only now are tensors looked at: they may say that the head is not tied.
	stored, err := model.openFiles()
	if err != nil {
		return nil, err
	}
	stored = model.withPrefix(stored)
	if err := model.separateHead(stored); err != nil {
		return nil, err
	}
	err = model.bindTensors(slices.Sorted(maps.Keys(stored)), func(name string) (Tensor, string, bool) {
		tensor, base, ok := findStored(stored, name)
		return plainTensor{tensor}, base, ok
	})
	if err != nil {
		return nil, err
	}
	return model, model.checkWholeUse(stored)
}

// nameOf returns what a model at path is called: the last part of the path, with U+FFFD for bytes that are no UTF-8.
// Plans hold the name as text.
func nameOf(path string) string { return strings.ToValidUTF8(filepath.Base(path), "\uFFFD") }

// openGGUF opens a GGUF file, which says and holds what a directory does.
func openGGUF(path string) (model *Model, err error) {
	var file *gguf.File
	defer func() {
		if err == nil {
			return
		}
		model, err = nil, fmt.Errorf("open model %q: %w", path, err)
		if file != nil {
			file.Close()
		}
	}()
	if file, err = gguf.Open(path); err != nil {
		return nil, err
	}
	stored, err := file.Model()
	if err != nil {
		return nil, err
	}
	cfg := newConfig(stored.Config, func(string) string { return path })
	if model, err = cfg.model(); err != nil {
		return nil, err
	}
	model.unread, model.config = append(model.unread, stored.Unread...), stored.Config
	model.Dir, model.Name = path, strings.TrimSuffix(nameOf(path), ".gguf")
	model.files, model.gguf = []io.Closer{file}, file
	model.graph = decoderGraph(model)
	err = model.bindTensors(slices.Sorted(maps.Keys(stored.Tensors)), func(name string) (Tensor, string, bool) {
		tensor, ok := stored.Tensors[name]
		return tensor, name, ok
	})
	return model, err
}

// openFiles maps the model's files and returns their tensors by name.
func (m *Model) openFiles() (map[string]safetensors.Tensor, error) {
	// A single file needs no index; where both are there the file wins, as in the reference implementation.
	index := filepath.Join(m.Dir, indexName)
	shards := map[string][]string{singleName: nil}
	if _, err := os.Stat(filepath.Join(m.Dir, singleName)); err != nil {
		if shards, err = readShards(index); err != nil {
			return nil, err
		}
	}
	out := map[string]safetensors.Tensor{}
	for _, name := range slices.Sorted(maps.Keys(shards)) {
		file, err := safetensors.Open(filepath.Join(m.Dir, name))
		if err != nil {
			return nil, err
		}
		m.files = append(m.files, file)
		for _, want := range shards[name] {
			if _, ok := file.Tensor(want); !ok {
				return nil, diag.New(diag.ClassInput, "tensor %q: the index says it is in %q, which does not hold it",
					want, name).At("%s", index)
			}
		}
		for _, own := range file.Names() {
			if _, dup := out[own]; dup {
				return nil, diag.New(diag.ClassInput, "tensor %q is in several shards, the last one %q", own, name).
					At("%s", index)
			}
			out[own], _ = file.Tensor(own)
		}
	}
	return out, nil
}

// withPrefix returns the tensors with the names of a model that has a head. Files that were saved without one, such as
// those of models for embeddings, lack the prefix of all other tensors; the reference implementation adds it.
func (m *Model) withPrefix(stored map[string]safetensors.Tensor) map[string]safetensors.Tensor {
	const prefix = "model."
	embedding := m.decoder.names.embed + ".weight"
	_, whole := stored[embedding]
	_, bare := stored[strings.TrimPrefix(embedding, prefix)]
	if whole || !bare {
		return stored
	}
	out := map[string]safetensors.Tensor{}
	for name, tensor := range stored {
		if !strings.HasPrefix(name, m.decoder.names.head+".") {
			name = prefix + name
		}
		out[name] = tensor
	}
	return out
}

// noWeights returns the error of a directory that has no weights under the names by which they are found.
func noWeights(dir string) error {
	missing := diag.New(diag.ClassInput, "found neither %s nor %s", singleName, indexName)
	var others []string
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) == filepath.Ext(singleName) {
			others = append(others, entry.Name())
		}
	}
	switch len(others) {
	case 0:
		return missing.WithHint("only safetensors weights are read; convert others first " +
			"(save_pretrained with safe_serialization)")
	case 1:
		return missing.WithHint("if %q holds all weights, call it %s", others[0], singleName)
	}
	return missing.WithHint("of several files with weights %s says which tensor is in which: fetch it too", indexName)
}

// readShards reads the index of a model in several files.
func readShards(index string) (map[string][]string, error) {
	keys, err := readJSONFile(index)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noWeights(filepath.Dir(index))
	}
	if err != nil {
		return nil, err
	}
	return keys.shards()
}

// shards reads model.safetensors.index.json: shard file name -> tensor names, sorted. Shards are
// plain names of files beside the index, so that an index cannot reach outside its directory.
func (c *config) shards() (map[string][]string, error) {
	weights, ok := c.keys["weight_map"].(map[string]any)
	if !ok {
		c.fail("weight_map", "got %s, want an object of tensor names and file names", abbreviate(c.keys["weight_map"]))
		return nil, c.errs.Err()
	}
	out := map[string][]string{}
	for _, tensor := range slices.Sorted(maps.Keys(weights)) {
		name, ok := weights[tensor].(string)
		if !ok || !plainShardName(name) {
			c.fail("weight_map", "tensor %q: got %s, want the plain name of a .safetensors file",
				tensor, abbreviate(weights[tensor]))
			return nil, c.errs.Err()
		}
		out[name] = append(out[name], tensor)
	}
	if len(out) == 0 || len(out) > maxShards {
		c.fail("weight_map", "%d shards, want 1 to %d", len(out), maxShards)
	}
	return out, c.errs.Err()
}

// readJSONFile reads a JSON file of keys; errors.Is(err, fs.ErrNotExist) when there is none.
func readJSONFile(path string) (*config, error) {
	doc, err := decode.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return newDocument(doc)
}

// plainShardName accepts names that mean the same file on every system: ASCII letters, digits, "-", "_", ".".
func plainShardName(name string) bool {
	if len(name) > 255 || !strings.HasSuffix(name, ".safetensors") || name[0] == '.' {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		return !letter && !('0' <= r && r <= '9') && !strings.ContainsRune("-_.", r)
	})
}

// bindTensors keeps the tensors the graph needs after checking type and shape, and lists the others of those stored.
// The graph is built again for the type of the embedding table.
func (m *Model) bindTensors(stored []string, find func(name string) (t Tensor, base string, ok bool)) error {
	// Tensors that the graph does not use are listed rather than refused: some models store buffers.
	used, err := m.findTensors(stored, find)
	if err != nil {
		return err
	}
	for _, name := range stored {
		repeats := m.Tied && name == m.decoder.names.head+".weight" // of a tied head it repeats the table
		if !used[name] && !repeats {
			m.ignored = append(m.ignored, name)
		}
	}
	sort.Strings(m.ignored)
	table := m.tensors[m.decoder.names.embed+".weight"]
	m.Stored = table.Type()
	if _, ok := table.Plain(); !ok {
		m.Stored = op.F32 // rows are dequantised
	}
	m.graph = decoderGraph(m)
	return nil
}

// findTensors checks and keeps what the graph needs; all problems are one error. used are the names of what is
// stored, where that is not what the graph calls it.
func (m *Model) findTensors(
	stored []string, find func(name string) (t Tensor, base string, ok bool),
) (used map[string]bool, err error) {
	var missing []string
	missingHint := "a shard may be missing, or config.json describes another model"
	var errs diag.List
	m.tensors = map[string]Tensor{}
	used = map[string]bool{}
	for _, want := range m.required() {
		tensor, base, ok := find(want.name)
		used[base] = ok
		_, plain := tensor.(plainTensor)
		switch {
		case !ok:
			missing = append(missing, fmt.Sprintf("%q %v", want.name, want.shape))
			if quantisedForm(stored, want.name) {
				missingHint = quantisedHint
			}
		case !slices.Equal(tensor.Shape(), want.shape):
			problem := diag.New(diag.ClassInput, "tensor %q: got shape %v, want %v",
				want.name, tensor.Shape(), want.shape)
			errs = append(errs, problem.WithHint("config.json and the weights do not belong together"))
		case plain && tensor.Type() != op.F32 && tensor.Type() != op.F16 && tensor.Type() != op.BF16:
			problem := diag.New(diag.ClassInput, "tensor %q: got element type %q, want f32, f16 or bf16",
				want.name, tensor.Type())
			if tensor.Type() == "f64" {
				problem.WithHint("save the model as bfloat16: model.to(torch.bfloat16).save_pretrained(DIR)")
			} else {
				problem.WithHint(quantisedHint)
			}
			errs = append(errs, problem)
		default:
			m.tensors[want.name] = tensor
		}
	}
	if count := len(missing); count > 0 {
		problem := diag.New(diag.ClassInput, "%d of the tensors its graph needs are missing: %s", count,
			firstNames(missing))
		errs = append(errs, problem.WithHint("%s", missingHint))
	}
	if more := len(errs) - maxReported; more > 0 {
		errs = append(errs[:maxReported],
			diag.New(diag.ClassInput, "and %d more tensors with a wrong shape or type", more))
	}
	return used, errs.Err()
}

// quantisedForm reports whether a tensor is stored in a form of quantised weights, as in files of GPTQ, AWQ and
// compressed-tensors.
func quantisedForm(stored []string, name string) bool {
	base, isWeight := strings.CutSuffix(name, ".weight")
	return isWeight && slices.ContainsFunc([]string{".qweight", ".weight_packed"}, func(suffix string) bool {
		_, found := slices.BinarySearch(stored, base+suffix)
		return found
	})
}

// separateHead gives the model a head of its own where the configuration calls it tied, but another one is stored:
// the reference implementation uses what is stored.
func (m *Model) separateHead(stored map[string]safetensors.Tensor) error {
	// Some files store the table twice: equal bytes are still a tied head.
	head, ok1 := stored[m.decoder.names.head+".weight"]
	table, ok2 := stored[m.decoder.names.embed+".weight"]
	if !m.Tied || !ok1 || !ok2 {
		return nil
	}
	same := head.Type == table.Type
	err := mem.CatchFault(func() { same = same && bytes.Equal(head.Data, table.Data) })
	if err != nil {
		return diag.New(diag.ClassIO, "compare head and embedding: %w", err)
	}
	if !same {
		m.Tied = false
		m.graph = decoderGraph(m)
	}
	return nil
}

// checkWholeUse refuses tensors that hold several projections or experts, and more or less than the graph takes from
// them: values that nothing reads shift those behind them, and an expert that is not there has been read from another
// one.
func (m *Model) checkWholeUse(stored map[string]safetensors.Tensor) error {
	used := map[string]int64{} // values that the graph takes from a tensor
	for _, want := range m.required() {
		if _, base, _ := findStored(stored, want.name); base != want.name {
			used[base] += elements(want.shape)
		}
	}
	var errs diag.List
	for _, base := range slices.Sorted(maps.Keys(used)) {
		shape := stored[base].Shape
		if got := elements(shape); got != used[base] {
			problem := diag.New(diag.ClassInput, "tensor %q: got shape %v, which is %d values, want %d",
				base, shape, got, used[base])
			errs = append(errs, problem.WithHint("config.json and the weights do not belong together"))
		}
	}
	if more := len(errs) - maxReported; more > 0 {
		errs = append(errs[:maxReported], diag.New(diag.ClassInput, "and %d more tensors of a wrong size", more))
	}
	return errs.Err()
}

// rowsOfTensor names rows [from,to) of a stored tensor that holds several projections.
func rowsOfTensor(tensor string, from, to int) string {
	return fmt.Sprintf("%s[%d:%d]", tensor, from, to)
}

// findStored returns a tensor the graph names: a stored one, rows of one, or a matrix of one that holds all
// experts of a layer. base is the name of what is stored.
func findStored(stored map[string]safetensors.Tensor, name string) (tensor safetensors.Tensor, base string, ok bool) {
	base, ranges, part := strings.Cut(name, "[")
	if tensor, ok = stored[base]; ok {
		if part {
			var from, to int
			if parsed, err := fmt.Sscanf(ranges, "%d:%d]", &from, &to); parsed != 2 || err != nil {
				panic("BUG: tensor name " + name)
			}
			tensor = rowRange(tensor, from, to)
		}
		return tensor, base, true
	}
	// Not stored by itself: perhaps inside a tensor of all experts.
	for _, fused := range fusedNames {
		match := fused.name.FindStringSubmatch(name)
		if match == nil {
			continue
		}
		base = match[1] + fused.stored
		if tensor, ok = stored[base]; !ok {
			continue
		}
		if len(match) > 2 { // one expert
			expert, _ := strconv.Atoi(match[2])
			tensor = rowRange(tensor, expert, expert+1)
			if len(tensor.Shape) != 3 || tensor.Shape[0] != 1 {
				return tensor, base, true // another shape than wanted
			}
			tensor.Shape = tensor.Shape[1:]
			if fused.halves > 0 {
				half := tensor.Shape[0] / 2
				tensor = rowRange(tensor, fused.half*half, (fused.half+1)*half)
			}
		}
		return tensor, base, true
	}
	return tensor, name, false
}

// fusedNames are the other form in which mixtures are stored: all experts of a layer in one tensor, gate
// and up projection one behind the other.
var fusedNames = []struct {
	name         *regexp.Regexp // of the tensor that the graph names: layer prefix, expert
	stored       string         // behind the layer prefix
	half, halves int            // which half of the rows; halves 0: all rows
}{
	{name: regexp.MustCompile(`^(.*\.)block_sparse_moe\.gate\.weight$`), stored: "mlp.gate.weight"},
	{name: regexp.MustCompile(`^(.*\.)block_sparse_moe\.gate\.weight$`), stored: "mlp.router.weight"},
	{name: regexp.MustCompile(`^(.*\.)(?:block_sparse_moe|mlp)\.experts\.(\d+)\.(?:w1|gate_proj)\.weight$`),
		stored: "mlp.experts.gate_up_proj", half: 0, halves: 2},
	{name: regexp.MustCompile(`^(.*\.)(?:block_sparse_moe|mlp)\.experts\.(\d+)\.(?:w3|up_proj)\.weight$`),
		stored: "mlp.experts.gate_up_proj", half: 1, halves: 2},
	{name: regexp.MustCompile(`^(.*\.)(?:block_sparse_moe|mlp)\.experts\.(\d+)\.(?:w2|down_proj)\.weight$`),
		stored: "mlp.experts.down_proj"},
}

// rowRange is rows [from,to) of the first dimension, the whole tensor if it has fewer.
func rowRange(t safetensors.Tensor, from, to int) safetensors.Tensor {
	if len(t.Shape) == 0 || to > t.Shape[0] {
		return t
	}
	row := len(t.Data) / t.Shape[0]
	t.Data, t.Shape = t.Data[from*row:to*row], append([]int{to - from}, t.Shape[1:]...)
	return t
}

// firstNames joins the first names and counts the rest.
func firstNames(names []string) string {
	if len(names) <= maxReported {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxReported], ", "), len(names)-maxReported)
}
