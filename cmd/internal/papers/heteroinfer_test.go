package papers

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/require"

	"pgregory.net/rapid"
)

// near compares rows with what was computed from the printed numbers by hand when they were transcribed.
func near(t *testing.T, paper string, tolerance float64, pairs map[string]value) {
	t.Helper()
	rows := map[string]any{}
	for _, r := range rowsOf(t, paper) {
		rows[strings.TrimPrefix(r.ID, paper+"/")] = r.Ours
	}
	for id, v := range pairs {
		got, ok := rows[id].(float64)
		if want := v.num(); !ok || math.Abs(got-want) > tolerance*math.Abs(want) {
			t.Errorf("%s: got %v, want %v", id, rows[id], want)
		}
	}
}

func TestHeteroInferByHand(t *testing.T) {
	require.Slow(t)
	pairs := map[string]value{}
	exact := hetero("dc_t3_exact_rows_strategy").at("transcriber_computed")
	for i, p := range measuredRows() {
		key := fmt.Sprintf("row%v", hetero("table3").at("values", rowOfLength(i), "row").num())
		pairs["splits/"+p.name+"/gpu-share"] = exact.at("ideal_gpu_share_linear", key)
		pairs["splits/"+p.name+"/balanced-us"] = exact.at("balanced_us_linear", key)
		switch p.m {
		case 1:
			for _, proc := range []string{"gpu", "npu"} {
				pairs["bandwidth/"+p.name+"/"+proc+
					"-gbps"] = hetero("dc_t3_decode_bandwidth").at("transcriber_computed", proc+"_gbps", key)
			}
		default:
			pairs["achieved/"+p.name+"/gpu-tflops"] = hetero("dc_gpu_linear").at("transcriber_computed", key+"_tflops")
			pairs["achieved/"+p.name+"/npu-tflops"] = hetero("dc_npu_tflops").at("transcriber_computed", key+"_tflops")
		}
	}
	sync := hetero("dc_t3_sync_bounds").at("transcriber_computed")
	pairs["sync/attn_proj-1/split-below-us"] = sync.at("row1_split_needs_below_us")
	pairs["sync/gate_up-1/split-below-us"] = sync.at("row2_split_needs_below_us")
	pairs["sync/ffn_down-1/gpu-only-above-us-4to1"] = sync.at("row3_gpu_only_on_4to1_needs_above_us")
	pairs["sync/ffn_down-1/gpu-only-above-us-any-ratio"] = sync.at("row3_gpu_only_free_ratio_needs_above_us")
	act := hetero("dc_t3_row7_activation_boundary").at("transcriber_computed")
	pairs["boundaries/attn_proj/gpu-slope-us"] = act.at("slope_us_per_token_1_to_128")
	pairs["boundaries/attn_proj/gpu-us-at-16"] = act.at("gpu_us_at_16")
	pairs["boundaries/attn_proj/crossing-remainder"] = act.at("crossing_remainder_tokens")
	ext := hetero("dc_t3_range_extrapolation").at("transcriber_computed")
	pairs["ranges/attn_proj-193-255/gpu-at-193/line"] = ext.at("row5_gpu_linear_us", "at_193")
	pairs["ranges/attn_proj-193-255/npu-at-255/line"] = ext.at("row5_npu_linear_us", "at_255")
	pairs["ranges/attn_proj-257-272/gpu-at-272/line"] = ext.at("row7_gpu_linear_us", "at_272")
	pairs["ranges/ffn_down-257-384/npu-at-384/proportional"] = ext.at("row9_scaled_by_1p5_us", "npu")
	for _, x := range []string{"Llama-8B:Llama-8B_8.03e9", "Llama-3B:Llama-3B_3.21e9",
		"InternLM-1.8B:InternLM_1.89e9"} {
		name, key, _ := strings.Cut(x, ":")
		pairs["bandwidth/decode-"+name+"/gbps"] = hetero("dc_decode_bandwidth_ceiling").at("transcriber_computed",
			"with_nominal_params_gbps", key)
	}
	pairs["bandwidth/gain-of-both"] = hetero("dc_bandwidth_fraction").at("transcriber_computed", "gain")
	pairs["gains/online-prepare-135/total-ms"] = hetero("dc_online_prepare_total").at("transcriber_computed",
		"total_ms")
	pairs["gains/ablation/product"] = hetero("dc_ablation_product").at("transcriber_computed", "product_of_four")
	pairs["gains/ablation/over-gpu"] = hetero("dc_ablation_product").at("transcriber_computed", "relative_to_gpu")
	pairs["gains/over-llmnpu"] = hetero("dc_llmnpu_ratio").at("transcriber_computed", "ratio")
	near(t, "heteroinfer", 0.004, pairs)
}

