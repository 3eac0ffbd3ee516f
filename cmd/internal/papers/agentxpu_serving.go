package papers

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/hetc/hetc/cmd/internal/traffic"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/scheduler"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/workload"
)

// agentTrace draws Poisson arrivals of both classes, at rates a minute. Lengths are synthetic: the paper's are a plot.
func agentTrace(seed uint64, minutes, reactive, proactive float64) []traffic.Request {
	random := rand.New(rand.NewPCG(61, seed))
	length := func(median, spread, least, most float64) int {
		return int(min(max(median*math.Exp(float64(spread*random.NormFloat64())), least), most))
	}
	var trace []traffic.Request
	for _, stream := range []struct {
		class scheduler.Class
		rate  float64
	}{{scheduler.Reactive, reactive}, {scheduler.Proactive, proactive}} {
		for at := random.ExpFloat64() / stream.rate; at < minutes; at += random.ExpFloat64() / stream.rate {
			trace = append(trace, traffic.Request{AtMS: math.Round(at * 60e3), Class: stream.class.String(),
				Prompt: length(500, 0.8, 32, 3500), Output: length(80, 0.8, 4, 590)})
		}
	}
	slices.SortStableFunc(trace, func(a, b traffic.Request) int { return cmp.Compare(a.AtMS, b.AtMS) })
	return trace
}

// agentWorkload returns what the plans are for: the lengths of the traces, and batches up to the paper's largest.
func agentWorkload(scheme op.Scheme, batches []int, buckets ...int) *workload.Workload {
	prompts := workload.LogNormal{Median: 500, Sigma: 0.8, Max: 3500}
	lengths, err := prompts.Prompts()
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return &workload.Workload{Schema: workload.Schema, Name: "agent", Prompts: lengths, OutputTokens: 80, Context: 4096,
		Schemes: workload.Schemes{Prefill: []op.Scheme{scheme}, Decode: []op.Scheme{scheme}},
		Buckets: buckets, Batches: batches}
}

// agentModels are the paper's models, by the names of rows, of the paper's data and of the catalog.
var agentModels = []struct{ row, data, catalog string }{
	{"3b", "Llama-3B", "llama-3.2-3b"}, {"8b", "Llama-8B", "llama-3-8b"},
}

// server is a way to serve the traces: a plan and a policy.
type server struct {
	name   string
	note   string // its key
	soc    *socs.SoC
	plan   *planir.Plan
	policy scheduler.Policy
}

// agentServers are hetc's scheduler and the paper's three baselines (sec. 6.1), by what they are: continuous batching
// on the CPU (llama.cpp) and on the GPU (OpenVINO), and one request at a time on all processors. The last one is hetc's
// scheduler on the paper's processors, whose CPU computes nothing.
func agentServers(ctx context.Context, model string) ([]server, error) {
	from, err := newChain(ctx, agentSoC, model, agentWorkload(op.A16FQ8C, []int{2, 4, 8, 32}, 64, 256), nil)
	if err != nil {
		return nil, err
	}
	var plans []*planir.Plan
	for _, within := range []restriction{nil, only("gpu"), only("cpu"), only("npu", "gpu")} {
		plan, err := from.solve(ctx, within)
		if err != nil {
			return nil, err
		}
		plans = append(plans, plan.Plan)
	}
	soc := from.input.SoC
	return []server{
		{"hetc", "serving/hetc", soc, plans[0], scheduler.Full},
		{"gpu_batching", "serving/gpu_batching", soc, plans[1], scheduler.Batching},
		{"serial", "serving/serial", soc, plans[0], scheduler.FCFS},
		{"cpu_batching", "serving/cpu_batching", soc, plans[2], scheduler.Batching},
		{"npu_gpu", "serving/npu_gpu", soc, plans[3], scheduler.Full},
	}, nil
}

