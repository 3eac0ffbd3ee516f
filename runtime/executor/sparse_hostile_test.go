package executor_test

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/models/safetensors"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
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
			at := func(row, column int) []byte { return tensor.Data[4*(row*tensor.Shape[1]+column):] }
			for row := range values {
				for column := range tensor.Shape[1] {
					values[row] = append(values[row], math.Float32frombits(binary.LittleEndian.Uint32(at(row, column))))
				}
			}
			change(name, values)
			for row := range values {
				for column, value := range values[row] {
					binary.LittleEndian.PutUint32(at(row, column), math.Float32bits(value))
				}
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

// scaled multiplies a matrix.
func scaled(values [][]float32, by float32) {
	for _, row := range values {
		for i := range row {
			row[i] *= by
		}
	}
}

// hostileCaches are changes of weights after which caches hold what estimates of scores find hard. The outlier's is that
// of one token in the first layer, of which the others keep what the residuals carry.
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
			for token, row := range values {
				if row[outlierChannel] = 0; token == outlierToken {
					clear(row)
					row[outlierChannel] = 1
				}
			}
		case strings.HasSuffix(name, "k_proj.weight"):
			for _, row := range values {
				row[outlierChannel] *= 3e3
			}
		}
	},
}

// Whatever a cache holds, all positions give what dense attention gives, and some or almost none of them give finite
// logits, the same on one processor and with estimates on another one: in prompts of one token, of parts of blocks, and
// in chunks. Caches hold keys in every type.
func TestSparseAttentionOfHostileCaches(t *testing.T) {
	a, b := cores(t)
	pair := []planir.Proc{proc("a", a, ""), proc("b", b, "")}
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
				run := func(density float64, procs []planir.Proc, sparse []int, chunks ...int) (out [][]float32) {
					cal := attentive(t, m, density)
					var of layoutOf
					if len(procs) > 1 {
						of = byStages
					}
					x := machineWith(t, m, sparsePlan(t, m, cal, procs, rows, sparse, context, 8, kv, of), cal, executor.Options{})
					defer x.Close()
					for _, tokens := range []int{1, 21, 64, 130} {
						out = append(out, allLogits(t, x, ids[:tokens]))
					}
					return append(out, allLogits(t, x, ids, 5, 1, 20))
				}
				dense := run(1, pair[:1], nil)
				for i, got := range run(1, pair[:1], rows) {
					if d := maxDiff(got, dense[i]); !(d <= 1e-5*max(1, maxDiff(dense[i], make([]float32, len(dense[i]))))) {
						t.Errorf("cache %s, run %d: logits of all positions differ by %g from those of dense attention", kv, i, d)
					}
				}
				for _, density := range []float64{0.3, 1e-9} {
					alone, shared := run(density, pair[:1], rows), run(density, pair, rows)
					for i := range alone {
						if d := maxDiff(shared[i], alone[i]); d != 0 {
							t.Errorf("cache %s, density %v, run %d: two processors differ from one by %g", kv, density, i, d)
						}
						if d := maxDiff(alone[i], dense[i]); math.IsNaN(d) || math.IsInf(d, 0) {
							t.Errorf("cache %s, density %v, run %d: logits are not finite", kv, density, i)
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
	a, b := cores(t)
	pair := []planir.Proc{proc("a", a, ""), proc("b", b, "")}
	for _, bad := range []string{"k_proj.weight", "q_proj.weight"} {
		// Only the outlier's token has the channel that makes numbers too large.
		m := hostile(t, func(name string, values [][]float32) {
			if strings.HasSuffix(name, "embed_tokens.weight") {
				for token, row := range values {
					if row[outlierChannel] = 0; token == outlierToken {
						clear(row)
						row[outlierChannel] = 1
					}
				}
			} else if strings.HasSuffix(name, "layers.0.self_attn."+bad) {
				for _, row := range values {
					row[outlierChannel] = math.MaxFloat32
				}
			}
		})
		cal := attentive(t, m, 0.3)
		for _, procs := range [][]planir.Proc{pair[:1], pair} {
			var of layoutOf
			if len(procs) > 1 {
				of = byStages
			}
			x := machineWith(t, m, sparsePlan(t, m, cal, procs, []int{1, 64}, []int{64}, 130, 8, op.F32, of), cal, executor.Options{})
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
			if err == nil || !strings.Contains(err.Error(), "NaN or infinite") || !strings.Contains(err.Error(), "estimate") {
				t.Errorf("%s, %d processors: got %v, want a refusal by the estimate", bad, len(procs), err)
			}
			if d := maxDiff(allLogits(t, x, good), want); d != 0 {
				t.Errorf("%s, %d processors: the next prompt differs by %g", bad, len(procs), d)
			}
			x.Close()
		}
	}
}
