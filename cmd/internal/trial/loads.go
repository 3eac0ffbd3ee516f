package trial

import (
	"context"
	"errors"
	"fmt"

	"github.com/hetc/hetc/runtime/quality"
	"github.com/hetc/hetc/solver/workload"
)

// TraceLoads executes a model in float32 on a text, whose windows are whole chunks of so many tokens. It counts the
// rows that routers send to each expert in every chunk.
func TraceLoads(ctx context.Context, model *Model, text *Text, tokens int) (_ *workload.Loads, err error) {
	size := len(text.Windows[0].Tokens)
	plan, err := model.Plan(size, Float32, nil)
	if err != nil {
		return nil, err
	}
	routes := quality.Routes{Tokens: tokens}
	machine, err := model.Open(ctx, plan, nil, routes.Observe)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, machine.Close()) }()
	for i, window := range text.Windows {
		if err := quality.Execute(ctx, machine.Machine, window); err != nil {
			return nil, fmt.Errorf("window %d: %w", i, err)
		}
	}
	loads := &workload.Loads{
		Schema: workload.LoadsSchema, Source: "traced", Model: model.Name, ModelDigest: model.Digest, Text: text.SHA256,
		Experts: model.Experts, ExpertsPerToken: model.ExpertsPerToken, ChunkTokens: tokens,
		Chunks: len(text.Windows) * size / tokens,
	}
	for _, layer := range routes.Layers() {
		rows, err := routes.Rows(layer)
		if err != nil {
			return nil, err
		}
		counted := workload.LoadLayer{Layer: layer}
		for _, list := range rows {
			counted.Rows = append(counted.Rows, list)
		}
		loads.Layers = append(loads.Layers, counted)
	}
	return loads, loads.Validate()
}