// outcome is how a server fares: means over seeded traces.
type outcome struct {
	perToken [2]float64 // of whole requests by their tokens, prompts included, by class: ms
	tail     float64    // the same of reactive requests, 90th percentile
	pending  float64    // until the first chunk of a reactive request begins: s
	rate     float64    // tokens generated a second
	tokenJ   float64    // modelled energy of a token, prompts included
	gpu      float64    // share of the time in which the machine does anything that the GPU is busy
}

// play returns how the server fares with arrivals of both classes a minute.
func (s *server) play(ctx context.Context, minutes, reactive, proactive float64) (out outcome, err error) {
	const seeds = 5
	for seed := range uint64(seeds) {
		config := scheduler.Default(32)
		config.Policy = s.policy
		report, err := traffic.Simulate(ctx, s.plan, agentTrace(seed, minutes, reactive, proactive), config)
		if err != nil {
			return out, err
		}
		report.Energy(s.soc)
		for _, class := range report.Classes {
			if class.Class != scheduler.Reactive.String() {
				out.perToken[scheduler.Proactive] += class.Normalised / seeds
				continue
			}
			out.perToken[scheduler.Reactive] += class.Normalised / seeds
			out.tail += class.Normalised90 / seeds
			out.pending += class.Pending / 1e3 / seeds
		}
		for _, processor := range report.Processors {
			if processor.Proc == "gpu" {
				out.gpu += processor.WhileActive / seeds
			}
		}
		out.rate += report.Rate / seeds
		out.tokenJ += report.TokenJ / seeds
	}
	return out, nil
}

// playAll returns how each server fares, by name.
func playAll(ctx context.Context, servers []server, minutes, reactive, proactive float64) (map[string]outcome, error) {
	out := map[string]outcome{}
	for i := range servers {
		fared, err := servers[i].play(ctx, minutes, reactive, proactive)
		if err != nil {
			return nil, err
		}
		out[servers[i].name] = fared
	}
	return out, nil
}

// less is by how much one value is below another one, in percent.
func less(ours, than float64) float64 { return 100 * (1 - ours/than) }

// agentServing plays synthetic traces at the printed rates with the scheduler of hetserve on a virtual clock, and with
// the paper's baselines. Times are those that hetc predicts of plans for the catalog SoC.
func agentServing(ctx context.Context, rows *sheet) error {
	for _, model := range agentModels {
		servers, err := agentServers(ctx, model.catalog)
		if err != nil {
			return err
		}
		if err := agentMixed(ctx, rows, model.row+"/", model.data, servers); err != nil {
			return err
		}
		if err := agentBackground(ctx, rows, model.row+"/", servers); err != nil {
			return err
		}
		if err := agentOverhead(ctx, rows, model.row+"/", servers); err != nil {
			return err
		}
	}
	return nil
}

// agentMixed are requests of both classes (Fig. 11): reactive ones a minute as printed, beside a fixed rate of others,
// and the other way round.
func agentMixed(ctx context.Context, rows *sheet, row, data string, servers []server) error {
	points := agent("wl_mixed_points_named").at("values")
	fixed, minutes := points.at("proactive_fixed").num(), agent("wl_trace").at("values").num()
	reactive := agent("r_mixed_reactive_mean").at("values", data).nums()
	ends := agent("r_mixed_proactive_mean").at("values", data).nums()
	rates := points.at("reactive").nums()
	// The paper prints two ends of a range, which are taken to be those of the lowest and the highest rate.
	proactive := map[int]any{0: ends[0], len(rates) - 1: ends[1]}
	for i, rate := range rates {
		fared, err := playAll(ctx, servers, minutes, rate, fixed)
		if err != nil {
			return err
		}
		at := fmt.Sprintf("%sreactive_%v/", row, rate)
		for _, server := range servers {
			for _, class := range []scheduler.Class{scheduler.Reactive, scheduler.Proactive} {
				rows.noted(Executed, fmt.Sprintf("%s%s/%s_ms_a_token", at, server.name, class), nil,
					fared[server.name].perToken[class], server.note)
			}
		}
		ours, gpu, serial := fared["hetc"], fared["gpu_batching"], fared["serial"]
		rows.noted(Executed, at+"reduction_percent", reactive[i],
			less(ours.perToken[scheduler.Reactive], gpu.perToken[scheduler.Reactive]), "serving/reduction")
		rows.noted(Executed, at+"tail_reduction_percent", "more than of the mean", less(ours.tail, gpu.tail),
			"serving/tail_reduction")
		rows.noted(Executed, at+"proactive_reduction_percent", proactive[i],
			less(ours.perToken[scheduler.Proactive], gpu.perToken[scheduler.Proactive]), "serving/proactive_reduction")
		rows.noted(Executed, at+"reduction_of_serial_percent", nil,
			less(ours.perToken[scheduler.Reactive], serial.perToken[scheduler.Reactive]), "serving/reduction_of_serial")
	}
	sweep, others := points.at("proactive_sweep").nums(), points.at("breakdown", "reactive").num()
	var grown []float64
	for _, rate := range sweep {
		fared, err := servers[0].play(ctx, minutes, others, rate)
		if err != nil {
			return err
		}
		grown = append(grown, fared.perToken[scheduler.Reactive])
	}
	rows.noted(Executed, row+"reactive_growth_percent", agent("r_reactive_growth").at("values", data).num(),
		100*(grown[1]/grown[0]-1), "reactive_growth_percent", sweep[0], sweep[1], others)
	return nil
}

