package op_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/hetc/hetc/planir/op"
)

// A weight's kind follows from its fields, so that a plan need not store it.
func TestWeightKind(t *testing.T) {
	for want, text := range map[op.WeightKind]string{
		op.StoredWeight:   `{"name":"layers.qkv","from":["q","k","v"],"interleave":[4,2,2],"k":8,"n":16}`,
		op.ConstantWeight: `{"name":"rope.invfreq","k":1,"n":2,"const":[1,0.5]}`,
		op.ScalesWeight:   `{"name":"layers.qkv.scale","k":1,"n":1,"layers":["0:2"],"scale_of":"layers.qkv"}`,
		op.StepsWeight:    `{"name":"layers.qkv.steps","k":2,"n":16,"scale_of":"layers.qkv"}`,
	} {
		var weight op.Weight
		if err := json.Unmarshal([]byte(text), &weight); err != nil {
			t.Fatal(err)
		}
		if got := weight.Kind(); got != want {
			t.Errorf("%s: kind %d, want %d", text, got, want)
		}
		if again, err := json.Marshal(&weight); err != nil || string(again) != text {
			t.Errorf("written again: %s (%v), want %s", again, err, text)
		}
	}
}

func TestWeightSources(t *testing.T) {
	weight := op.Weight{From: []string{"l.{layer}.e.{expert}.gate", "l.{layer}.e.{expert}.up"}, Interleave: []int{3, 1},
		N: 16}
	if got := weight.Sources(2, 7); !slices.Equal(got, []string{"l.2.e.7.gate", "l.2.e.7.up"}) {
		t.Errorf("sources %q", got)
	}
	if !weight.PerLayer() || weight.SourceCols(0) != 12 || weight.SourceCols(1) != 4 {
		t.Errorf("per layer %v, columns %d and %d, want 12 and 4", weight.PerLayer(), weight.SourceCols(0),
			weight.SourceCols(1))
	}
}
