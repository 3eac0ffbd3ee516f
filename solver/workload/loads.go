package workload

import (
	"crypto/sha256"
	_ "embed" // the traced example
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/solver/problem"
)

// LoadsSchema identifies the format of expert loads. Those before it are read, too: the first is the same, and the
// second also had the saliency of rows, which is left out.
const LoadsSchema = "hetc.loads/3"

// earlierLoads are the formats before LoadsSchema.
var earlierLoads = []string{"hetc.loads/1", "hetc.loads/2"}

// Limits of a loads file.
const (
	maxLoadsBytes  = 256 << 20
	maxLoadLayers  = 4096
	maxLoadExperts = 4096
	maxLoadChunks  = 1 << 16
	maxLoadTokens  = 1 << 15 // of a chunk
	maxLoadCells   = problem.MaxTierLoads
)

// Loads is how many rows a router sent to every expert: of consecutive chunks of a text, as a traced model
// really did, or drawn from a distribution (synthetic).
type Loads struct {
	Schema string `json:"schema" yaml:"schema"`
	Source string `json:"source" yaml:"source" decode:"required"` // traced, synthetic
	// Model is the name of the traced model, or of the one whose shape it is; ModelDigest is a traced one's.
	Model       string `json:"model" yaml:"model" decode:"required"`
	ModelDigest string `json:"model_digest,omitempty" yaml:"model_digest,omitempty"`
	Text        string `json:"text_sha256,omitempty" yaml:"text_sha256,omitempty"` // traced
	Generator   string `json:"generator,omitempty" yaml:"generator,omitempty"`     // synthetic: "zipf:1.2"
	Seed        uint64 `json:"seed,omitempty" yaml:"seed,omitempty"`               // synthetic

	Experts         int         `json:"experts" yaml:"experts" decode:"required"` // of a layer
	ExpertsPerToken int         `json:"experts_per_token" yaml:"experts_per_token" decode:"required"`
	ChunkTokens     int         `json:"chunk_tokens" yaml:"chunk_tokens" decode:"required"`
	Chunks          int         `json:"chunks" yaml:"chunks" decode:"required"`
	Layers          []LoadLayer `json:"layers" yaml:"layers" decode:"required"` // those with experts, in order
}

// LoadLayer is one layer of loads.
type LoadLayer struct {
	Layer int      `json:"layer" yaml:"layer"`                 // its number in the model
	Rows  []Counts `json:"rows" yaml:"rows" decode:"required"` // by expert: of every chunk
	// Saliency is what the second format had, by expert.
	Saliency []string `json:"saliency,omitempty" yaml:"saliency,omitempty"`
}

// Counts is a list of small numbers, as text "3 0 12".
type Counts []int32

// MarshalText implements encoding.TextMarshaler.
func (c Counts) MarshalText() ([]byte, error) {
	var text []byte
	for i, number := range c {
		if i > 0 {
			text = append(text, ' ')
		}
		text = strconv.AppendInt(text, int64(number), 10)
	}
	return text, nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Counts) UnmarshalText(text []byte) error {
	*c = nil
	if len(text) == 0 {
		return nil
	}
	if n := strings.Count(string(text), " ") + 1; n > maxLoadChunks {
		return diag.New(diag.ClassInput, "%d numbers, want at most %d", n, maxLoadChunks)
	}
	for s := range strings.SplitSeq(string(text), " ") {
		number, err := strconv.ParseUint(s, 10, 31)
		if err != nil || number > maxLoadTokens || strconv.FormatUint(number, 10) != s {
			return diag.New(diag.ClassInput,
				"number of rows %q, want whole numbers of 0..%d with single spaces between", clip(s), maxLoadTokens)
		}
		*c = append(*c, int32(number))
	}
	return nil
}

// clip shortens a text for messages.
func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "..."
	}
	return s
}

//go:embed loads/tiny-moe-kjv.json
var tracedExample []byte

// TracedExample are loads that were traced with a small trained model (loads/README.md): 4 layers of 16 experts, 2 a
// token.
func TracedExample() *Loads {
	loads, err := parseLoads("loads/tiny-moe-kjv.json", tracedExample)
	if err != nil {
		panic("BUG: the loads that hetc brings along: " + err.Error())
	}
	return loads
}

// ReadLoads reads a loads file. Mistakes are of class ClassInput, with their line.
func ReadLoads(path string) (*Loads, error) {
	doc, err := decode.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return decodeLoads(doc)
}

