package models

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models/safetensors"
	"github.com/hetc/hetc/planir/op"
)

// Synthetic weights are bf16 and normally distributed: projections with a deviation of
// 0.8/sqrt(fan-in), those that write the residual stream 0.3 of that, embeddings and biases 0.02. Six residual
// channels have large norm gains, and three of them large rows in the residual writers, because
// trained models have such outliers and quantisation is decided by them.
const (
	projectionScale = 0.8
	residualScale   = 0.3
	embeddingScale  = 0.02
	outlierRowScale = 10
	outlierRows     = 3 // of the channels with outlier gains
)

// outlierGains are the gains of the channels with outliers, the largest first; other gains are 1.
var outlierGains = []float64{8, 6, 5, 4, 4, 3}

// Shards are at most maxShardBytes; a chunk is what one goroutine generates at a time. The weights
// do not depend on either.
const (
	maxShardBytes = 2_000_000_000
	synthChunk    = 1 << 20 // values
)

// outlierChannels are spread over the residual stream, the strongest first.
func outlierChannels(hidden int) []int {
	out := make([]int, len(outlierGains))
	for i := range out {
		out[i] = (2*i + 1) * hidden / (2*len(out) + 1)
	}
	return out
}

// role is what a tensor does in the model, which decides how its values are drawn.
type role int

const (
	projection role = iota
	residual        // a projection added to the residual stream
	embedding
	gain     // of a norm over the residual stream
	headGain // of a norm over heads
	bias
)

// role finds out what a weight does from the first node that uses it.
func (g *Graph) role(weight *op.Weight) role {
	for _, section := range g.Sections {
		for i := range section.Nodes {
			if at := slices.Index(section.Nodes[i].W, weight.Name); at >= 0 {
				return section.roleIn(&section.Nodes[i], at)
			}
		}
	}
	return projection
}

// roleIn returns what a node does with its weight at a position: the weights of its operators follow one another.
func (s *Section) roleIn(node *Node, at int) role {
	for _, operator := range node.Ops {
		names := operator.Sig().W
		if at >= len(names) {
			at -= len(names)
			continue
		}
		switch {
		case operator.Kind == op.Embed:
			return embedding
		case operator.Kind == op.QKNorm:
			return headGain
		case names[at] == "gain":
			return gain
		case names[at] == "bias":
			return bias
		}
		break
	}
	if s.addsToResidual(node.Out[0]) {
		return residual
	}
	return projection
}

// addsToResidual reports whether a value reaches an addition with nothing but sums, gates and norms between.
func (s *Section) addsToResidual(value string) bool {
	for _, node := range s.Nodes {
		if !slices.Contains(node.In, value) || slices.Contains(node.Out, value) {
			continue
		}
		switch node.Ops[0].Kind {
		case op.Add:
			return true
		case op.Combine, op.Gate, op.Norm, op.LayerNorm:
			if node.In[0] == value && s.addsToResidual(node.Out[0]) {
				return true
			}
		}
	}
	return false
}

// synthTensor is a tensor to be written: how its values are drawn, and where they go.
type synthTensor struct {
	name   string
	shape  []int
	role   role
	plus   float32 // is added when the model reads it
	fanIn  int     // rows of the weight it is part of
	file   int     // index of its shard
	offset int64   // of its data in the shard, bytes
}

// Synth writes a Hugging Face directory with the shapes of a catalog entry and random weights that
// depend on seed alone. It has no tokenizer, and config.json says that it is synthetic. The directory
// appears complete or not at all; one that exists and is not empty is refused. A name that ends in .gguf
// is written as a GGUF file with matrices of type t instead.
func Synth(ctx context.Context, model *Model, dir string, seed uint64, elementType op.Type) error {
	if model.Dir != "" {
		return diag.New(diag.ClassInput, "synthesise model %q: not a catalog entry", model.Name).
			WithHint("catalog: %s", strings.Join(CatalogNames(), ", "))
	}
	if isGGUF(dir) {
		return model.synthGGUF(ctx, dir, seed, elementType)
	}
	err := wholefile.Directory(dir, func(dir string) error { return model.synthFiles(ctx, dir, seed) })
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return diag.New(diag.ClassInterrupted, "synthesise model %q: %w", model.Name, err)
	}
	return diag.New(diag.ClassOr(err, diag.ClassIO), "synthesise model %q: %w", model.Name, err)
}

