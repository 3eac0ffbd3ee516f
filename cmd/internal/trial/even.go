package trial

import (
	"slices"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
)

// EvenHeads is a calibration in which all heads of sparse attention are alike, as in shadowAttn's measurements of kernels
// (5.1). What it says of scales and losses is made up: the time of attention depends on none of it.
func EvenHeads(model *models.Model, density float64) (*calibration.Calibration, error) {
	digest, err := model.Digest()
	if err != nil {
		return nil, err
	}
	at := &calibration.Attention{Heads: model.Heads, KVHeads: model.KVHeads, Block: op.SparseBlock, Clamp: 1e-3,
		Densities: []float64{density}, Losses: []calibration.DensityLoss{{Rule: calibration.RuleHeads, Density: density,
			TopAgreement: 1, PerplexityRatio: 1}}}
	for layer := range model.Layers {
		made := calibration.AttentionLayer{Layer: layer, KeyScales: slices.Repeat([]float32{1}, model.KVHeads)}
		for range model.Heads {
			made.Heads = append(made.Heads, calibration.AttentionHead{QueryScale: 1, Mass: []float64{1}})
		}
		at.Layers = append(at.Layers, made)
	}
	at.Buckets = at.MeanBuckets()
	return &calibration.Calibration{Schema: calibration.Schema, Attention: at,
		Model: calibration.Model{Name: model.Name, Digest: digest}}, nil
}
