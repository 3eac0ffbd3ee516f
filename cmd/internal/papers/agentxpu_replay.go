package papers

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
)

// agentJob is a request of a replayed trace; times in microseconds.
type agentJob struct {
	reactive        bool
	arrives         int64
	prompt, answer  int
	kernels         int // of its prefill that are left: a chunk in a layer each
	tokens          int // that are left to decode
	ready, finished int64
}

// agentTimes are what kernels take, in microseconds.
type agentTimes struct {
	layers, chunk int
	npu, gpu      int64 // a chunk's products in one layer
	step          int64 // reading the weights once to decode a token of every sequence
	perToken      float64
}

// stepTime is one decode step of a batch.
func (t agentTimes) stepTime(batch []*agentJob) int64 {
	cached := 0
	for _, j := range batch {
		cached += j.prompt + j.answer - j.tokens
	}
	return t.step + int64(float64(t.perToken*float64(cached)))
}

// agentTrace draws Poisson arrivals of both kinds. Lengths are synthetic: the paper's are a plot.
func agentTrace(random *rand.Rand, minutes, reactive, proactive float64, times agentTimes) []*agentJob {
	var jobs []*agentJob
	length := func(median, spread, least, most float64) int {
		return int(min(max(median*math.Exp(float64(spread*random.NormFloat64())), least), most))
	}
	for _, stream := range []struct {
		reactive bool
		rate     float64
	}{{true, reactive}, {false, proactive}} {
		for at := random.ExpFloat64() / stream.rate; at < minutes; at += random.ExpFloat64() / stream.rate {
			j := &agentJob{
				reactive: stream.reactive, arrives: int64(at * 60e6), prompt: length(500, 0.8, 32, 3500),
				answer: length(80, 0.8, 4, 590),
			}
			j.kernels, j.tokens = times.layers*((j.prompt+times.chunk-1)/times.chunk), j.answer
			jobs = append(jobs, j)
		}
	}
	slices.SortStableFunc(jobs, func(a, b *agentJob) int { return cmp.Compare(a.arrives, b.arrives) })
	return jobs
}

// replayAgent runs the two event loops of Agent.xpu: prefill takes a kernel at a time, reactive requests first; a
// reactive one's chunks are shared with the GPU while nothing decodes. Decode takes a step at a time with the batch
// of Algorithm 2.
//
// It is a simulation by events: the loop that can begin sooner goes next, prefill where both can. The state is the
// time at which either loop is free again, and what is left of each job.
func replayAgent(jobs []*agentJob, times agentTimes, most, buffer int) {
	var prefill, decode int64
	idle := true // nothing decodes
	for slices.ContainsFunc(jobs, func(j *agentJob) bool { return j.tokens > 0 }) {
		first, next := firstPrompt(jobs, prefill)
		// when each loop could begin: prefill with its first prompt, decode with its first ready
		// job
		step := int64(math.MaxInt64) // when decode can go on
		for _, j := range jobs {
			if j.kernels == 0 && j.tokens > 0 {
				step = min(step, max(decode, j.ready))
			}
		}
		if first != nil && next <= step {
			// A share of both rates: the two processors work on one chunk.
			took := times.npu
			if idle && first.reactive {
				took = times.npu * times.gpu / (times.npu + times.gpu)
			}
			prefill = next + took
			if first.kernels--; first.kernels == 0 {
				first.ready = prefill
			}
			if step == math.MaxInt64 {
				idle = true
			}
			continue
		}
		// one step: a token for everybody in the batch
		decode = step
		batch := decodeBatch(jobs, decode, most, buffer)
		decode += times.stepTime(batch)
		idle = false
		for _, j := range batch {
			if j.tokens--; j.tokens == 0 {
				j.finished = decode
			}
		}
	}
}

// firstPrompt is the job whose prompt goes on next when prefill is free at that time, and when: the earliest, and
// of those the first reactive one. It is nil where every prompt has been read.
func firstPrompt(jobs []*agentJob, free int64) (first *agentJob, next int64) {
	next = math.MaxInt64
	for _, j := range jobs {
		if j.kernels == 0 {
			continue
		}
		at := max(free, j.arrives)
		sooner := at == next && first != nil && j.reactive && !first.reactive
		if at < next || sooner {
			first, next = j, at
		}
	}
	return first, next
}

// decodeBatch are the jobs that a step of decode takes at a time, of those whose prompt has been read by then.
func decodeBatch(jobs []*agentJob, now int64, most, buffer int) (batch []*agentJob) {
	var ready []served
	byName := map[string]*agentJob{}
	for i, j := range jobs {
		if j.kernels == 0 && j.tokens > 0 && j.ready <= now {
			name := fmt.Sprint(i)
			byName[name] = j
			ready = append(ready, served{name, j.reactive, j.prompt + j.answer - j.tokens})
		}
	}
	chosen, _ := nextBatch(ready, nil, nil, most, false)
	for _, request := range chosen[:min(len(chosen), buffer)] {
		batch = append(batch, byName[request.name])
	}
	return batch
}

