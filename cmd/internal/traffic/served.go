package traffic

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/scheduler"
	"github.com/hetc/hetc/runtime/serving"
)

// A plan predicts program calls on a machine that does nothing else. In a server they take longer (serving.CallTimes),
// which matters where calls take a tenth of a millisecond. A simulation therefore may know what each kind of call took
// in a server that answered other requests, and how long tokens were there before their clients had them. The scheduler
// decides by the plan in any case, as it does in the server.

// Overheads are what a server was measured to take beside what a plan predicts.
type Overheads struct {
	Calls []serving.CallTimes
	// ReadNS is how long a first token is there before its client has it, in the mean.
	ReadNS int64
}

// served is what a call takes in the server, of which the plan predicts planned ns.
//
// What a server does around a call does not depend on how much is computed, so that it is added. Where calls took less
// than predicted, it is the plan that is wrong, and by a factor. Of a kind and size that was not seen, the nearest size
// is taken.
func (o *Overheads) served(key serving.CallKey, planned int64) int64 {
	sum := o.nearest(key)
	switch {
	case sum == nil || sum.PlannedNS == 0:
		return planned
	case sum.ServedNS < sum.PlannedNS:
		return max(1, int64(float64(planned)*float64(sum.ServedNS)/float64(sum.PlannedNS)))
	}
	return planned + (sum.ServedNS-sum.PlannedNS)/sum.Calls
}

// nearest are the calls of that kind whose size is nearest, the smaller one of two, and that came after an idle time as
// well if there are such; nil: none are known.
func (o *Overheads) nearest(key serving.CallKey) (best *serving.CallTimes) {
	if o == nil {
		return nil
	}
	distance := func(of *serving.CallTimes) float64 { return math.Abs(float64(of.Size - key.Size)) }
	for _, woken := range []bool{key.Woken, false} {
		for i := range o.Calls {
			candidate := &o.Calls[i]
			if candidate.Kind != key.Kind || candidate.Woken != woken {
				continue
			}
			if best == nil || distance(candidate) < distance(best) {
				best = candidate
			}
		}
		if best != nil {
			return best
		}
	}
	return nil
}

// other reports whether another plan than this one predicted the calls.
func (o *Overheads) other(plan *planir.Plan) bool {
	times := serving.TimesOf(plan)
	for _, sum := range o.Calls {
		if sum.Kind != serving.DecodeCall {
			continue
		}
		const most = 1e-6 // of what is read from a file
		mean := float64(sum.PlannedNS) / float64(sum.Calls)
		if math.Abs(mean-float64(times.Decode(sum.Size))) > most*mean {
			return true
		}
	}
	return false
}

const (
	burstPause   = 20e6  // ns between two bursts of requests: the machine is idle then
	mostDelayed  = 200e6 // ns that a burst may take longer than predicted, if it may take twice as long, and leave a pause
	burstTokens  = 4     // each request of a burst generates so many tokens more than the one before it
	burstsAtMost = 200
	burstSeconds = 3 // of predicted time, but each number of requests occurs at least twice
)

// bursts are requests that a server is measured with before others are simulated: 1 to slots at a time, which decode
// together, fewer and fewer, with an idle time before the next ones. Prompts have up to longest tokens.
func bursts(plan *planir.Plan, slots, longest int) (trace []Request) {
	times := serving.TimesOf(plan)
	random := rand.New(rand.NewPCG(2, 22))
	at := 0.0 // ns
	for i := 0; i < 2*slots || i < burstsAtMost && at < burstSeconds*1e9; i++ {
		alone := 0.0 // time of the burst's requests
		for j := range 1 + i%slots {
			output := burstTokens * (j + 1)
			most := max(1, min(longest, plan.MaxContext-output))
			request := Request{AtMS: at / 1e6, Class: scheduler.Class((i + j) % 2).String(), Prompt: 1 + random.IntN(most),
				Output: min(output, plan.MaxContext-1)}
			trace = append(trace, request)
			alone += predicted(times, &request)
		}
		at += alone + min(alone, mostDelayed) + burstPause
	}
	return trace
}

// predicted is the time of a request alone, in ns.
func predicted(times *serving.Times, request *Request) (total float64) {
	for left := request.Prompt; left > 0; {
		tokens, ns := times.Chunk(left)
		left -= tokens
		total += float64(ns)
	}
	return total + float64(times.Decode(1))*float64(request.Output-1)
}

// measureOverheads measures the server on this machine with requests of its own, such as bursts. Only the policy Full
// processes prompts beside decoding, and only without classes do all requests always decode together.
func measureOverheads(ctx context.Context, machine *executor.Machine, slots int, trace []Request) (*Overheads, error) {
	out := &Overheads{}
	read, policies := 0.0, []scheduler.Policy{scheduler.Batching, scheduler.Full}
	for _, policy := range policies {
		config := scheduler.Default(slots)
		config.Policy = policy
		report, err := Measure(ctx, machine, trace, config)
		if err != nil {
			return nil, fmt.Errorf("measure what the server takes beside the plan: %w", err)
		}
		out.Calls = merge(out.Calls, report.times)
		read += report.ReadMS * 1e6 / float64(len(policies))
	}
	out.ReadNS = int64(read)
	return out, nil
}

// longestPromptOf is the most tokens of a prompt that the requests of these loads have to process.
func longestPromptOf(loads []load) (longest int) {
	for _, load := range loads {
		for i := range load.trace {
			longest = max(longest, load.trace[i].fresh())
		}
	}
	return cmp.Or(longest, 1)
}
