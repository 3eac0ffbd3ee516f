package bench

import (
	"context"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/runtime/driver/host"
)

// Every way runs, for each type of the cache, and the times of ways follow from those of the stages.
func TestAttentionWays(t *testing.T) {
	ctx := context.Background()
	cores, err := benchCores(ctx, host.New(), "")
	if err != nil || len(cores) < 2 {
		t.Skipf("needs two cores, have %v (%v)", cores, err)
	}
	var lanes [2]*attentionLane
	for i := range lanes {
		if lanes[i], err = newAttentionLane(ctx, host.New(), string(rune('0'+cores[i]))); err != nil {
			t.Fatal(err)
		}
		defer lanes[i].close()
	}
	for _, cache := range []string{"f32", "f16", "q8"} {
		options := AttentionOptions{Heads: 8, KVHeads: 4, HeadDim: 16, Rows: 24, Cache: cache, Density: 0.3, Block: 16, Groups: 4}
		ways, err := attentionWays(ctx, lanes, &options, 70, rand.New(rand.NewPCG(1, 2)))
		if err != nil {
			t.Fatal(err)
		}
		for _, way := range ways {
			if err := way.run(); err != nil {
				t.Errorf("cache %s, %s: %v", cache, way.Way, err)
			}
		}
	}
	if err := Attention(ctx, &cli.Streams{Tool: "test", Out: io.Discard, Err: io.Discard}, &AttentionOptions{Rounds: 1, Groups: 3, KVHeads: 4}); err == nil ||
		!strings.Contains(err.Error(), "--groups 3") {
		t.Errorf("got %v, want an error about the groups", err)
	}
}

// Two groups: the second estimate runs beside the rest of the first.
func TestAttentionPrediction(t *testing.T) {
	var ways []*attentionWay
	for name, ns := range map[string]int64{wayDense: 100, waySparse: 1, waySparseTwo: 1, wayStages: 1, wayDenseTwo: 1,
		stageEstimate: 40, stageSelect: 10, stageAttend: 50} {
		ways = append(ways, &attentionWay{Way: name, all: []int64{ns + 5, ns}})
	}
	judgeAttention(ways, 2)
	want := map[string]int64{waySparse: 100, waySparseTwo: 50, wayDenseTwo: 50, wayStages: 20 + 30 + 30}
	for _, way := range ways {
		if way.PredictedNS != want[way.Way] {
			t.Errorf("%s: predicted %d, want %d", way.Way, way.PredictedNS, want[way.Way])
		}
	}
}
