package traffic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/scheduler"
	"github.com/hetc/hetc/runtime/serving"
)

// fits refuses a trace that the context of a plan does not hold. The last token of an answer takes no position: nothing
// is computed from it.
func fits(plan *planir.Plan, trace []Request) error {
	for i := range trace {
		request := &trace[i]
		if request.Prompt > plan.MaxContext || request.Output-1 > plan.MaxContext-request.Prompt {
			return diag.New(diag.ClassInput,
				"request %d of the trace has %d tokens and an answer of %d, and the plan has a context of %d",
				i+1, request.Prompt, request.Output, plan.MaxContext).
				WithHint("solve with a larger context in the workload, or draw shorter requests")
		}
	}
	return nil
}

// Simulate plays a trace on a virtual clock: program calls take what the plan predicts, and nothing else takes time.
// The slots of the configuration are the plan's sequences if they are 0.
func Simulate(ctx context.Context, plan *planir.Plan, trace []Request, config scheduler.Config) (*Report, error) {
	return simulateServed(ctx, plan, trace, config, nil)
}

// simulateServed is Simulate where program calls take what they took in a server; nil: what the plan predicts.
func simulateServed(ctx context.Context, plan *planir.Plan, trace []Request, config scheduler.Config,
	overheads *Overheads) (*Report, error) {
	if err := fits(plan, trace); err != nil {
		return nil, err
	}
	if len(plan.Predictions) == 0 {
		return nil, diag.New(diag.ClassInput, "simulate: the plan predicts no times")
	}
	times := serving.TimesOf(plan)
	config.ChunkNS, config.DecodeNS, config.Beside = times.Chunk, times.Decode, times.Beside
	config.Queue = 0
	if config.Slots == 0 {
		config.Slots = plan.Sequences()
	}
	config.Reserved = min(config.Reserved, config.Slots-1)
	state, err := scheduler.New(config)
	if err != nil {
		return nil, err
	}
	play := simulation{state: state, times: times, used: newUsage(plan, times), config: &config, trace: trace,
		overheads: overheads, woken: serving.AfterIdle(0), courses: make([]course, len(trace)), pending: make([]int64, len(trace)),
		left: make([]int, len(trace))}
	if err := play.run(ctx); err != nil {
		return nil, err
	}
	if overheads != nil {
		for i := range play.courses {
			play.courses[i].first += overheads.ReadNS
			play.courses[i].last += overheads.ReadNS
		}
	}
	report := summarise(config.Policy, play.courses, play.busy, state.Counts())
	report.Simulated = true
	for i := range report.Classes {
		report.Classes[i].Pending = play.meanPending(report.Classes[i].Class)
	}
	report.Processors = play.used.report(report.Seconds, play.busy)
	for i := range trace {
		report.Processed += int64(trace[i].fresh() + trace[i].Output)
	}
	return report, nil
}

// simulation is a trace under way on a virtual clock. A request's ID is its number in the trace and one.
type simulation struct {
	state   *scheduler.State
	times   *serving.Times
	used    *usage
	config  *scheduler.Config
	trace   []Request
	courses []course
	pending []int64 // ns until the first chunk of each request began
	left    []int   // of the prompts
	arrived int     // requests so far
	now     int64
	busy    int64
	before  serving.CallKey // the latest program call
	woken   serving.After   // the idle time that the next one ends; 0: none
	beside  scheduler.ID    // whose chunk is processed beside decoding; 0: none
	part    float64         // of that chunk that is done

	overheads *Overheads // nil: program calls take what the plan predicts
}

// A clock counts ns: a call takes less than half of what it can count (served.Read), and so does all before.
const (
	year   = 365 * 24 * 3600 * int64(1e9)
	mostNS = 100 * year
)

