package traffic

import (
	"cmp"
	"math"
	"math/rand/v2"

	"github.com/hetc/hetc/planir"
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

// served returns what a call takes in the server, of which the plan predicts planned ns.
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

// nearest returns the calls of that kind that came after the same, or else after what is most similar to that; of these
// the ones whose size is nearest, the smaller one of two. nil: none are known.
func (o *Overheads) nearest(key serving.CallKey) (best *serving.CallTimes) {
	if o == nil {
		return nil
	}
	away := func(of *serving.CallTimes) (after, size int) {
		if after = distance(int(of.After), int(key.After)); of.After.Idle() != key.After.Idle() {
			after += serving.Afters
		}
		return after, distance(of.Size, key.Size)
	}
	for i := range o.Calls {
		candidate := &o.Calls[i]
		if candidate.Kind != key.Kind || candidate.After.Idle() && !key.After.Idle() {
			continue
		}
		if best == nil {
			best = candidate
			continue
		}
		after, size := away(candidate)
		bestAfter, bestSize := away(best)
		if cmp.Or(cmp.Compare(after, bestAfter), cmp.Compare(size, bestSize)) < 0 {
			best = candidate
		}
	}
	return best
}

func distance(a, b int) int { return max(a-b, b-a) }

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
	longestPause = 320e6 // ns between two bursts in the mean
	mostBusy     = 0.9   // share of the time that bursts take by the plan's predictions: a server takes longer
	burstTokens  = 8     // each request of a burst generates so many tokens more than the one before it
	burstsAtMost = 200
	burstSeconds = 10 // of predicted time, but each number of requests occurs at least once
)

// bursts are requests that a server is measured with besides those that are simulated: 1 to slots at a time, which
// decode together, fewer and fewer. Between two bursts lie times as random as between arrivals, so long that the
// machine is busy for the given share of the time by the plan's predictions: cores that seldom sleep are faster.
// Prompts have up to longest tokens. They are several traces; in each every number of requests occurs.
func bursts(plan *planir.Plan, slots, longest, traces int, busy float64) [][]Request {
	times := serving.TimesOf(plan)
	random := rand.New(rand.NewPCG(2, 22))
	busy = min(max(busy, 1e-6), mostBusy)
	out := make([][]Request, traces)
	ends := make([]float64, traces) // ns
	total := 0.0
	for i := 0; i < traces*slots || i < burstsAtMost && total < burstSeconds*1e9; i++ {
		part := i / slots % traces
		alone := 0.0 // time of the burst's requests
		for j := range 1 + i%slots {
			output := burstTokens * (j + 1)
			most := max(1, min(longest, plan.MaxContext-output))
			request := Request{AtMS: ends[part] / 1e6, Class: scheduler.Class((i + j) % 2).String(), Prompt: 1 + random.IntN(most),
				Output: min(output, plan.MaxContext-1)}
			out[part] = append(out[part], request)
			alone += predicted(times, &request)
		}
		lasts := alone + random.ExpFloat64()*min(longestPause, alone*(1-busy)/busy)
		ends[part] += lasts
		total += lasts
	}
	return out
}

// predicted returns the time of a request alone, in ns.
func predicted(times *serving.Times, request *Request) (total float64) {
	for left := request.Prompt; left > 0; {
		tokens, ns := times.Chunk(left)
		left -= tokens
		total += float64(ns)
	}
	return total + float64(times.Decode(1))*float64(request.Output-1)
}

// overheadsOf returns what the server took while these were measured; nil: nothing was.
func overheadsOf(reports []*Report) *Overheads {
	if len(reports) == 0 {
		return nil
	}
	read := 0.0
	for _, report := range reports {
		read += report.ReadMS * 1e6 / float64(len(reports))
	}
	return &Overheads{Calls: measuredCalls(reports), ReadNS: int64(read)}
}

// longestToProcess returns the most tokens of a prompt that the requests of a trace have to process.
func longestToProcess(trace []Request) (longest int) {
	for i := range trace {
		longest = max(longest, trace[i].fresh())
	}
	return cmp.Or(longest, 1)
}
