package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
)

// apart is how far columns of the feed-forward blocks are apart in the model whose memory is looked at, and wideFFN how many
// it has.
const apart, wideFFN = 16, 768 * 16

// plantedCalibration writes a calibration of tokens with static scales that planted channels alone exceed, and names them as
// the hot ones, or says nothing of hot ones.
func plantedCalibration(d *dir, name string, tokens []int32, hot bool) {
	d.Helper()
	model, err := models.Open(d.at("m"))
	d.must(err)
	defer model.Close()
	tried, err := trial.Open(d.Context(), model)
	d.must(err)
	cal, err := trial.Observe(d.Context(), tried, tokens)
	d.must(err)
	count := len(planted)
	for i := range cal.Activations {
		activation := &cal.Activations[i]
		for channel := range activation.AbsMax {
			activation.AbsMax[channel] *= 2 // so that nothing but the planted channels comes near the scale
		}
		activation.LeaveOut(count, op.OutlierChannels(activation.K))
		entry := calibration.Exceeding{Class: activation.Class, Layer: activation.Layer,
			Counts: []calibration.Count{{Rows: len(tokens), Mean: float64(count), Most: count}}}
		if hot {
			entry.Counts[0] = calibration.Count{Rows: len(tokens), Mean: float64(count + 1), Most: count + 1} // all are hot
			entry.Distinct = count
			for _, channel := range planted {
				if activation.K == wideFFN {
					channel *= apart
				}
				entry.Hot = append(entry.Hot, calibration.Hot{Channel: channel, Share: 1})
			}
		}
		cal.Exceeding = append(cal.Exceeding, entry)
	}
	d.must(calibration.Write(d.at(name), cal))
}

// hotRowsInMemory looks at the largest resident size of a process with shadow outliers whose weights are far larger than the
// rows that it needs. With copied hot rows it is what the plan predicts, without the other rows of these weights. Where
// nothing is said of hot rows the plan counts weights whole, and a process does not come to hold more.
func hotRowsInMemory(t *testing.T, exe string) {
	whole := artifacts(t)
	d := &dir{T: t, path: t.TempDir(), artifacts: whole.path, model: whole.model}
	plantedModel(d, apart)
	tokens := []int32{1, 5, 7, 9, 900, 33, 20, 11, 45, 1200, 77, 3, 8, 600, 31, 2}
	prompt := strings.Trim(strings.ReplaceAll(fmt.Sprint(tokens), " ", ","), "[]")
	d.write("w.yaml", header+"buckets: [16]\ncontext: 64\nschemes: {prefill: [a8o/q8c], decode: [a8o/q8c]}\n")
	d.hetc("probe -o soc.yaml")
	d.hetc("profile --soc soc.yaml --model m --workload w.yaml -o rec.jsonl --budget 1s")
	d.hetc("keygen --out k")
	used := map[string]usedMemory{}
	for _, name := range []string{"hot", "cold"} {
		plantedCalibration(d, name+".cal", tokens, name == "hot")
		d.hetc("solve --soc soc.yaml --record rec.jsonl --accept-noisy --model m --workload w.yaml --calibration " + name +
			".cal -o " + name + ".yaml")
		d.hetc("emit --plan " + name + ".yaml --soc soc.yaml --model m --calibration " + name + ".cal --key k.key -o " +
			name + ".hetb")
		used[name] = memoryOf(t, exe, d.path, name+".hetb", "--trust", "k.pub", "--tokens", prompt, "--max-tokens", "1")
	}
	hot, cold := used["hot"], used["cold"]
	for _, product := range hot.Outliers {
		if strings.HasPrefix(product.Node, "layers.ffn_") && (product.Cold > 0 || product.Hot == 0 || product.Channels == 0) {
			t.Errorf("%+v: want that the hot rows are all that is multiplied", product)
		}
	}
	if off := hot.off(); off > 1 || off < -1 {
		t.Errorf("hot rows: %v", hot)
	}
	if cold.off() > 1 {
		t.Errorf("no rows are named hot: %v", cold)
	}
	const rows = 6 * 2 * 256 * 3 * wideFFN // bytes of rows of the feed-forward blocks
	if cold.Predict-hot.Predict < 0.9*rows {
		t.Errorf("predicted are %.0f bytes with hot rows and %.0f where weights count whole, want %d less", hot.Predict,
			cold.Predict, int64(rows))
	}
}