// agentBackground are background requests alone (Fig. 10), more than any server keeps up with: tokens a second.
func agentBackground(ctx context.Context, rows *sheet, row string, servers []server) error {
	const minutes, arrivals = 5, 240
	fared, err := playAll(ctx, servers, minutes, 0, arrivals)
	if err != nil {
		return err
	}
	printed := agent("r_proactive_only").at("values")
	between := func(key string) string {
		ends := printed.at(key).nums()
		return fmt.Sprintf("%v to %v", ends[0], ends[1])
	}
	upTo := agent("r_proactive_only_detail").at("values", "vs_llama.cpp_up_to").num()
	for _, against := range []struct{ name, paper string }{{"gpu_batching", between("vs_openvino_igpu")},
		{"serial", between("vs_serial_npu_igpu")}, {"cpu_batching", fmt.Sprintf("up to %v", upTo)}} {
		rows.noted(Executed, fmt.Sprintf("%sbackground/throughput_over_%s_x", row, against.name), against.paper,
			fared["hetc"].rate/fared[against.name].rate, "serving/background", arrivals, minutes)
	}
	return nil
}

// agentOverhead adds rows on waiting times and energy at the rates of the paper's breakdown (Fig. 12 and 13).
func agentOverhead(ctx context.Context, rows *sheet, row string, servers []server) error {
	rates := agent("wl_mixed_points_named").at("values", "breakdown")
	fared, err := playAll(ctx, servers, agent("wl_trace").at("values").num(), rates.at("reactive").num(),
		rates.at("proactive").num())
	if err != nil {
		return err
	}
	gpu, serial := fared["gpu_batching"], fared["serial"]
	used := agent("r_igpu_utilization").at("values")
	for _, name := range []string{"hetc", "npu_gpu"} {
		ours, at := fared[name], row+name+"/"
		rows.noted(Executed, at+"reactive_pending_s", agent("r_prefill_pending").at("values", "reactive_average").num(),
			ours.pending, "serving/pending")
		rows.noted(Executed, at+"gpu_less_busy_than_gpu_batching_percent", used.at("vs_openvino_igpu").num(),
			less(ours.gpu, gpu.gpu), "serving/gpu_busy")
		rows.noted(Executed, at+"gpu_less_busy_than_serial_percent", used.at("vs_serial_npu_igpu").num(),
			less(ours.gpu, serial.gpu), "serving/gpu_busy")
		rows.noted(Executed, at+"energy_less_percent", agent("r_energy").at("values", "vs_openvino_igpu").num(),
			less(ours.tokenJ, gpu.tokenJ), "serving/energy")
	}
	rows.noted(Executed, row+"gpu_batching/reactive_pending_s", nil, gpu.pending, "serving/pending")
	return nil
}
