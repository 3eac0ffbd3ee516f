package models

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

const (
	configName     = "config.json"
	generationName = "generation_config.json"
	singleName     = "model.safetensors"
	indexName      = "model.safetensors.index.json"

	maxIndexBytes = 64 << 20
	maxShards     = 4096
	maxReported   = 10 // problems of one kind named in an error
)

// Open opens a model: a directory with config.json and safetensors, or the name of a catalog entry
// (shapes only). A directory of that name wins. The caller closes the model.
func Open(nameOrDir string) (*Model, error) {
	st, err := os.Stat(nameOrDir)
	if err == nil && st.IsDir() {
		return openDir(nameOrDir)
	}
	if m, ok, err := openCatalog(nameOrDir); ok || err != nil {
		return m, err
	}
	if err == nil {
		return nil, diag.New(diag.ClassInput, "open model %q: a file, want a directory or a catalog name", nameOrDir).
			WithHint("give the directory that holds config.json and *.safetensors")
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, diag.New(diag.ClassInput, "open model: %w", err)
	}
	names := CatalogNames()
	d := diag.New(diag.ClassInput, "open model %q: no such directory and no such catalog entry", nameOrDir)
	if near := nearest(nameOrDir, names); near != "" {
		return nil, d.WithHint("did you mean %q? catalog: %s", near, strings.Join(names, ", "))
	}
	return nil, d.WithHint("give a directory with config.json and *.safetensors, or one of the catalog: %s", strings.Join(names, ", "))
}

