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

// agentWorkload is what the plans are for: the lengths of the traces, and batches up to the paper's largest.
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

// server is a way to serve the traces: a plan and a policy.
type server struct {
	name   string
	note   string // its key
	plan   *planir.Plan
	policy scheduler.Policy
}

// agentServers are hetc's scheduler and the paper's three baselines (sec. 6.1), by what they are: continuous batching on
// the CPU (llama.cpp) and on the GPU (OpenVINO), and one request at a time on all processors.
func agentServers(ctx context.Context) ([]server, error) {
	from, err := newChain(ctx, agentSoC, "llama-3-8b", agentWorkload(op.A16FQ8C, []int{2, 4, 8, 32}, 64, 256), nil)
	if err != nil {
		return nil, err
	}
	var plans []*planir.Plan
	for _, within := range []restriction{nil, only("gpu"), only("cpu")} {
		plan, err := from.solve(ctx, within)
		if err != nil {
			return nil, err
		}
		plans = append(plans, plan.Plan)
	}
	return []server{
		{"hetc", "serving/hetc", plans[0], scheduler.Full},
		{"gpu_batching", "serving/gpu_batching", plans[1], scheduler.Batching},
		{"serial", "serving/serial", plans[0], scheduler.FCFS},
		{"cpu_batching", "serving/cpu_batching", plans[2], scheduler.Batching},
	}, nil
}

// latency is what requests of each class take on average over seeded traces, in ms by their tokens, prompts included.
func (s *server) latency(minutes, reactive, proactive float64) (byClass [2]float64, err error) {
	const seeds = 5
	for seed := range uint64(seeds) {
		config := scheduler.Default(32)
		config.Policy = s.policy
		report, err := traffic.Simulate(s.plan, agentTrace(seed, minutes, reactive, proactive), config)
		if err != nil {
			return byClass, err
		}
		for _, class := range report.Classes {
			at := scheduler.Proactive
			if class.Class == scheduler.Reactive.String() {
				at = scheduler.Reactive
			}
			byClass[at] += class.Normalised / seeds
		}
	}
	return byClass, nil
}

// agentServing plays synthetic traces at the printed rates with the scheduler of hetserve on a virtual clock, and with the
// paper's baselines. Times are those that hetc predicts of plans for the catalog SoC.
func agentServing(ctx context.Context, rows *sheet) error {
	servers, err := agentServers(ctx)
	if err != nil {
		return err
	}
	points := agent("wl_mixed_points_named").at("values")
	fixed := points.at("proactive_fixed").num()
	printed := agent("r_mixed_reactive_mean").at("values", "Llama-8B").nums()
	minutes := agent("wl_trace").at("values").num()
	for i, rate := range points.at("reactive").nums() {
		took := map[string][2]float64{}
		for _, server := range servers {
			byClass, err := server.latency(minutes, rate, fixed)
			if err != nil {
				return err
			}
			took[server.name] = byClass
			for _, class := range []scheduler.Class{scheduler.Reactive, scheduler.Proactive} {
				rows.noted(Executed, fmt.Sprintf("reactive_%v/%s/%s_ms_a_token", rate, server.name, class), nil, byClass[class],
					server.note)
			}
		}
		less := func(class scheduler.Class, than string) float64 {
			return 100 * (1 - took["hetc"][class]/took[than][class])
		}
		rows.noted(Executed, fmt.Sprintf("reactive_%v/reduction_percent", rate), printed[i],
			less(scheduler.Reactive, "gpu_batching"), "serving/reduction")
		rows.noted(Executed, fmt.Sprintf("reactive_%v/proactive_reduction_percent", rate), nil,
			less(scheduler.Proactive, "gpu_batching"), "serving/proactive_reduction")
		rows.noted(Executed, fmt.Sprintf("reactive_%v/reduction_of_serial_percent", rate), nil,
			less(scheduler.Reactive, "serial"), "serving/reduction_of_serial")
	}
	sweep, others := points.at("proactive_sweep").nums(), points.at("breakdown", "reactive").num()
	low, err := servers[0].latency(minutes, others, sweep[0])
	if err != nil {
		return err
	}
	high, err := servers[0].latency(minutes, others, sweep[1])
	if err != nil {
		return err
	}
	rows.noted(Executed, "reactive_growth_percent", agent("r_reactive_growth").at("values", "Llama-8B").num(),
		100*(high[scheduler.Reactive]/low[scheduler.Reactive]-1), "reactive_growth_percent", sweep[0], sweep[1], others)
	return nil
}
