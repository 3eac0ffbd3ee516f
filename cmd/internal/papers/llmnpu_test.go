package papers

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/require"
)

func TestLLMNPUByHand(t *testing.T) {
	require.Slow(t)
	pairs := map[string]value{}
	ratios, tops, cut := npuFact("dc_t3_ratios").at("transcriber_computed"),
		npuFact("dc_t3_tops").at("transcriber_computed", "tops"), npuFact("dc_t3_partition").at("transcriber_computed")
	for i, r := range npuFact("table3").at("values").list() {
		name := fmt.Sprintf("table3/%vx%vx%v/", r.at("a", 0).num(), r.at("a", 1).num(), r.at("b", 1).num())
		pairs[name+"cpu_int8-over-npu-int8"] = ratios.at("cpu", i)
		pairs[name+"gpu_fp16-over-npu-int8"] = ratios.at("gpu", i)
		pairs[name+"npu_fp16-over-npu-int8"] = ratios.at("npu_fp16", i)
		pairs[name+"npu-tops"] = tops.at(i)
		pairs[name+"divided-ms"] = cut.at("balanced_ms", i)
	}
	pairs["table3/npu-fp16-over-cpu-int8-most"] = npuFact("dc_t3_npu_fp16_slowest").at("transcriber_computed", "max")
	share := npuFact("dc_graph_sharing_memory").at("transcriber_computed")
	pairs["sharing/chunks"], pairs["sharing/before-gb"], pairs["sharing/after-gb"] = share.at("chunks"),
		share.at("before_gb"), share.at("after_gb")
	counts := npuFact("dc_chunk_count_padding").at("transcriber_computed")
	perChunk, speed := npuFact("dc_chunk_time_consistency").at("transcriber_computed", "Qwen_s_per_chunk"),
		npuFact("dc_prefill_1000").at("transcriber_computed")
	means := npuFact("dc_t5_geomeans").at("transcriber_computed")
	for i, d := range npuFact("table5").at("values").list() {
		name := datasetName(d)
		key := []string{"2wiki", "TriviaQA", "DroidTask_block1", "DroidTask_block2", "PersonaChat"}[i]
		pairs["chunks/"+name+"/chunks-shortest"], pairs["chunks/"+name+"/chunks-longest"] = counts.at(key, 0),
			counts.at(key, 1)
		if perChunk.has(key) {
			pairs["chunks/"+name+"/s-per-chunk-longest"], pairs["chunks/"+name+
				"/s-per-chunk-shortest"] = perChunk.at(key, 0), perChunk.at(key, 1)
		}
		if speed.has(key) {
			pairs["chunks/"+name+"/tokens-per-s-shortest"], pairs["chunks/"+name+
				"/tokens-per-s-longest"] = speed.at(key, 0), speed.at(key, 1)
		}
		for _, e := range npuEngines {
			pairs["table5/"+name+"/geomean-"+e] = means.at(key, e)
		}
	}
	pairs["eq5/serial-ms"] = npuFact("dc_eq5_bubble").at("transcriber_computed", "serial_ms")
	pairs["outliers/density/channels-most"] = npuFact("dc_outlier_density").at("transcriber_computed",
		"implied_channels")
	for _, name := range npuFact("dc_smoothquant_crosscheck").at("transcriber_computed").keys() {
		pairs["table6/smoothquant-drop/"+name] = npuFact("dc_smoothquant_crosscheck").at("transcriber_computed", name)
	}
	near(t, "llmnpu", 0.005, pairs) // divisions in 32s are up to half a percent off the balanced ones
}

// What the data mark as uncertain is not taken for right: cells that do not add up have a row.
func TestUncertainCellsAreShown(t *testing.T) {
	require.Slow(t)
	shown := map[string]bool{}
	for _, r := range rowsOf(t, "llmnpu") {
		shown[r.ID] = true
	}
	for _, d := range npuFact("table5").at("values").list() {
		for _, c := range d.at("uncertain_cells").list() {
			why := c.at("reason").text()
			id := "llmnpu/table5/" + datasetName(d) + "/" + c.at("llm").text() + "/" + c.at("engine").text() + "/sum"
			if (strings.Contains(why, "sum to") || strings.Contains(why, "missing")) && !shown[id] {
				t.Errorf("%s: no row, although %s", id, why)
			}
		}
	}
}

// Table 3's choices come from the latencies: whatever is fastest is chosen.
func TestPickIsTheLeast(t *testing.T) {
	for i := range 4 {
		ns := []int64{40, 40, 40, 40}
		ns[i] = 39
		got, least, err := pick(t.Context(), "x", []string{"a", "b", "c", "d"}, ns, [][]int{{0}, {1}, {2}, {3}},
			[]string{"a", "b", "c", "d"})
		if err != nil || got != string(rune('a'+i)) || least != 39 {
			t.Errorf("chose %q at %d ns, %v", got, least, err)
		}
	}
}

// Eq. 1 with what was cut off as the CPU's part is exact, and as printed it is not.
func TestEq1(t *testing.T) {
	for _, c := range []struct{ x, npu, printed float64 }{{5, 5, 0}, {-5, -5, -128}, {200, 128, 128}, {256, 128, 256},
		{-300, -127, -384}} {
		npu, printed := eq1(c.x, -127, 128)
		if npu != c.npu || printed != c.printed || math.Abs(npu+(c.x-npu)-c.x) > 0 {
			t.Errorf("x/s = %v: %v on the NPU and %v, want %v and %v", c.x, npu, printed, c.npu, c.printed)
		}
	}
}
