package executor_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/models/safetensors"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
)

// hostileDir is the model whose weights the tests of hostile caches change.
const hostileDir = "../../testdata/arch/llama-plain"

// outlierToken is the token whose key alone is huge, outlierChannel the channel of its embedding that makes it so.
const outlierToken, outlierChannel = 7, 3

// hostile is that model with other weights: change is called for each matrix [rows, columns] in float32.
func hostile(t *testing.T, change func(name string, values [][]float32)) *models.Model {
	t.Helper()
	file, err := safetensors.Open(filepath.Join(hostileDir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var out []safetensors.Tensor
	for _, name := range file.Names() {
		tensor, _ := file.Tensor(name)
		if tensor.Type != op.F32 {
			t.Fatalf("tensor %q is %s, want f32", name, tensor.Type)
		}
		tensor.Data = slices.Clone(tensor.Data)
		if len(tensor.Shape) == 2 {
			values := make([][]float32, tensor.Shape[0])
			columns := tensor.Shape[1]
			for row := range values {
				values[row] = float32sOf(tensor.Data[4*row*columns:], columns)
			}
			change(name, values)
			for row := range values {
				copy(tensor.Data[4*row*columns:], mem.Bytes(values[row]))
			}
		}
		out = append(out, tensor)
	}

	dir := t.TempDir()
	if err := safetensors.Write(filepath.Join(dir, "model.safetensors"), out, nil); err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(hostileDir, "config.json"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	m, err := models.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// float32sOf reads so many little-endian numbers.
func float32sOf(raw []byte, count int) []float32 {
	values := make([]float32, count)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return values
}

// scaled multiplies a matrix.
func scaled(values [][]float32, by float32) {
	for _, row := range values {
		for i := range row {
			row[i] *= by
		}
	}
}

// onlyOutlierHas clears a channel of all embeddings but that of the outlier's token, which has nothing else.
func onlyOutlierHas(embeddings [][]float32, channel int) {
	for token, row := range embeddings {
		row[channel] = 0
		if token == outlierToken {
			clear(row)
			row[channel] = 1
		}
	}
}

// hostileCaches are changes of weights after which caches hold what estimates of scores find hard. The huge key is that
// of one token in the first layer. The other layers keep what the residuals carry of it.
var hostileCaches = map[string]func(name string, values [][]float32){
	"all keys are equal": func(name string, values [][]float32) {
		if strings.HasSuffix(name, "k_proj.weight") {
			scaled(values, 0)
		}
	},
	"all queries are zero": func(name string, values [][]float32) {
		if strings.HasSuffix(name, "q_proj.weight") {
			scaled(values, 0)
		}
	},
	"all keys are beyond their scale": func(name string, values [][]float32) {
		if strings.HasSuffix(name, "k_proj.weight") {
			scaled(values, 1e5)
		}
	},
	"one key is huge": func(name string, values [][]float32) {
		switch {
		case strings.HasSuffix(name, "embed_tokens.weight"):
			onlyOutlierHas(values, outlierChannel)
		case strings.HasSuffix(name, "k_proj.weight"):
			for _, row := range values {
				row[outlierChannel] *= 3e3
			}
		}
	},
}

// estimating are processors of which the last one estimates scores, and by which share of the largest logit they may
// differ from one core.
type estimating struct {
	name    string
	procs   []planir.Proc
	options executor.Options
	share   float64
}

// hostEstimates are two cores of the host.
func hostEstimates(t *testing.T) []estimating {
	a, b := cores(t)
	return []estimating{{name: "another core", procs: pairOn(a, b)}}
}

// deviceEstimates are the host beside ONNX Runtime, and beside the devices of OpenCL that compute in its memory. They
// round scores in other orders, and so may select either of two nearly equal positions.
func deviceEstimates(t *testing.T) (list []estimating) {
	a, b := cores(t)
	t.Run("ort is there", func(t *testing.T) {
		needORT(t)
		list = append(list, estimating{
			name: "ort", procs: append(singleOn(a), ortProc(t, "b", b)), options: withORT(), share: 0.02,
		})
	})
	t.Run("opencl is there", func(t *testing.T) {
		for _, device := range openclProcs(t, "b", nil) {
			if device.OwnMemory { // rule P003
				continue
			}
			list = append(list, estimating{
				name: device.Select, procs: append(singleOn(a), device), options: withOpenCL(), share: 0.02,
			})
		}
	})
	return list
}

// Whatever a cache holds, all positions give what dense attention gives. Some or almost none of them give finite
// logits, the same on one processor and with estimates on another one. Prompts have one token, parts of blocks, or come
// in chunks. Caches hold keys in every type.
func TestSparseAttentionOfHostileCaches(t *testing.T) { testHostileCaches(t, hostEstimates(t)) }

// So it is where devices estimate.
func TestSparseAttentionOfHostileCachesOnDevices(t *testing.T) {
	require.Slow(t)
	testHostileCaches(t, deviceEstimates(t))
}

// testHostileCaches compares each of the processors with the first one alone.
func testHostileCaches(t *testing.T, shared []estimating) {
	ids := slices.Clone(readLogits(t, filepath.Join(hostileDir, "logits.safetensors"))[130].ids)
	for i := range ids {
		if ids[i] == outlierToken {
			ids[i]++
		}
	}
	ids[20] = outlierToken
	rows, context := []int{1, 16, 64}, 130
	for name, change := range hostileCaches {
		t.Run(name, func(t *testing.T) {
			m := hostile(t, change)
			for _, kv := range op.CacheTypes {
				if kv == op.F16 && strings.Contains(name, "beyond") {
					continue // 1e5 times a key is infinite there, which is refused below
				}
				run := func(density float64, on estimating, sparse []int) (out [][]float32) {
					cal := attentive(t, m, density)
					plan := sparsePlan(t, m, cal, sparseSpec{
						procs: on.procs, rows: rows, sparse: sparse, context: context, block: 8,
						cache: kv, layout: byStages,
					})
					x := machineWith(t, m, plan, cal, on.options, bothCompilers()...)
					defer x.Close()
					for _, tokens := range []int{1, 21, 64, 130} {
						out = append(out, allLogits(t, x, ids[:tokens]))
					}
					return append(out, allLogits(t, x, ids, 5, 1, 20))
				}

				size := func(logits []float32) float64 { return maxDiff(logits, make([]float32, len(logits))) }
				alone := estimating{procs: shared[0].procs[:1]}
				dense := run(1, alone, nil)
				for i, got := range run(1, alone, rows) {
					if d := maxDiff(got, dense[i]); !(d <= 1e-5*max(1, size(dense[i]))) {
						t.Errorf("cache %s, run %d: all positions differ by %g from dense attention", kv, i, d)
					}
				}

				for _, density := range []float64{0.3, 1e-9} {
					want := run(density, alone, rows)
					for i := range want {
						if d := maxDiff(want[i], dense[i]); math.IsNaN(d) || math.IsInf(d, 0) {
							t.Errorf("cache %s, density %v, run %d: logits are not finite", kv, density, i)
						}
					}
					for _, on := range shared {
						if !slices.Contains(on.procs[1].KV, kv) && on.procs[1].Driver != host.Name {
							continue
						}
						for i, got := range run(density, on, rows) {
							if d := maxDiff(got, want[i]); !(d <= on.share*size(want[i])) {
								what := fmt.Sprintf("%s, cache %s, density %v, run %d", on.name, kv, density, i)
								t.Errorf("%s: logits change by %g, of %g at most", what, d, size(want[i]))
							}
						}
					}
				}
			}
		})
	}
}

// Keys and queries that are not finite are refused where they are estimated, by the step and the row, and the machine
// answers the next prompt.
func TestSparseAttentionRefusesWhatIsNotFinite(t *testing.T) {
	shared := hostEstimates(t)
	shared = append(shared, estimating{name: "the same core", procs: shared[0].procs[:1]})
	if !testing.Short() {
		shared = append(shared, deviceEstimates(t)...)
	}
	for _, bad := range []string{"k_proj.weight", "q_proj.weight"} {
		// Only the outlier's token has the channel that makes numbers too large.
		m := hostile(t, func(name string, values [][]float32) {
			switch {
			case strings.HasSuffix(name, "embed_tokens.weight"):
				onlyOutlierHas(values, outlierChannel)
			case strings.HasSuffix(name, "layers.0.self_attn."+bad):
				for _, row := range values {
					row[outlierChannel] = math.MaxFloat32
				}
			}
		})
		cal := attentive(t, m, 0.3)
		for _, on := range shared {
			plan := sparsePlan(t, m, cal, sparseSpec{
				procs: on.procs, rows: []int{1, 64}, sparse: []int{64}, context: 130, block: 8,
				cache: op.F32, layout: byStages,
			})
			x := machineWith(t, m, plan, cal, on.options, bothCompilers()...)
			good := make([]int32, 60)
			for i := range good {
				good[i] = int32(10 + i)
			}
			want := allLogits(t, x, good)

			evil := slices.Clone(good)
			evil[20] = outlierToken
			x.Reset()
			err := x.Do(t.Context(), func(c *executor.Control) error {
				_, err := c.Forward(evil, executor.WantAll, func(int, []float32) error { return nil })
				return err
			})

			for _, want := range []string{"NaN or infinite", "estimate"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s, estimates on %s: got %v, want a refusal with %q", bad, on.name, err, want)
				}
			}
			if d := maxDiff(allLogits(t, x, good), want); d != 0 {
				t.Errorf("%s, estimates on %s: the next prompt differs by %g", bad, on.name, d)
			}
			x.Close()
		}
	}
}