// run plays the trace to its end.
func (s *simulation) run(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("simulate: %w", err)
		}
		if s.now > mostNS {
			return diag.New(diag.ClassInput,
				"simulate: the trace takes more than %d years with these times of program calls", mostNS/year)
		}
		if err := s.arrivals(); err != nil {
			return err
		}
		action := s.state.Next(s.now)
		switch action.Kind {
		case scheduler.Idle:
			if s.arrived == len(s.trace) {
				return nil
			}
			s.woken = serving.AfterIdle(s.at(s.arrived) - s.now)
			s.now = s.at(s.arrived)
		case scheduler.Prefill:
			id := action.Requests[0]
			s.begun(id)
			left := s.left[id-1]
			tokens, ns := s.config.ChunkNS(left)
			if tokens < left {
				s.used.chunk(s.times.ChunkProgram(left))
			} else {
				s.used.called(s.times.ChunkProgram(left), ns)
			}
			s.call(serving.Call{Tokens: tokens, Rest: left})
			s.left[id-1] -= tokens
			s.state.Prefilled(s.now, id, tokens)
			if s.left[id-1] == 0 {
				s.token(id)
			}
		case scheduler.Decode:
			ids := slices.Clone(action.Requests)
			s.decode(len(ids))
			s.state.Decoded(s.now, ids)
			for _, id := range ids {
				s.token(id)
			}
			s.arrive()
		case scheduler.Begin:
			s.beside, s.part = action.Requests[0], 0
			s.begun(s.beside)
		case scheduler.Await:
			side, _ := s.config.Beside(s.left[s.beside-1], 1)
			rest := int64((1 - s.part) * float64(side.AloneNS))
			prefill, _ := s.times.Pair()
			s.used.alone(prefill, rest)
			s.spend(rest)
			s.part = 1
			s.arrive()
		}
	}
}

// begun notes how long a request has waited when its first chunk begins.
func (s *simulation) begun(id scheduler.ID) {
	if s.left[id-1] == s.trace[id-1].fresh() {
		s.pending[id-1] = s.now - s.courses[id-1].arrived
	}
}

// meanPending returns how long the requests of a class wait for their first chunk, in ms.
func (s *simulation) meanPending(class string) float64 {
	var waits []float64
	for i := range s.trace {
		if s.trace[i].Class == class {
			waits = append(waits, float64(s.pending[i])/1e6)
		}
	}
	return mean(waits)
}

// at is when request number i of the trace arrives: ns.
func (s *simulation) at(i int) int64 { return int64(s.trace[i].AtMS * 1e6) }

// decode lets an iteration pass, and what of the chunk beside it is processed meanwhile.
func (s *simulation) decode(requests int) {
	if s.beside == 0 {
		ns := s.config.DecodeNS(requests)
		s.used.called(s.times.DecodeProgram(requests), ns)
		s.call(serving.Call{Sequences: requests})
		return
	}
	side := s.times.Meanwhile(s.left[s.beside-1], requests)
	prefill, decode := s.times.Pair()
	// The chunk may end within the iteration, although its end is noticed only with the iteration's.
	rest := int64(max(0, 1-s.part) * float64(side.ChunkNS))
	s.used.alone(prefill, min(rest, side.DecodeNS))
	s.used.alone(decode, side.DecodeNS)
	s.call(serving.Call{Sequences: requests, Beside: true, Rest: s.left[s.beside-1]})
	s.part += float64(side.DecodeNS) / float64(max(1, side.ChunkNS))
}

// arrive ends the chunk beside decoding once all of it is done.
func (s *simulation) arrive() {
	if s.beside == 0 || s.part < 1 {
		return
	}
	id := s.beside
	side, _ := s.config.Beside(s.left[id-1], 1)
	s.beside = 0
	s.left[id-1] -= side.Tokens
	s.state.Prefilled(s.now, id, side.Tokens)
	if s.left[id-1] == 0 {
		s.token(id)
	}
}

// call lets the clock go on while the server executes a program call.
func (s *simulation) call(call serving.Call) {
	key, planned := s.times.Planned(call)
	key = key.Follow(s.before, s.woken)
	s.before = key
	s.spend(s.overheads.served(key, planned))
}

// spend lets the clock go on for ns in which the machine works.
func (s *simulation) spend(ns int64) {
	s.now += ns
	s.busy += ns
	s.woken = 0
}

// arrivals submits the requests that have arrived by now.
func (s *simulation) arrivals() error {
	for ; s.arrived < len(s.trace) && s.at(s.arrived) <= s.now; s.arrived++ {
		request := &s.trace[s.arrived]
		s.left[s.arrived] = request.fresh()
		s.courses[s.arrived] = course{class: request.class(), prompt: request.Prompt, arrived: s.at(s.arrived)}
		err := s.state.Submit(s.at(s.arrived),
			scheduler.Request{ID: scheduler.ID(s.arrived + 1), Class: request.class(),
				Prompt: request.fresh()})
		if err != nil {
			return err
		}
	}
	return nil
}

// token gives a request a token, and ends it with its last one.
func (s *simulation) token(id scheduler.ID) {
	c := &s.courses[id-1]
	if c.tokens++; c.tokens == 1 {
		c.first = s.now
	}
	c.last = s.now
	if c.tokens == s.trace[id-1].Output {
		s.state.End(id)
	}
}