// replayGPU serves first come, first served on the GPU alone with continuous batching: a prompt as a whole as soon as
// there is room in the batch, else a step of everything that decodes.
func replayGPU(jobs []*agentJob, times agentTimes, buffer int) {
	now := int64(0)
	for {
		var batch []*agentJob
		var first *agentJob
		next := int64(math.MaxInt64)
		for _, j := range jobs {
			switch {
			case j.kernels == 0 && j.tokens > 0:
				batch = append(batch, j)
			case j.kernels > 0 && first == nil:
				first, next = j, max(now, j.arrives)
			}
		}
		switch {
		// a prompt when there is room, else a step, else all are answered
		case first != nil && (len(batch) == 0 || next <= now && len(batch) < buffer):
			now = next + int64(first.kernels)*times.gpu
			first.kernels, first.ready = 0, now
		case len(batch) > 0:
			now += times.stepTime(batch)
			for _, j := range batch {
				if j.tokens--; j.tokens == 0 {
					j.finished = now
				}
			}
		default:
			return
		}
	}
}

// normalized is the mean latency over prompt and answer tokens of one kind of request, in milliseconds a token.
func normalized(jobs []*agentJob, reactive bool) float64 {
	sum, count := 0.0, 0.0
	for _, j := range jobs {
		if j.reactive == reactive {
			sum += float64(j.finished-j.arrives) / 1000 / float64(j.prompt+j.answer)
			count++
		}
	}
	return sum / count
}

// agentReplay runs both event loops on synthetic traces, beside the GPU alone, at the rates that sec. 6.2 prints.
func agentReplay(rows *sheet) error {
	soc, err := socs.Open("core-ultra-5-125h")
	if err != nil {
		return err
	}
	model, err := models.Open("llama-3-8b")
	if err != nil {
		return err
	}
	times := agentTimes{layers: model.Layers,
		chunk: int(agent("m_chunk_size").at("values", "chunk_in_latency_bound").num())}
	npu, gpu := soc.Processor("npu"), soc.Processor("gpu")
	// a chunk through one layer, in us, and a decode step: weights once, and the cache of each
	// token
	ops := append(feedForward(model, times.chunk), qkv(model, times.chunk),
		op.Op{Kind: op.MatMul, M: times.chunk, K: model.Heads * model.HeadDim, N: model.Hidden, Scheme: op.A8TQ8C})
	for _, operator := range ops {
		times.npu += int64(catalogNS(npu, operator) / 1000)
		times.gpu += int64(catalogNS(gpu, operator) / 1000)
	}
	times.step = int64(float64(model.Parameters()) / gpu.BandwidthGBps / 1000)
	times.perToken = float64(2*model.Layers*model.KVHeads*model.HeadDim*2) / gpu.BandwidthGBps / 1000
	most, buffer := int(agent("m_b_cap").at("values").num()), int(agent("m_max_decode_batch").at("values").num())
	minutes := agent("wl_trace").at("values").num()
	// mean normalised latency of reactive and proactive requests over seeded traces, ours and the
	// GPU's
	run := func(reactive, proactive float64) (ours, theirs [2]float64) {
		const seeds = 5
		for seed := range seeds {
			random := func() *rand.Rand { return rand.New(rand.NewPCG(61, uint64(seed))) }
			scheduled, served := agentTrace(random(), minutes, reactive, proactive, times), agentTrace(random(),
				minutes, reactive, proactive, times)
			replayAgent(scheduled, times, most, buffer)
			replayGPU(served, times, buffer)
			for i, kind := range []bool{true, false} {
				ours[i] += normalized(scheduled, kind) / seeds
				theirs[i] += normalized(served, kind) / seeds
			}
		}
		return ours, theirs
	}
	points := agent("wl_mixed_points_named").at("values")
	fixed := points.at("proactive_fixed").num()
	printed := agent("r_mixed_reactive_mean").at("values", "Llama-8B").nums()
	// the printed points, then the growth along the sweep
	for i, rate := range points.at("reactive").nums() {
		ours, theirs := run(rate, fixed)
		note := fmt.Sprintf("8B, %v proactive a minute: %.3g against %.3g ms a token of the GPU alone, mean of 5 "+
			"synthetic traces of %v minutes (prompts around 500 tokens, answers around 80; the paper's lengths are "+
			"a plot), kernels by Eq. 5 on catalog SoC core-ultra-5-125h without attention; only the trend can be "+
			"compared", fixed, ours[0], theirs[0], minutes)
		if i > 0 {
			note = fmt.Sprintf("the same: %.3g against %.3g ms a token", ours[0], theirs[0])
		}
		rows.add(Modelled, fmt.Sprintf("reactive_%v/reduction_percent", rate), printed[i], 100*(1-ours[0]/theirs[0]),
			"%s", note)
		rows.noted(Modelled, fmt.Sprintf("reactive_%v/proactive_reduction_percent", rate), nil,
			100*(1-ours[1]/theirs[1]), "reactive/proactive_reduction_percent", ours[1], theirs[1])
	}
	sweep := points.at("proactive_sweep").nums()
	low, _ := run(points.at("breakdown", "reactive").num(), sweep[0])
	high, _ := run(points.at("breakdown", "reactive").num(), sweep[1])
	rows.noted(Modelled, "reactive_growth_percent", agent("r_reactive_growth").at("values", "Llama-8B").num(),
		100*(high[0]/low[0]-1), "reactive_growth_percent", sweep[0], sweep[1], points.at("breakdown", "reactive").num())
	return nil
}