// parseLoads is ReadLoads of bytes; name is shown in errors.
func parseLoads(name string, data []byte) (*Loads, error) {
	doc, err := decode.ParseLarge(name, data, maxLoadsBytes)
	if err != nil {
		return nil, err
	}
	return decodeLoads(doc)
}

// decodeLoads decodes a document of this format or one before, and checks it.
func decodeLoads(doc *decode.Document) (*Loads, error) {
	var loads Loads
	schema := LoadsSchema
	if slices.Contains(earlierLoads, doc.Schema()) {
		schema = doc.Schema()
	}
	if err := doc.Into(schema, &loads); err != nil {
		return nil, err
	}
	if schema != LoadsSchema {
		for i := range loads.Layers {
			loads.Layers[i].Saliency = nil
		}
	}
	loads.Schema = LoadsSchema
	if err := loads.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", doc.Name(), err)
	}
	return &loads, nil
}

// Validate reports what contradicts itself. Every token goes to experts_per_token experts, each once.
func (l *Loads) Validate() error {
	check := &checker{code: "loads.value", most: 20}
	l.validateHead(check)
	if len(check.list) > 0 {
		return check.list.Err()
	}
	for i := range l.Layers {
		path := fmt.Sprintf("layers[%d]", i)
		layer := &l.Layers[i]
		check.want(within(layer.Layer, 0, maxLoadLayers-1) && (i == 0 || l.Layers[i-1].Layer < layer.Layer),
			path+".layer", "layer %d, want ascending numbers of 0..%d", layer.Layer, maxLoadLayers-1)
		if len(layer.Rows) != l.Experts {
			check.fail(path+".rows", "loads of %d experts, want %d", len(layer.Rows), l.Experts)
			continue
		}
		for expert, rows := range layer.Rows {
			check.want(len(rows) == l.Chunks, fmt.Sprintf("%s.rows[%d]", path, expert), "loads of %d chunks, want %d",
				len(rows), l.Chunks)
		}
		check.want(layer.Saliency == nil, path+".saliency", "format %s has no saliency", LoadsSchema)
		if len(check.list) == 0 {
			l.validateRows(check, layer, path)
		}
	}
	return check.list.Err()
}

// validateHead checks what the loads say of themselves. Sizes are bounded together before any list is walked.
func (l *Loads) validateHead(check *checker) {
	check.want(l.Schema == LoadsSchema, "schema", "schema is %q, want %q",
		l.Schema, LoadsSchema)
	switch l.Source {
	case "traced":
		check.want(len(l.ModelDigest) == 64, "model_digest",
			"digest %q of the traced model, want 64 hexadecimal digits",
			clip(l.ModelDigest))
	case "synthetic":
		check.want(l.Generator != "", "generator",
			"synthetic loads name no generator, want %s, or what they were made from", Generators)
	default:
		check.fail("source", "source is %q, want traced or synthetic", clip(l.Source))
	}
	check.want(within(l.Experts, 1, maxLoadExperts), "experts", "%d experts, want 1..%d", l.Experts, maxLoadExperts)
	check.want(within(l.ExpertsPerToken, 1, l.Experts), "experts_per_token", "%d experts a token, want 1..%d",
		l.ExpertsPerToken, l.Experts)
	check.want(within(l.ChunkTokens, 1, maxLoadTokens), "chunk_tokens", "chunks of %d tokens, want 1..%d",
		l.ChunkTokens, maxLoadTokens)
	check.want(within(l.Chunks, 1, maxLoadChunks), "chunks", "%d chunks, want 1..%d", l.Chunks, maxLoadChunks)
	check.want(within(len(l.Layers), 1, maxLoadLayers), "layers", "%d layers, want 1..%d", len(l.Layers), maxLoadLayers)
	check.want(float64(len(l.Layers))*float64(l.Experts)*float64(l.Chunks) <= maxLoadCells, "layers",
		"%d layers of %d experts in %d chunks are more than %d numbers",
		len(l.Layers), l.Experts, l.Chunks, maxLoadCells)
}

