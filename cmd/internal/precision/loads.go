package precision

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/runtime/quality"
	"github.com/hetc/hetc/solver/workload"
)

// LoadTokens is the chunk length, in tokens, for which loads are recorded. Longer chunks are
// composed of these.
const LoadTokens = 64

// LoadsOptions are the flags of hetc loads.
type LoadsOptions struct {
	Model, Text, Synthetic, Out string
	Random                      bool // ids instead of a text
	Windows, Chunks             int
	Seed                        uint64
}

// Run counts the rows that a model's router sends to every expert, or draws them, and writes them
// unless the file holds the same.
func (o *LoadsOptions) Run(ctx context.Context, ui *cli.Streams) error {
	if err := wholefile.Writable(o.Out); err != nil {
		return err
	}
	model, err := models.Open(o.Model)
	if err != nil {
		return err
	}
	defer model.Close()
	var loads *workload.Loads
	if o.Synthetic != "" {
		loads, err = workload.Synthetic(model, o.Synthetic, LoadTokens, o.Chunks, o.Seed)
	} else {
		loads, err = o.trace(ctx, model)
	}
	if err != nil {
		return err
	}
	text, err := loads.Encode()
	if err != nil {
		return err
	}
	digest, err := loads.Digest()
	if err != nil {
		return err
	}
	if old, err := wholefile.Read(o.Out, int64(len(text))); err == nil && bytes.Equal(old, text) {
		return cli.Kept(ui, o.Out, "same inputs")
	}
	if err := wholefile.Write(o.Out, text); err != nil {
		return err
	}
	cli.Wrote(ui, o.Out, "%s loads %.12s of %s, %d chunks of %d tokens", loads.Source, digest, model.Name, loads.Chunks,
		loads.ChunkTokens)
	var rows [][]string
	imbalance := make([]float64, len(loads.Layers))
	for i, layer := range loads.Layers {
		imbalance[i] = loads.Imbalance(i)
		idle := 0
		for _, list := range layer.Rows {
			// No chunk sent it a row.
			if slices.Max(list) == 0 {
				idle++
			}
		}
		rows = append(rows, []string{fmt.Sprint(layer.Layer), fmt.Sprintf("%.2f", imbalance[i]), fmt.Sprint(idle)})
	}
	ui.Table([]string{"layer", ">busiest / mean", ">never chosen"}, rows)
	return ui.Result(map[string]any{
		"file": o.Out, "digest": digest, "source": loads.Source, "chunks": loads.Chunks,
		"chunk_tokens": loads.ChunkTokens, "imbalance": imbalance,
	})
}

// trace executes the model on a text and records its router's choices.
func (o *LoadsOptions) trace(ctx context.Context, weights *models.Model) (*workload.Loads, error) {
	if weights.Experts == 0 {
		return nil, diag.New(diag.ClassInput, "model %q has no experts", o.Model).
			WithHint("hetc models list shows which have")
	}
	model, err := trial.Open(ctx, weights)
	if err != nil {
		return nil, err
	}
	// Windows are whole chunks.
	size := min(quality.WindowTokens, weights.MaxContext/LoadTokens*LoadTokens)
	if size == 0 {
		return nil, diag.New(diag.ClassInput, "model %q has %d positions, and chunks %d tokens", o.Model,
			weights.MaxContext, LoadTokens)
	}
	if o.Random {
		return trial.TraceLoads(ctx, model, o.random(weights.Vocab, size), LoadTokens)
	}
	text, err := model.ReadText(o.Text, o.Windows, size)
	if err != nil {
		return nil, err
	}
	return trial.TraceLoads(ctx, model, text, LoadTokens)
}

// random returns what stands for a text where a model has no tokenizer: windows of ids that the seed draws.
func (o *LoadsOptions) random(vocab, size int) *trial.Text {
	rng := rand.New(rand.NewPCG(o.Seed, 0))
	text := &trial.Text{}
	hash := sha256.New()
	for range o.Windows {
		window := make([]int32, size)
		for i := range window {
			window[i] = rng.Int32N(int32(vocab))
			_ = binary.Write(hash, binary.LittleEndian, window[i]) // a hash takes everything
		}
		text.Windows = append(text.Windows, quality.Window{Tokens: window, Next: -1})
	}
	text.SHA256 = hex.EncodeToString(hash.Sum(nil))
	return text
}