func openDir(dir string) (m *Model, err error) {
	fail := func(err error) error { return fmt.Errorf("open model %q: %w", dir, err) }
	path := filepath.Join(dir, configName)
	data, err := readBounded(path, maxConfigBytes)
	if err != nil {
		return nil, fail(err)
	}
	m, arch, err := parseConfig(path, data)
	if err != nil {
		return nil, fail(err)
	}
	path = filepath.Join(dir, generationName)
	if data, err := readBounded(path, maxConfigBytes); err == nil {
		if err := m.readGenerationConfig(path, data); err != nil {
			return nil, fail(err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fail(err)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fail(err)
	}
	m.Dir, m.Name = dir, filepath.Base(abs)
	m.graph = arch.graph(m)
	defer func() {
		if err != nil {
			m.Close()
		}
	}()
	stored, err := m.openFiles()
	if err != nil {
		return nil, fail(err)
	}
	if err := m.adopt(stored); err != nil {
		return nil, fail(err)
	}
	table, err := m.Tensor(m.graph.Weight("embed.table").From[0])
	if err != nil {
		return nil, fail(err)
	}
	m.Stored = table.Type
	m.graph = arch.graph(m)
	return m, nil
}

// openFiles maps the model's files and returns their tensors by name.
func (m *Model) openFiles() (map[string]Tensor, error) {
	single := filepath.Join(m.Dir, singleName)
	if _, err := os.Stat(single); err == nil {
		f, err := OpenFile(single)
		if err != nil {
			return nil, err
		}
		m.files = append(m.files, f)
		out := make(map[string]Tensor, len(f.tensors))
		for _, t := range f.tensors {
			out[t.Name] = t
		}
		return out, nil
	}
	path := filepath.Join(m.Dir, indexName)
	data, err := readBounded(path, maxIndexBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, diag.New(diag.ClassInput, "found neither %s nor %s", singleName, indexName).
			WithHint("only safetensors weights are read; convert others first (save_pretrained with safe_serialization)")
	}
	if err != nil {
		return nil, err
	}
	shards, err := parseIndex(data)
	if err != nil {
		return nil, diag.New(diag.ClassInput, "read weight index: %w", err).At("%s", path)
	}
	out := map[string]Tensor{}
	for _, name := range sortedKeys(shards) {
		f, err := OpenFile(filepath.Join(m.Dir, name))
		if err != nil {
			return nil, err
		}
		m.files = append(m.files, f)
		for _, want := range shards[name] {
			if _, ok := f.Tensor(want); !ok {
				return nil, diag.New(diag.ClassInput, "tensor %q: the index says it is in %q, which does not hold it", want, name).At("%s", path)
			}
		}
		for _, t := range f.tensors {
			if _, dup := out[t.Name]; dup {
				return nil, diag.New(diag.ClassInput, "tensor %q is in several shards, the last one %q", t.Name, name).At("%s", path)
			}
			out[t.Name] = t
		}
	}
	return out, nil
}

// parseIndex reads model.safetensors.index.json: shard file name -> tensor names, sorted. Shards
// are plain names of files beside the index, so that an index cannot reach outside its directory.
func parseIndex(data []byte) (map[string][]string, error) {
	keys, err := parseObject(data, maxIndexBytes)
	if err != nil {
		return nil, err
	}
	raw, ok := keys["weight_map"]
	if !ok {
		return nil, fmt.Errorf("key \"weight_map\" is missing")
	}
	c := &config{keys: nil, read: map[string]bool{}}
	if c.keys, err = parseObject(raw, maxIndexBytes); err != nil {
		return nil, fmt.Errorf("weight_map: %w", err)
	}
	if len(c.keys) > maxTensors {
		return nil, fmt.Errorf("weight_map: %d tensors, want at most %d", len(c.keys), maxTensors)
	}
	out := map[string][]string{}
	for _, tensor := range sortedKeys(c.keys) {
		var name string
		if !c.value(tensor, &name, "a file name") || !plainShardName(name) {
			return nil, fmt.Errorf("weight_map: tensor %q: got %s, want the plain name of a .safetensors file", tensor, brief(c.keys[tensor]))
		}
		out[name] = append(out[name], tensor)
	}
	if len(out) == 0 || len(out) > maxShards {
		return nil, fmt.Errorf("weight_map: %d shards, want 1 to %d", len(out), maxShards)
	}
	return out, nil
}

// plainShardName accepts names that mean the same file on every system: ASCII letters, digits, "-", "_", ".".
func plainShardName(name string) bool {
	if len(name) > 255 || !strings.HasSuffix(name, ".safetensors") || name[0] == '.' {
		return false
	}
	for _, r := range name {
		if !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_.", r)) {
			return false
		}
	}
	return true
}

// adopt keeps the tensors the graph needs after checking type and shape, and lists the others.
func (m *Model) adopt(stored map[string]Tensor) error {
	var missing []string
	var errs diag.List
	m.tensors = make(map[string]Tensor, len(stored))
	for _, want := range m.required() {
		t, ok := stored[want.name]
		switch {
		case !ok:
			missing = append(missing, fmt.Sprintf("%q %v", want.name, want.shape))
		case !slices.Equal(t.Shape, want.shape):
			errs = append(errs, diag.New(diag.ClassInput, "tensor %q: got shape %v, want %v", want.name, t.Shape, want.shape).
				WithHint("config.json and the weights do not belong together"))
		case t.Type != op.F32 && t.Type != op.F16 && t.Type != op.BF16:
			errs = append(errs, diag.New(diag.ClassInput, "tensor %q: got element type %q, want f32, f16 or bf16", want.name, t.Type))
		default:
			m.tensors[want.name] = t
		}
	}
	for name := range stored {
		if _, used := m.tensors[name]; !used {
			m.ignored = append(m.ignored, name)
		}
	}
	sort.Strings(m.ignored)
	if n := len(missing); n > 0 {
		errs = append(errs, diag.New(diag.ClassInput, "%d of the tensors its graph needs are missing: %s", n, some(missing)).
			WithHint("a shard may be missing, or config.json describes another model"))
	}
	if len(errs) > maxReported {
		n := len(errs) - maxReported
		errs = append(errs[:maxReported], diag.New(diag.ClassInput, "and %d more tensors with a wrong shape or type", n))
	}
	return errs.Err()
}

// some joins the first names and counts the rest.
func some(names []string) string {
	if len(names) <= maxReported {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxReported], ", "), len(names)-maxReported)
}

// nearest returns the name closest to got in edit distance, "" when none is near.
func nearest(got string, names []string) string {
	best, limit := "", 1+len(got)/3
	for _, n := range names {
		if len(got) >= 4 && strings.Contains(n, strings.ToLower(got)) {
			return n
		}
		if d := editDistance(strings.ToLower(got), n); d <= limit {
			best, limit = n, d-1
		}
	}
	return best
}

func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