// validateRows checks that each chunk's rows are what its tokens send to experts.
func (l *Loads) validateRows(check *checker, layer *LoadLayer, path string) {
	for chunk := range l.Chunks {
		sum := 0
		for expert, rows := range layer.Rows {
			n := int(rows[chunk])
			check.want(within(n, 0, l.ChunkTokens), fmt.Sprintf("%s.rows[%d]", path, expert),
				"chunk %d has %d tokens, and %d of them go to one expert", chunk, l.ChunkTokens, n)
			sum += n
		}
		if want := l.ChunkTokens * l.ExpertsPerToken; sum != want {
			check.fail(path, "%d rows in chunk %d, want %d: %d tokens to %d experts each",
				sum, chunk, want, l.ChunkTokens, l.ExpertsPerToken)
			break
		}
	}
}

// Encode returns the file: JSON, a line for each expert.
func (l *Loads) Encode() ([]byte, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(l, "", " ")
	if err != nil {
		return nil, fmt.Errorf("encode loads: %w", err)
	}
	return append(text, '\n'), nil
}

// Digest returns the identity of the loads: hex SHA-256 of their canonical JSON.
func (l *Loads) Digest() (string, error) {
	text, err := json.Marshal(l)
	if err != nil {
		return "", fmt.Errorf("digest of loads: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// Fits reports whether the loads are of the model: of itself if traced, else of its shape.
func (l *Loads) Fits(model *models.Model) error {
	if model.Experts == 0 {
		return diag.New(diag.ClassInput, "model %q has no experts, and loads are of %d", model.Name, l.Experts).
			WithHint("leave --loads out")
	}
	layers := model.ExpertLayers()
	if l.Experts != model.Experts || l.ExpertsPerToken != model.ExpertsPerToken || len(l.Layers) != len(layers) {
		return diag.New(diag.ClassInput,
			"loads are of %d layers with %d experts, %d a token, and model %q has %d with %d, %d a token",
			len(l.Layers), l.Experts, l.ExpertsPerToken, model.Name, len(layers), model.Experts, model.ExpertsPerToken).
			WithHint("make them for this model: hetc loads --model %s", model.Name)
	}
	for i, layer := range l.Layers {
		if layer.Layer != layers[i] {
			return diag.New(diag.ClassInput, "loads are of layer %d, and the experts of model %q are in layers %v",
				layer.Layer, model.Name, layers)
		}
	}
	if l.Source == "traced" {
		digest, err := model.Digest()
		if err != nil {
			return err
		}
		if digest != l.ModelDigest {
			return diag.New(diag.ClassInput, "loads were traced with model %q (digest %.12s), and this is %q (%.12s)",
				l.Model, l.ModelDigest, model.Name, digest).
				WithHint("trace this model: hetc loads --model DIR --text FILE")
		}
	}
	return nil
}

// As repeats the layers of loads for a model of another depth, with the same experts: a stand-in where the model
// itself was not traced. The result is synthetic and says from what it was made.
func (l *Loads) As(model *models.Model) (*Loads, error) {
	out := *l
	out.Source, out.Model, out.ModelDigest, out.Text = "synthetic", model.Name, "", ""
	out.Generator = fmt.Sprintf("%s of %s, layers repeated", l.Source, l.Model)
	out.Layers = nil
	for i, layer := range model.ExpertLayers() {
		out.Layers = append(out.Layers, LoadLayer{Layer: layer, Rows: l.Layers[i%len(l.Layers)].Rows})
	}
	return &out, out.Fits(model)
}

// Generators are the named distributions of Synthetic.
const Generators = "uniform, zipf:EXPONENT, hot:EXPERTS:SHARE"

// Synthetic draws loads for a model: every token goes to different experts, drawn by their popularity, which every
// layer gives to its experts in another order. Generators: uniform; zipf:1.2, popularity in proportion to 1/rank^1.2;
// hot:4:0.5, where 4 experts share half of it evenly and all others the rest.
func Synthetic(model *models.Model, generator string, tokens, chunks int, seed uint64) (*Loads, error) {
	if model.Experts == 0 {
		return nil, diag.New(diag.ClassInput, "model %q has no experts", model.Name).
			WithHint("hetc models list shows which have")
	}
	share, err := popularity(generator, model.Experts)
	if err != nil {
		return nil, err
	}
	loads := &Loads{
		Schema: LoadsSchema, Source: "synthetic", Model: model.Name, Generator: generator, Seed: seed,
		Experts: model.Experts, ExpertsPerToken: model.ExpertsPerToken, ChunkTokens: tokens, Chunks: chunks,
	}
	layers := model.ExpertLayers()
	cells := float64(len(layers)) * float64(model.Experts) * float64(chunks)
	if cells > maxLoadCells || !within(tokens, 1, maxLoadTokens) || !within(chunks, 1, maxLoadChunks) {
		return nil, diag.New(diag.ClassInput, "%d chunks of %d tokens, want 1..%d of 1..%d",
			chunks, tokens, maxLoadChunks, maxLoadTokens)
	}
	random := rand.New(rand.NewPCG(seed, 0x10ad5))
	for _, layer := range layers {
		random.Shuffle(len(share), func(i, j int) { share[i], share[j] = share[j], share[i] })
		y := LoadLayer{Layer: layer}
		for _, rows := range problem.Route(random, share, tokens, model.ExpertsPerToken, chunks) {
			y.Rows = append(y.Rows, rows)
		}
		loads.Layers = append(loads.Layers, y)
	}
	return loads, loads.Validate()
}

// popularity parses a generator.
func popularity(generator string, experts int) ([]float64, error) {
	name, rest, _ := strings.Cut(generator, ":")
	switch name {
	case "uniform":
		if rest == "" {
			return problem.Zipf(experts, 0), nil
		}
	case "zipf":
		if x, err := strconv.ParseFloat(rest, 64); err == nil && x >= 0 && x <= 8 {
			return problem.Zipf(experts, x), nil
		}
	case "hot":
		if shares := hotShares(rest, experts); shares != nil {
			return shares, nil
		}
	}
	return nil, diag.New(diag.ClassUsage, "generator %q, want one of %s", clip(generator), Generators).
		WithHint("zipf:1.2, or hot:4:0.5 with fewer than %d hot experts", experts)
}

// hotShares parses "4:0.5": so many hot experts, and the share that they have together. It returns nil for another
// text.
func hotShares(text string, experts int) []float64 {
	number, part, _ := strings.Cut(text, ":")
	hot, err := strconv.Atoi(number)
	if err != nil || hot < 1 || hot >= experts {
		return nil
	}
	share, err := strconv.ParseFloat(part, 64)
	isShare := share > 0 && share < 1
	if err != nil || !isShare {
		return nil
	}

	out := make([]float64, experts)
	for expert := range out {
		if expert < hot {
			out[expert] = share / float64(hot)
		} else {
			out[expert] = (1 - share) / float64(experts-hot)
		}
	}
	return out
}

// Merged returns the loads of chunks n times as long, by layer and expert, of the first chunks; what is left at the end
// is not used.
func (l *Loads) Merged(n, chunks int) [][][]int32 {
	chunks /= n
	out := make([][][]int32, len(l.Layers))
	for i := range out {
		out[i] = make([][]int32, l.Experts)
		for expert := range out[i] {
			rows := make([]int32, chunks)
			for j := range rows {
				for _, v := range l.Layers[i].Rows[expert][j*n : (j+1)*n] {
					rows[j] += v
				}
			}
			out[i][expert] = rows
		}
	}
	return out
}

// Scaled returns the loads of chunks of so many tokens, by layer and expert. Observed chunks are merged until they are
// as long, and the rows of longer ones are reduced in proportion, rounded up.
func (l *Loads) Scaled(tokens int) ([][][]int32, error) {
	n := (tokens + l.ChunkTokens - 1) / l.ChunkTokens
	if l.Chunks < n {
		return nil, diag.New(diag.ClassInput, "loads are of %d chunks of %d tokens, and a program has %d rows",
			l.Chunks, l.ChunkTokens, tokens).WithHint("make them from more text: hetc loads --windows, or --chunks")
	}
	out := l.Merged(n, l.Chunks)
	for _, experts := range out {
		for _, rows := range experts {
			for i, routed := range rows {
				rows[i] = int32((int64(routed)*int64(tokens) + int64(n*l.ChunkTokens) - 1) / int64(n*l.ChunkTokens))
			}
		}
	}
	return out, nil
}

// Imbalance returns how skewed a layer's routing is (NPUMoE sec. 4.1): the most that an expert gets on average over the
// mean of all.
func (l *Loads) Imbalance(layer int) float64 {
	most, all := 0.0, 0.0
	for _, rows := range l.Layers[layer].Rows {
		sum := 0.0
		for _, number := range rows {
			sum += float64(number)
		}
		most, all = math.Max(most, sum), all+sum
	}
	return most * float64(l.Experts) / all
}
