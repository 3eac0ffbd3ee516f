package models

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/number"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models/gguf"
	"github.com/hetc/hetc/planir/op"
)

// isGGUF tells a GGUF file from a directory by its name.
func isGGUF(path string) bool { return strings.HasSuffix(path, ".gguf") }

// Export writes a model with its tokenizer as a GGUF file whose matrices have type t (f32, f16, bf16,
// q8_0, q4_0). What it wrote is opened again: a model that the format has no form for is refused rather
// than changed. The file appears complete or not at all.
func Export(ctx context.Context, model *Model, path string, elementType op.Type) error {
	if !model.HasWeights() {
		return model.noWeights("export to %q", path)
	}
	files, err := model.TokenizerFiles()
	if err != nil {
		return err
	}
	directory := gguf.Directory{
		Name: model.Name, Config: model.exportConfig(),
		Tokenizer: files["tokenizer"], TokenizerConfig: files["config"],
		Names:  slices.Sorted(maps.Keys(model.tensors)),
		Tensor: func(name string) (gguf.Matrix, error) { return model.Tensor(name) },
	}
	return exportChecked(ctx, model, path, directory, elementType)
}

// exportConfig returns the config.json of the model as it was understood: values that the file left out or that other
// files overrule are written out, since GGUF has no defaults of Hugging Face's.
func (m *Model) exportConfig() map[string]any {
	config := maps.Clone(m.config)
	for key, value := range map[string]int{
		"num_key_value_heads": m.KVHeads, "head_dim": m.HeadDim, "num_experts_per_tok": m.ExpertsPerToken,
	} {
		if config[key] == nil && value > 0 {
			config[key] = int64(value)
		}
	}
	config[m.decoder.epsKey] = m.NormEps
	// Only tokens that the model can produce: the file may name others.
	delete(config, "eos_token_id")
	delete(config, "bos_token_id")
	if len(m.EOS) > 0 {
		eos := make([]any, len(m.EOS))
		for i, id := range m.EOS {
			eos[i] = int64(id)
		}
		config["eos_token_id"] = eos
	}
	if m.BOS >= 0 {
		config["bos_token_id"] = int64(m.BOS)
	}
	config["tie_word_embeddings"] = m.Tied
	return config
}

// exportChecked writes the file beside its place, compares what it says with m, and puts it there.
func exportChecked(ctx context.Context, model *Model, path string, directory gguf.Directory, t op.Type) error {
	failed := func(err error) error {
		return diag.New(diag.ClassIO, "export model %q: %w", model.Name, err)
	}
	pending, err := wholefile.Create(path)
	if err != nil {
		return err
	}
	defer pending.Abandon()
	buffered := bufio.NewWriterSize(pending, 1<<18)
	err = gguf.Export(ctx, buffered, directory, t)
	if err == nil {
		err = buffered.Flush()
	}
	if err != nil {
		if diag.ClassOf(err) == diag.ClassInternal {
			err = failed(err)
		}
		return err
	}
	// Read back what was written: the comparison covers every key, whatever the exporter believed.
	got, err := openGGUF(pending.Name())
	if err != nil {
		return diag.New(diag.ClassInternal, "export model %q: read back: %w", model.Name, err)
	}
	defer got.Close()
	if what := difference(got, model); what != "" {
		return diag.New(diag.ClassInput, "export model %q: %s has no form in GGUF that is supported", model.Name, what)
	}
	if err := got.Close(); err != nil {
		return failed(err)
	}
	if err := pending.Commit(); err != nil {
		return failed(err)
	}
	return nil
}

// difference names the first operator or weight that two models do not share, "" if they compute the same. It
// compares their graphs with numbers as float32, which is how GGUF stores them.
func difference(got, want *Model) string {
	if got.Tied != want.Tied {
		return "a tied head"
	}
	// Both graphs come from the same builder, so equal models have equal sections in equal order.
	gotGraph, wantGraph := decoderGraph(got), decoderGraph(want)
	for i := range max(len(gotGraph.Sections), len(wantGraph.Sections)) {
		a, b := gotGraph.sectionAt(i), wantGraph.sectionAt(i)
		if a.Name != b.Name || a.First != b.First || len(a.Nodes) != len(b.Nodes) {
			return fmt.Sprintf("the section %q", cmp.Or(b.Name, "nothing"))
		}
		for j, node := range b.Nodes {
			for at, operator := range node.Ops {
				if ops := a.Nodes[j].Ops; at >= len(ops) || rounded(ops[at]) != rounded(operator) {
					return fmt.Sprintf("operator %q of %q", operator.Kind, b.Name+"."+node.Name)
				}
			}
		}
	}
	for _, weight := range wantGraph.Weights {
		other := gotGraph.Weight(weight.Name)
		if !slices.Equal(other.Const, weight.Const) || other.Plus != weight.Plus {
			return fmt.Sprintf("weight %q", weight.Name)
		}
	}
	return ""
}

// sectionAt returns the section at a position, an empty one behind the last.
func (g *Graph) sectionAt(i int) Section {
	if i >= len(g.Sections) {
		return Section{}
	}
	return g.Sections[i]
}

// rounded returns an operator with its numbers as float32, and without the type of the embedding table.
func rounded(o op.Op) op.Op {
	for _, number := range []*float64{&o.Eps, &o.Cap, &o.Scale, &o.Amplitude, &o.LongAmplitude, &o.NTK, &o.Jitter} {
		*number = float64(float32(*number))
	}
	o.Table = ""
	return o
}

// synthGGUF writes synthetic weights as they are drawn, with no directory in between.
func (m *Model) synthGGUF(ctx context.Context, path string, seed uint64, elementType op.Type) error {
	tensors, _ := m.synthTensors()
	byName := map[string]*synthTensor{}
	directory := gguf.Directory{Name: fmt.Sprintf("%s, random weights of seed %d",
		m.Name, seed), Config: m.exportConfig()}
	for i := range tensors {
		byName[tensors[i].name] = &tensors[i]
		directory.Names = append(directory.Names, tensors[i].name)
	}
	tables, channels := newQuantiles(), outlierChannels(m.Hidden)
	directory.Tensor = func(name string) (gguf.Matrix, error) {
		tensor, ok := byName[name]
		if !ok {
			return nil, diag.New(diag.ClassInternal, "synthesise model %q: unknown tensor %q", m.Name, name)
		}
		return &drawn{tensor, seed, tables, channels}, nil
	}
	return exportChecked(ctx, m, path, directory, elementType)
}

// drawn is a synthetic tensor whose values are drawn when they are read.
type drawn struct {
	*synthTensor
	seed     uint64
	tables   *quantiles
	channels []int // with outliers, see outlierChannels
}

// Shape implements gguf.Matrix.
func (d *drawn) Shape() []int { return d.shape }

// Read implements gguf.Matrix: it draws the values as Synth does, rounded to bf16.
func (d *drawn) Read(dst []float32, row0, row1, col0, col1 int) error {
	_, cols := matrixShape(d.shape)
	buf := make([]byte, 2*(col1-col0))
	for row := row0; row < row1; row++ {
		d.fill(buf, int64(row)*int64(cols)+int64(col0), d.seed, d.tables, d.channels)
		number.Decode(dst[:col1-col0], buf, op.BF16)
		dst = dst[col1-col0:]
	}
	return nil
}