// synthFiles writes the directory: the configuration, the headers of all shards, then values by all cores.
func (m *Model) synthFiles(ctx context.Context, dir string, seed uint64) error {
	if err := writeJSON(filepath.Join(dir, configName), m.synthConfig(seed)); err != nil {
		return err
	}
	tensors, shards := m.synthTensors()
	files := make([]*os.File, len(shards))
	defer func() {
		for _, file := range files {
			file.Close() // harmless where it is closed already, or nil
		}
	}()
	index := map[string]string{}
	total := int64(0)
	for i, shard := range shards {
		name := singleName
		if len(shards) > 1 {
			name = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))
		}
		// Headers first: with all offsets known, values can be drawn in any order and written in place.
		offsets, err := createShard(&files[i], filepath.Join(dir, name), shard)
		if err != nil {
			return err
		}
		for _, tensor := range shard {
			index[tensor.Name] = name
			// Two bytes for each: synthetic models are stored as bfloat16.
			total += 2 * elements(tensor.Shape)
		}
		for j := range tensors {
			if tensors[j].file == i {
				tensors[j].offset = offsets[tensors[j].name]
			}
		}
	}
	if len(shards) > 1 {
		doc := map[string]any{"metadata": map[string]any{"total_size": total}, "weight_map": index}
		if err := writeJSON(filepath.Join(dir, indexName), doc); err != nil {
			return err
		}
	}
	if err := m.drawValues(ctx, files, tensors, seed); err != nil {
		return err
	}
	for _, file := range files {
		// On disk before the caller renames the folder to its name, by which it would be taken for whole.
		if err := errors.Join(file.Sync(), file.Close()); err != nil {
			return err
		}
	}
	return nil
}

// createShard writes the beginning of a shard and returns where the data of its tensors belongs.
func createShard(file **os.File, path string, shard []safetensors.Tensor) (map[string]int64, error) {
	header, offsets, err := safetensors.Layout(shard, map[string]string{"format": "pt"})
	if err != nil {
		return nil, err
	}
	if *file, err = os.Create(path); err != nil {
		return nil, err
	}
	if _, err := (*file).WriteAt(header, 0); err != nil {
		return nil, err
	}
	out := map[string]int64{}
	for i, tensor := range shard {
		out[tensor.Name] = offsets[i]
	}
	return out, nil
}

// drawValues fills the shards, one chunk of a tensor per call of a goroutine.
func (m *Model) drawValues(ctx context.Context, files []*os.File, tensors []synthTensor, seed uint64) error {
	type chunk struct {
		tensor *synthTensor
		from   int64
	}
	var chunks []chunk
	for i := range tensors {
		for from := int64(0); from < elements(tensors[i].shape); from += synthChunk {
			chunks = append(chunks, chunk{&tensors[i], from})
		}
	}
	tables, channels := newQuantiles(), outlierChannels(m.Hidden)
	return parallel(len(chunks), func(i int) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		tensor, from := chunks[i].tensor, chunks[i].from
		buf := make([]byte, 2*min(synthChunk, elements(tensor.shape)-from))
		tensor.fill(buf, from, seed, tables, channels)
		_, err := files[tensor.file].WriteAt(buf, tensor.offset+2*from)
		return err
	})
}

// synthConfig returns the config.json of a synthetic model.
func (m *Model) synthConfig(seed uint64) map[string]any {
	config := maps.Clone(m.config)
	delete(config, "dtype")
	config["torch_dtype"] = "bfloat16"
	config[syntheticKey] = map[string]any{"model": m.Name, "seed": seed}
	return config
}