// What table3 says about where a decision holds is so: it holds at the ends of the interval and not beyond them.
func TestTable3Intervals(t *testing.T) {
	require.Slow(t)
	base, err := table3Base()
	if err != nil {
		t.Fatal(err)
	}
	rows := table3()
	grid, held, err := smallestGrid(t.Context(), rows, base)
	if err != nil || held != 9 || !slices.Equal(grid, []share{{1, 1}, {3, 1}, {2, 3}}) {
		t.Fatalf("smallest grid %v gives %d rows, %v; want 1:1, 3:1 and 2:3 and all nine", grid, held, err)
	}
	onGrid := *base
	onGrid.shares = grid
	for i := range rows {
		r := &rows[i]
		for _, v := range table3Moves(base, &onGrid) {
			a := *v.a
			ok := func(ns int64) (bool, error) {
				v.set(&a, ns)
				return r.holds(t.Context(), &a, v.ratio)
			}
			low, high, found, err := interval(mostNS, probesNS, ok)
			if err != nil {
				t.Fatal(err)
			}
			for ns, want := range map[int64]bool{low: found, high: found, low - 1: false, high + 1: false,
				(low + high) / 2: found} {
				if ns < 0 || ns > mostNS {
					continue
				}
				if got, err := ok(ns); err != nil || got != want {
					t.Errorf("%s %s at %d ns: holds %v, %v, want %v", r.name, v.name, ns, got, err, want)
				}
			}
		}
	}
}

// A row's decision is the least of the choices priced by hand.
func TestTable3Decision(t *testing.T) {
	rows := table3()
	rapid.Check(t, func(t *rapid.T) {
		r := &rows[rapid.IntRange(0, len(rows)-1).Draw(t, "row")]
		tokens := rapid.IntRange(1, 512).Draw(t, "tokens")
		a := &assumptions{
			syncNS:   rapid.Int64Range(0, 1_000_000).Draw(t, "sync"),
			splitNS:  rapid.Int64Range(0, 1_000_000).Draw(t, "split"),
			standard: rapid.SampledFrom(standardSets()).Draw(t, "set").lengths, anyCut: rapid.Bool().Draw(t, "any cut"),
			pipe:   rapid.Bool().Draw(t, "pipe"),
			shares: uniform(rapid.IntRange(2, 20).Draw(t, "grid")),
		}
		d, err := r.shape.decide(t.Context(), tokens, false, a)
		if err != nil {
			t.Fatal(err)
		}
		best := r.shape.gpuNS(tokens)
		if tokens == 1 {
			best = min(best, r.shape.npuNS(1)+a.syncNS)
		}
		for _, l := range a.standard {
			if l < tokens {
				continue
			}
			g, n := r.shape.gpuNS(l), r.shape.npuNS(l)
			if tokens == 1 {
				g, n = r.shape.gpuNS(1), r.shape.npuNS(1)
			}
			best = min(best, n+a.syncNS)
			for _, x := range a.shares {
				f := float64(x.gpu) / float64(x.gpu+x.npu)
				best = min(best, int64(math.Round(max(f*float64(g), (1-f)*float64(n))))+a.syncNS+a.splitNS)
			}
			break
		}
		if d.ns > best+1 {
			t.Fatalf("%s at %d tokens: %+v, and there is a choice of %d ns", r.name, tokens, d, best)
		}
		// More choices are never worse.
		more := *a
		more.anyCut, more.pipe = true, true
		if e, err := r.shape.decide(t.Context(), tokens, false, &more); err != nil || e.ns > d.ns {
			t.Fatalf("more choices: %+v, %v, want at most %d ns", e, err, d.ns)
		}
	})
}