// Measure plays a trace on a machine, in real time or, where that is simulated, on its virtual clock. Prompts are
// random tokens, none of which was there before; every request gets all its tokens, whatever the model says. The
// machine is warm (serving.Warm): otherwise the first requests wait until programs are loaded.
func Measure(ctx context.Context, machine *executor.Machine, trace []Request, config scheduler.Config) (*Report,
	error) {
	if err := fits(machine.Plan(), trace); err != nil {
		return nil, err
	}
	config.Queue = 0
	options := serving.Options{Scheduler: config, Draft: -1}
	var courses []course
	var metrics serving.Metrics
	var err error
	if machine.Plan().SoC.Simulated {
		clock := &virtualClock{took: func(call serving.Call) int64 { return call.NS }}
		courses, metrics, err = clock.play(ctx, machine, trace, options)
	} else {
		courses, metrics, err = playNow(ctx, machine, trace, options)
	}
	if err != nil {
		return nil, err
	}
	report := summarise(config.Policy, courses, metrics.BusyNS, scheduler.Counts{Chunks: metrics.Chunks,
		Iterations: metrics.Iterations, Preemptions: metrics.Preemptions, Beside: metrics.Beside})
	report.Virtual = machine.Plan().SoC.Simulated
	report.times, report.Calls = metrics.Calls, callReports(metrics.Calls)
	for i := range courses {
		report.ReadMS += float64(courses[i].read) / 1e6 / float64(len(courses))
	}
	return report, nil
}

// prompts are random tokens for every request of a trace: those that no cache holds.
func prompts(machine *executor.Machine, trace []Request) [][]int32 {
	random := rand.New(rand.NewPCG(1, 22))
	out := make([][]int32, len(trace))
	for i := range trace {
		out[i] = make([]int32, trace[i].fresh())
		for j := range out[i] {
			out[i][j] = random.Int32N(int32(machine.Vocabulary()))
		}
	}
	return out
}

// asks returns a request of a trace as the server takes it.
func asks(request *Request, prompt []int32) serving.Request {
	return serving.Request{Class: request.class(), Prompt: prompt, MaxTokens: request.Output, IgnoreEnd: true,
		LogProbs: -1}
}

// playNow plays a trace in real time.
func playNow(ctx context.Context, machine *executor.Machine, trace []Request, options serving.Options) ([]course,
	serving.Metrics, error) {
	server, err := serving.New(machine, options)
	if err != nil {
		return nil, serving.Metrics{}, err
	}
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	courses := make([]course, len(trace))
	failed := make([]error, len(trace))
	texts := prompts(machine, trace)
	interrupted := onTime(ctx, trace, func(i int, began time.Time) {
		courses[i], failed[i] = use(server, began, &trace[i], texts[i])
	})
	server.Drain()
	if err := cmp.Or(<-done, interrupted); err != nil {
		return nil, serving.Metrics{}, err
	}
	return courses, server.Metrics(), errors.Join(failed...)
}

// onTime calls send for each request of a trace when its time has come, and waits for all calls. The error says
// that ctx ended meanwhile.
func onTime(ctx context.Context, trace []Request, send func(i int, began time.Time)) error {
	began := time.Now()
	var users sync.WaitGroup
	for i := range trace {
		select {
		case <-time.After(time.Until(began.Add(time.Duration(trace[i].AtMS * 1e6)))):
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		users.Go(func() { send(i, began) })
	}
	users.Wait()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("measure a trace: %w", err)
	}
	return nil
}

// use sends a request and notes when its tokens come.
func use(server *serving.Server, began time.Time, request *Request, prompt []int32) (course, error) {
	out := course{class: request.class(), prompt: request.Prompt, arrived: int64(time.Since(began))}
	answer, err := server.Submit(asks(request, prompt))
	if err != nil {
		return out, err
	}
	for token := range answer.Tokens() {
		out.last = int64(time.Since(began))
		if out.tokens++; out.tokens == 1 {
			out.first = out.last
			out.read = out.first - out.arrived - token.AfterNS
		}
	}
	return out, whole(answer)
}

// whole reports an answer that lacks tokens.
func whole(answer *serving.Answer) error {
	switch reason, err := answer.End(); {
	case err != nil:
		return err
	case reason != serving.Length: // which the context of the plan allows, so somebody ended it
		return fmt.Errorf("a request of the trace ended with %q", reason)
	}
	return nil
}