// synthTensors lists the tensors and spreads them over shards in the order of their names.
func (m *Model) synthTensors() ([]synthTensor, [][]safetensors.Tensor) {
	// A tensor may be part of a weight: the weight says what it does.
	roles, fanIn, plus := map[string]role{}, map[string]int{}, map[string]float32{}
	m.graph.eachSource(func(w *op.Weight, _ int, name string) {
		if _, seen := roles[name]; !seen { // a tied head stays an embedding
			roles[name], fanIn[name], plus[name] = m.graph.role(w), w.K, w.Plus
		}
	})
	var out []synthTensor
	var shards [][]safetensors.Tensor
	// A full shard to begin with, so that the first tensor opens one.
	size := int64(maxShardBytes)
	for _, needed := range m.required() {
		bytes := 2 * elements(needed.shape)
		if size+bytes > maxShardBytes {
			shards, size = append(shards, nil), 0
		}
		size += bytes
		last := len(shards) - 1
		shards[last] = append(shards[last], safetensors.Tensor{Name: needed.name, Type: op.BF16, Shape: needed.shape})
		out = append(out, synthTensor{
			name: needed.name, shape: needed.shape, file: last,
			role: roles[needed.name], plus: plus[needed.name], fanIn: fanIn[needed.name],
		})
	}
	return out, shards
}

// fill writes values [from, from+len(buf)/2) as bf16. Value i is drawn by 16 bits of the i/4-th word
// of the tensor's own random sequence, so that chunks need no common state.
func (t *synthTensor) fill(buf []byte, from int64, seed uint64, tables *quantiles, channels []int) {
	if t.role == gain || t.role == headGain {
		t.fillGains(buf, from, channels)
		return
	}
	scale := projectionScale / math.Sqrt(float64(t.fanIn))
	switch t.role {
	case embedding, bias:
		scale = embeddingScale
	case residual:
		scale *= residualScale
	}
	plain := tables.scaled(scale)
	outlier := plain
	if t.role == residual {
		outlier = tables.scaled(scale * outlierRowScale)
	}
	// Row by row: rows of outlier channels have a table of their own.
	key := sha256.Sum256(fmt.Appendf(nil, "hetc.synth/1 %d %s", seed, t.name))
	state := binary.LittleEndian.Uint64(key[:])
	cols := int64(t.shape[len(t.shape)-1])
	end := from + int64(len(buf)/2)
	for i := from; i < end; {
		table := plain
		if slices.Contains(channels[:outlierRows], int(i/cols)) {
			table = outlier
		}
		rowEnd := min((i/cols+1)*cols, end)
		for ; i < rowEnd; i++ {
			word := mix(state + uint64(i/4)*0x9e3779b97f4a7c15)
			binary.LittleEndian.PutUint16(buf[2*(i-from):], table[uint16(word>>(16*(i%4)))])
		}
	}
}

// fillGains writes gains of 1, and larger ones for the outlier channels of the residual stream.
func (t *synthTensor) fillGains(buf []byte, from int64, channels []int) {
	for i := range len(buf) / 2 {
		value := 1.0
		if channel := slices.Index(channels, int(from)+i); channel >= 0 && t.role == gain {
			value = outlierGains[channel]
		}
		binary.LittleEndian.PutUint16(buf[2*i:], number.FloatToBrain(float32(value-float64(t.plus))))
	}
}

// mix returns the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// quantiles turns 16 random bits into a normally distributed value: entry i is the (i+0.5)/65536
// quantile of the standard normal distribution.
type quantiles struct {
	values [1 << 16]float64

	mu      sync.Mutex
	byScale map[float64]*[1 << 16]uint16
}

// newQuantiles computes the table from the inverse error function; it is antisymmetric.
func newQuantiles() *quantiles {
	tables := &quantiles{byScale: map[float64]*[1 << 16]uint16{}}
	half := len(tables.values) / 2
	for i := range half {
		value := math.Sqrt2 * math.Erfinv((float64(i)+0.5)/float64(half))
		tables.values[half+i], tables.values[half-1-i] = value, -value
	}
	return tables
}

// scaled returns the table times scale as bf16.
func (q *quantiles) scaled(scale float64) *[1 << 16]uint16 {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.byScale[scale]
	if out == nil {
		out = new([1 << 16]uint16)
		for i, value := range q.values {
			out[i] = number.FloatToBrain(float32(value * scale))
		}
		q.byScale[scale] = out
	}
	return out
}

// writeJSON writes a JSON file and waits until it is on the disk.
func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Write(append(data, '\n')); err != nil {
		return err
	}
	return file.Sync()
}
