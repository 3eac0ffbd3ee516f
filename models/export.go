package models

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models/gguf"
	"github.com/hetc/hetc/planir/op"
)

func isGGUF(path string) bool { return strings.HasSuffix(path, ".gguf") }

// Export writes a model with its tokenizer as a GGUF file whose matrices have type t (f32, f16, bf16,
// q8_0, q4_0). What it wrote is opened again: a model that the format has no form for is refused rather
// than changed. The file appears complete or not at all.
func Export(ctx context.Context, m *Model, path string, t op.Type) error {
	if !m.HasWeights() {
		return m.noWeights("export to %q", path)
	}
	files, err := m.TokenizerFiles()
	if err != nil {
		return err
	}
	d := gguf.Directory{
		Name: m.Name, Config: m.exportConfig(),
		Tokenizer: files["tokenizer"], TokenizerConfig: files["config"],
		Names:  slices.Sorted(maps.Keys(m.tensors)),
		Tensor: func(name string) (gguf.Matrix, error) { return m.Tensor(name) },
	}
	return exportChecked(ctx, m, path, d, t)
}

// exportConfig is config.json with what is in force where it says nothing or something else.
func (m *Model) exportConfig() map[string]any {
	config := maps.Clone(m.config)
	for key, v := range map[string]int{"num_key_value_heads": m.KVHeads, "head_dim": m.HeadDim, "num_experts_per_tok": m.ExpertsPerToken} {
		if config[key] == nil && v > 0 {
			config[key] = int64(v)
		}
	}
	config[m.dec.epsKey] = m.NormEps
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
func exportChecked(ctx context.Context, m *Model, path string, d gguf.Directory, t op.Type) error {
	failed := func(err error) error {
		return diag.New(diag.ClassIO, "export model %q: %w", m.Name, err)
	}
	f, err := wholefile.Create(path)
	if err != nil {
		return err
	}
	defer f.Abandon()
	w := bufio.NewWriterSize(f, 1<<18)
	err = gguf.Export(ctx, w, d, t)
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		if diag.ClassOf(err) == diag.ClassInternal {
			err = failed(err)
		}
		return err
	}
	got, err := openGGUF(f.Name())
	if err != nil {
		return diag.New(diag.ClassInternal, "export model %q: read back: %w", m.Name, err)
	}
	defer got.Close()
	if what := difference(got, m); what != "" {
		return diag.New(diag.ClassInput, "export model %q: %s has no form in GGUF that is supported", m.Name, what)
	}
	if err := got.Close(); err != nil {
		return failed(err)
	}
	if err := f.Commit(); err != nil {
		return failed(err)
	}
	return nil
}

// difference names the first operator that two models do not share, "" if they compute the same. GGUF
// stores numbers as float32.
func difference(got, want *Model) string {
	if got.Tied != want.Tied {
		return "a tied head"
	}
	a, b := decoderGraph(got), decoderGraph(want)
	name := func(g *Graph, i int) string {
		if i < len(g.Sections) {
			return g.Sections[i].Name
		}
		return "nothing"
	}
	for i := range max(len(a.Sections), len(b.Sections)) {
		if name(&a, i) != name(&b, i) || len(a.Sections[i].Nodes) != len(b.Sections[i].Nodes) || a.Sections[i].First != b.Sections[i].First {
			return fmt.Sprintf("the section %q", name(&b, i))
		}
		for j, n := range b.Sections[i].Nodes {
			for k, o := range n.Ops {
				p := a.Sections[i].Nodes[j].Ops
				if k >= len(p) || rounded(p[k]) != rounded(o) {
					return fmt.Sprintf("operator %q of %q", o.Kind, b.Sections[i].Name+"."+n.Name)
				}
			}
		}
	}
	for i := range b.Weights {
		if w := &b.Weights[i]; !slices.Equal(a.Weight(w.Name).Const, w.Const) || a.Weight(w.Name).Plus != w.Plus {
			return fmt.Sprintf("weight %q", w.Name)
		}
	}
	return ""
}

// rounded is an operator with its numbers as float32, and without the type of the embedding table.
func rounded(o op.Op) op.Op {
	for _, v := range []*float64{&o.Eps, &o.Cap, &o.Scale, &o.Amplitude, &o.LongAmplitude, &o.NTK, &o.Jitter} {
		*v = float64(float32(*v))
	}
	o.Table = ""
	return o
}

// synthGGUF writes synthetic weights as they are drawn, with no directory in between.
func (m *Model) synthGGUF(ctx context.Context, path string, seed uint64, t op.Type) error {
	tensors, _ := m.synthTensors()
	byName := map[string]*synthTensor{}
	d := gguf.Directory{Name: fmt.Sprintf("%s, random weights of seed %d", m.Name, seed), Config: m.exportConfig()}
	for i := range tensors {
		byName[tensors[i].name] = &tensors[i]
		d.Names = append(d.Names, tensors[i].name)
	}
	tables, channels := newQuantiles(), outlierChannels(m.Hidden)
	d.Tensor = func(name string) (gguf.Matrix, error) {
		x, ok := byName[name]
		if !ok {
			return nil, diag.New(diag.ClassInternal, "synthesise model %q: unknown tensor %q", m.Name, name)
		}
		return &drawn{x, seed, tables, channels}, nil
	}
	return exportChecked(ctx, m, path, d, t)
}

// drawn is a synthetic tensor whose values are drawn when they are read.
type drawn struct {
	*synthTensor
	seed     uint64
	tables   *quantiles
	channels []int
}

func (d *drawn) Shape() []int { return d.shape }

func (d *drawn) Read(dst []float32, row0, row1, col0, col1 int) error {
	_, cols := matrixShape(d.shape)
	buf := make([]byte, 2*(col1-col0))
	for r := row0; r < row1; r++ {
		d.fill(buf, int64(r)*int64(cols)+int64(col0), d.seed, d.tables, d.channels)
		for i := range col1 - col0 {
			dst[i] = fromBF16(buf[2*i:])
		}
		dst = dst[col1-col0:]
	}
	return nil
}
