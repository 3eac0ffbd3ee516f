package serving_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hetc/hetc/emit"
	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/scheduler"
	"github.com/hetc/hetc/runtime/serving"
)

const vocabulary, contextLength = 2048, 256

const (
	demo    = "../../testdata/models/tiny-llama-kjv"
	experts = "../../testdata/models/tiny-moe-kjv"
)

// machine is a model in 8 bit on one core, with a cache for four sequences.
func machine(t testing.TB, dir string) *executor.Machine {
	t.Helper()
	return machineOf(t, dir, shape{})
}

// machineIn is a model whose products have these schemes, by node and rows.
func machineIn(t testing.TB, dir string, scheme func(node string, rows int) op.Scheme) *executor.Machine {
	t.Helper()
	return machineOf(t, dir, shape{scheme: scheme})
}

// machineBeside is machine with a second core, which processes prompts while the first one decodes.
func machineBeside(t testing.TB, dir string) *executor.Machine {
	t.Helper()
	if runtime.NumCPU() < 2 {
		t.Skip("one core")
	}
	return machineOf(t, dir, shape{beside: true})
}

// shape is what differs among the plans of the tests. All have a model on core 0, and a cache for four sequences.
type shape struct {
	scheme func(node string, rows int) op.Scheme // of products; nil: 8 bit, with a scale per row
	beside bool                                  // core 1 processes prompts while core 0 decodes
	tiers  []planir.ExpertTiers

	// second is a processor named b, to which divide may give a node, or a part of it; nil: there is none.
	second  *planir.Proc
	divide  func(decision *planir.Decision, node *lower.Node)
	drivers []driver.Driver // beside the host's
	with    []driver.Compiler

	observe func(executor.Observed)

	// calibration is what the plan was made with, nil for none; attention is sparse then in programs of sparse rows.
	calibration *calibration.Calibration
	sparse      []int
}

// onCore is what a plan says of a core.
func onCore(name, core string, cores ...int) planir.Proc {
	return planir.Proc{
		Name: name, Kind: "cpu", Driver: "host", Select: core, Cores: cores,
		Set: capability.Set{
			Tile: capability.Tile{K: pack.BlockK, N: pack.TileN}, Schemes: op.Schemes,
			Layouts:     map[string]string{"q8c": pack.N32, "q4b32": pack.N32, "w16": pack.N32, "w32": pack.N32},
			DynamicRows: true, StridedInput: true, StridedOutput: true, WeightRanges: true,
		},
	}
}

// planOf is the plan of a shape.
func planOf(t testing.TB, model *models.Model, of *shape) *planir.Plan {
	t.Helper()
	digest, err := model.Digest()
	if err != nil {
		t.Fatal(err)
	}
	plan := &planir.Plan{
		Schema:     planir.Schema,
		Model:      planir.ModelRef{Name: model.Name, Digest: digest, BOS: model.BOS, EOS: model.EOS},
		SoC:        planir.SoCRef{Name: "test", Control: "a"},
		MaxContext: contextLength,
		KV:         op.F32,
		Batches:    []int{2, 4},
		Procs:      []planir.Proc{onCore("a", "0", 0)},
		Experts:    of.tiers,
	}
	if of.calibration != nil {
		if digest, err = of.calibration.Digest(); err != nil {
			t.Fatal(err)
		}
		plan.Inputs = []planir.Input{{Kind: planir.CalibrationInput, Digest: digest}}
	}
	if of.sparse != nil {
		plan.Attention = &planir.Attention{Density: of.calibration.Attention.Densities[0], Block: 8, Rows: of.sparse}
	}
	if of.beside {
		plan.Procs = append(plan.Procs, onCore("b", "1", 1))
		plan.Beside = &planir.Beside{Prefill: "b", Decode: "a"}
	}
	if of.second != nil {
		plan.Procs = append(plan.Procs, *of.second)
	}

	graph := model.Graph()
	batch := graph.Batch()
	if plan.Decisions, err = lower.TrivialOf(plan, &graph, "a", []int{1, 16, 64}, of.scheme); err != nil {
		t.Fatal(err)
	}
	together, err := lower.Trivial(&batch, "a", plan.Batches, contextLength, op.F32, of.scheme)
	if err != nil {
		t.Fatal(err)
	}
	plan.Decisions = append(plan.Decisions, together...)
	if of.divide != nil {
		of.divideAll(t, plan, &graph)
	}
	if err := lower.Lower(plan, &graph); err != nil {
		t.Fatal(err)
	}
	predict(plan)
	return plan
}

// divideAll lets divide change the decisions of all nodes.
func (s *shape) divideAll(t testing.TB, plan *planir.Plan, graph *models.Graph) {
	t.Helper()
	for _, rows := range []int{1, 2, 4, 16, 64} {
		of := lower.GraphOf(plan, graph, rows)
		scheme := func(node string) op.Scheme { return s.scheme(node, rows) }
		sections, err := lower.Expand(of, rows, contextLength, op.F32, scheme, plan.TiersOf(rows), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, section := range sections {
			for i := range section.Nodes {
				if decision := plan.DecisionFor(section.Nodes[i].Name, rows); decision != nil {
					s.divide(decision, &section.Nodes[i])
				}
			}
		}
	}
}

// predict gives a plan times as on a machine whose memory bounds it.
func predict(plan *planir.Plan) {
	if plan.Beside != nil {
		plan.Beside.Pairs = []planir.BesidePair{
			{PrefillRows: 16, DecodeRows: 1, PrefillNS: 200e3, DecodeNS: 120e3},
			{PrefillRows: 16, DecodeRows: 2, PrefillNS: 210e3, DecodeNS: 130e3},
			{PrefillRows: 16, DecodeRows: 4, PrefillNS: 220e3, DecodeNS: 140e3},
			{PrefillRows: 64, DecodeRows: 1, PrefillNS: 400e3, DecodeNS: 120e3},
			{PrefillRows: 64, DecodeRows: 2, PrefillNS: 410e3, DecodeNS: 130e3},
			{PrefillRows: 64, DecodeRows: 4, PrefillNS: 420e3, DecodeNS: 140e3},
		}
	}
	plan.Predictions = append(plan.Predictions,
		planir.Prediction{Program: "decode", PlanNS: 100e3},
		planir.Prediction{Program: "decode@2", PlanNS: 110e3},
		planir.Prediction{Program: "decode@4", PlanNS: 120e3},
		planir.Prediction{Program: "prefill@16", PlanNS: 150e3},
		planir.Prediction{Program: "prefill@64", PlanNS: 300e3})
}

// machineOf is a model as a shape says.
func machineOf(t testing.TB, dir string, of shape) *executor.Machine {
	t.Helper()
	model, err := models.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	if of.scheme == nil {
		of.scheme = func(string, int) op.Scheme { return op.A8TQ8C }
	}
	plan := planOf(t, model, &of)

	content, err := emit.NewCalibrated(t.Context(), plan, model, of.calibration, append(of.with, hostcompiler.New()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { content.Close() })
	x, err := executor.Open(t.Context(), plan, content, executor.Options{
		Drivers: append(of.drivers, host.New()),
		Observe: of.observe,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	return x
}

// running serves a machine until the test ends.
func running(t testing.TB, x *executor.Machine, config scheduler.Config) *serving.Server {
	t.Helper()
	return runningWith(t, x, serving.Options{Scheduler: config})
}

// runningWith serves a machine with options until the test ends.
func runningWith(t testing.TB, x *executor.Machine, options serving.Options) *serving.Server {
	t.Helper()
	server, err := serving.New(x, options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return server
}

// submit sends a request, which is to be accepted.
func submit(t testing.TB, server *serving.Server, request serving.Request) *serving.Answer {
	t.Helper()
	answer, err := server.Submit(request)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// ask sends a request and returns the tokens of its whole answer.
func ask(t testing.TB, server *serving.Server, request serving.Request) []int32 {
	t.Helper()
	ids, _, err := collect(submit(t, server, request))
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// collect reads an answer to its end.
func collect(answer *serving.Answer) (ids []int32, reason serving.Reason, err error) {
	for token := range answer.Tokens() {
		ids = append(ids, token.ID)
	}
	reason, err = answer.End()
	return ids, reason, err
}

// alone is what the machine generates for a request when nothing else runs.
func alone(t testing.TB, x *executor.Machine, request serving.Request) []int32 {
	t.Helper()
	x.Reset()
	sampler := request.Sampler
	out, err := x.Generate(context.Background(), request.Prompt, request.MaxTokens, &sampler, nil)
	if err != nil {
		t.Fatal(err)
	}
	return out.Tokens
}

// drawRequests are random requests; some share the beginnings of their prompts, some are sampled.
func drawRequests(n, vocabulary int) (out []serving.Request) {
	random := rand.New(rand.NewPCG(7, 22))
	system := make([]int32, 40)
	for i := range system {
		system[i] = int32(random.IntN(vocabulary))
	}
	for range n {
		var prompt []int32
		if random.IntN(2) == 0 {
			prompt = append(prompt, system[:1+random.IntN(len(system))]...)
		}
		for range 1 + random.IntN(100) {
			prompt = append(prompt, int32(random.IntN(vocabulary)))
		}
		request := serving.Request{
			Class:     scheduler.Class(random.IntN(2)),
			Prompt:    prompt,
			MaxTokens: 1 + random.IntN(12),
			LogProbs:  -1,
		}
		if random.IntN(3) == 0 {
			request.Sampler = executor.Sampler{Temperature: 0.8, TopK: 40, Seed: random.Uint64()}
		}
		out = append(out, request)
	}
	return out
}

// Under every policy, requests get the tokens that they get alone, whatever runs beside them, is cancelled beside them,
// or was in the cache before.
func TestAnswersAreThoseAlone(t *testing.T) {
	answersAreThoseAlone(t, machine(t, demo))
}

// So they do where prompts are processed beside decoding.
func TestAnswersBesideOthersAreThoseAlone(t *testing.T) {
	answersAreThoseAlone(t, machineBeside(t, demo))
}

// A prompt of which the cache has all but the last token has no chunk to process beside decoding, and none is counted.
func TestNoChunkIsLeft(t *testing.T) {
	server := running(t, machineBeside(t, demo), scheduler.Default(4))
	submit := func(prompt []int32, tokens int) *serving.Answer {
		t.Helper()
		answer, err := server.Submit(serving.Request{Class: scheduler.Reactive, Prompt: prompt, MaxTokens: tokens,
			IgnoreEnd: true, LogProbs: -1})
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	prompt := drawRequests(1, vocabulary)[0].Prompt
	for len(prompt) < 40 {
		prompt = append(prompt, 7)
	}
	want, _, err := collect(submit(prompt, 1))
	if err != nil {
		t.Fatal(err)
	}
	long := submit([]int32{5, 6, 7}, contextLength-3)
	if _, there, err := long.Next(t.Context()); !there || err != nil {
		t.Fatal(there, err)
	}
	again := submit(prompt, 1)
	got, _, err := collect(again)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v (%v), want %v", got, err, want)
	}
	if reused, metrics := again.Usage().ReusedTokens, server.Metrics(); reused != len(prompt)-1 || metrics.Beside != 0 {
		t.Errorf("%d of %d tokens are reused, and %d chunks ran beside decoding, want none", reused, len(prompt),
			metrics.Beside)
	}
	if _, _, err := collect(submit(prompt[1:], 1)); err != nil || server.Metrics().Beside == 0 {
		t.Errorf("%v, and no chunk of another prompt ran beside decoding", err)
	}
	long.Cancel()
}

// dropping are capacity tiers of tiny-moe-kjv with slots of so few rows that most are dropped.
func dropping(t testing.TB, rows int) planir.ExpertTiers {
	t.Helper()
	model, err := models.Open(experts)
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	tiers := planir.ExpertTiers{
		Rows: rows, Loads: "by hand", Experts: model.Experts,
		Overflow: planir.OverflowDrop, Salience: op.SalienceWeight,
		Groups: []planir.ExpertGroup{{Slots: model.Experts, Rows: 2}}, Status: "feasible",
	}
	for _, layer := range model.ExpertLayers() {
		here := planir.ExpertLayer{Layer: layer}
		for expert := range model.Experts {
			here.Slots = append(here.Slots, expert)
		}
		tiers.Layers = append(tiers.Layers, here)
	}
	return tiers
}

// Answers are those alone also where rows of experts are dropped, which depends on the rows that a call has. Therefore
// only whole calls of an earlier prompt are reused, and no draft is verified, also where the command line asks for
// drafts.
func TestDroppedRowsAreThoseAlone(t *testing.T) {
	x := machineOf(t, experts, shape{tiers: []planir.ExpertTiers{dropping(t, 16), dropping(t, 64)}})
	random := rand.New(rand.NewPCG(9, 22))
	var requests []serving.Request
	text := make([]int32, 150)
	for i := range text {
		text[i] = int32(random.IntN(vocabulary))
	}
	for _, n := range []int{70, 100, 70, 64, 65, 150, 30, 31, 20} {
		prompt := slices.Concat(text[:n], text[:n/4])
		requests = append(requests, serving.Request{Prompt: prompt, MaxTokens: 5, LogProbs: -1})
	}
	want := allAlone(t, x, requests)

	server := runningWith(t, x, serving.Options{Scheduler: scheduler.Default(4), Draft: 7})
	for i, request := range requests {
		if got := ask(t, server, request); !slices.Equal(got, want[i]) {
			t.Errorf("request %d of %d tokens: got %v, alone %v", i, len(request.Prompt), got, want[i])
		}
	}

	metrics := server.Metrics()
	if metrics.ReusedTokens < 64 {
		t.Errorf("%d tokens were reused, want a call's at least", metrics.ReusedTokens)
	}
	if metrics.DraftTokens > 0 {
		t.Errorf("%d tokens were drafted, want none", metrics.DraftTokens)
	}
}

// allAlone is what the machine generates for each request when nothing else runs.
func allAlone(t testing.TB, x *executor.Machine, requests []serving.Request) [][]int32 {
	t.Helper()
	var answers [][]int32
	for _, request := range requests {
		answers = append(answers, alone(t, x, request))
	}
	return answers
}

// answersAreThoseAlone has eight users send requests, of which some are cancelled, under every policy.
func answersAreThoseAlone(t *testing.T, x *executor.Machine) {
	t.Helper()
	count := 40
	if testing.Short() {
		count = 16
	}
	requests := drawRequests(count, vocabulary)
	want := allAlone(t, x, requests)
	before := runtime.NumGoroutine()
	for _, policy := range scheduler.Policies {
		t.Run(string(policy), func(t *testing.T) {
			config := scheduler.Default(4)
			config.Policy, config.Queue, config.AgeNS = policy, 0, 1e6
			server := running(t, x, config)
			var users sync.WaitGroup
			for user := range 8 {
				users.Go(func() { sendSome(t, server, requests, want, user, 8) })
			}
			users.Wait()

			metrics := server.Metrics()
			if metrics.Waiting != [2]int{} || metrics.Running != [2]int{} {
				t.Errorf("all have ended: %+v", metrics)
			}
			if metrics.Chunks == 0 || metrics.Iterations == 0 || metrics.BusyNS == 0 {
				t.Errorf("counted %+v", metrics)
			}
			countsCalls(t, server)
			if beside := x.Plan().Beside != nil && policy == scheduler.Full; beside != (metrics.Beside > 0) {
				t.Errorf("%d chunks were processed beside decoding", metrics.Beside)
			}
		})
	}

	deadline := time.Now().Add(time.Minute)
	for runtime.NumGoroutine() > before && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond) // one that has just said that it ends is still counted
	}
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("%d goroutines, %d before", after, before)
	}
}

// sendSome is one of several users, who sends every so many requests, cancels some of them, and compares the answers.
func sendSome(t *testing.T, server *serving.Server, requests []serving.Request, want [][]int32, user, users int) {
	random := rand.New(rand.NewPCG(uint64(user), 1))
	for i := user; i < len(requests); i += users {
		answer, err := server.Submit(requests[i])
		if err != nil {
			t.Error(err)
			return
		}
		if random.IntN(4) == 0 {
			time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
			answer.Cancel()
		}

		got, reason, err := collect(answer)

		beginning := len(got) <= len(want[i]) && slices.Equal(got, want[i][:len(got)])
		whole := len(got) == len(want[i])
		if err != nil || !beginning || !whole && reason != serving.Cancelled {
			t.Errorf("request %d: got %v (%s, %v), alone %v", i, got, reason, err, want[i])
		}
	}
}

// countsCalls checks that every program call was counted, with the time that the server took for it.
func countsCalls(t *testing.T, server *serving.Server) {
	t.Helper()
	var metrics serving.Metrics
	var chunks, others, served int64
	for range 1000 { // the last call is counted after its tokens were handed out
		metrics = server.Metrics()
		chunks, others, served = 0, 0, 0
		for _, sum := range metrics.Calls {
			takeTime := sum.CallNS >= sum.Calls && sum.ServedNS >= sum.CallNS && sum.PlannedNS >= sum.Calls
			if sum.Calls < 1 || sum.Size < 1 || !takeTime {
				t.Fatalf("%+v: want calls that take time, and longer in the server", sum)
			}
			served += sum.ServedNS
			if sum.Kind == serving.ChunkCall || sum.Kind == serving.LastChunkCall {
				chunks += sum.Calls
			} else {
				others += sum.Calls
			}
		}
		if others == metrics.Iterations {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if others != metrics.Iterations {
		t.Errorf("%d calls that decode, want %d", others, metrics.Iterations)
	}
	if metrics.Beside > 0 {
		return
	}
	if chunks != metrics.Chunks {
		t.Errorf("%d calls for prompts, want %d", chunks, metrics.Chunks)
	}
	if served < metrics.BusyNS {
		t.Errorf("calls were served in %d ns, and the server was busy for %d", served, metrics.BusyNS)
	}
}

// Where long prompts are rotated by their length, a cache of shorter or longer ones is not taken for theirs.
func TestLongPromptsReuseNothing(t *testing.T) {
	for _, name := range []string{"llama-longrope", "llama-dynamic-64", "phi3-longrope"} {
		x := machine(t, "../../testdata/arch/"+name)
		requests := drawRequests(30, x.Vocabulary())
		for i := range requests { // two of three begin alike, short and long ones
			if i%3 > 0 {
				first, own := requests[0].Prompt, requests[i].Prompt
				requests[i].Prompt = slices.Concat(first[:min(25, len(first))], own[:min(len(own), 10+20*(i%6))])
			}
		}

		server := running(t, x, scheduler.Default(4))
		var got [][]int32
		for _, request := range requests {
			answer := submit(t, server, request)
			if len(got)%5 == 4 {
				answer.Cancel()
			}
			ids, _, err := collect(answer)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, ids)
		}

		if server.Metrics().ReusedTokens == 0 {
			t.Errorf("%s: short prompts reused nothing", name)
		}
		for i, request := range requests { // nothing is asked of the server any more
			want := alone(t, x, request)
			if !slices.Equal(got[i], want[:min(len(got[i]), len(want))]) {
				t.Errorf("%s, request %d of %d tokens: got %v, alone %v", name, i, len(request.Prompt), got[i], want)
			}
		}
	}
}

// draftRequests have prompts in which there is something to copy, greedy and sampled in turn.
func draftRequests(count int) (requests []serving.Request) {
	for i, request := range drawRequests(count, vocabulary) {
		request.Prompt = append(request.Prompt, request.Prompt...)
		request.Prompt = request.Prompt[:min(150, len(request.Prompt))]
		request.MaxTokens = 60
		if i%2 == 0 {
			request.Sampler = executor.Sampler{Temperature: 0.3, TopK: 5, Seed: uint64(i)}
		}
		requests = append(requests, request)
	}
	return requests
}

// With drafts, every answer is that of plain decoding, greedy or sampled. Some of the guesses are right, and others
// not.
func TestDraftsChangeNothing(t *testing.T) {
	require.Slow(t)
	x := machine(t, demo)
	requests := draftRequests(24)
	want := allAlone(t, x, requests)
	for _, most := range []int{0, 7} {
		t.Run(fmt.Sprintf("drafts of %d", most), func(t *testing.T) {
			var counted serving.Usage
			count := func(ended serving.Ended) {
				counted.Guessed += ended.Guessed
				counted.Right += ended.Right
			}
			options := serving.Options{Scheduler: scheduler.Default(4), Draft: most, Ended: count}
			server, err := serving.New(x, options)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- server.Run(t.Context()) }()

			for i, request := range requests {
				if got := ask(t, server, request); !slices.Equal(got, want[i]) {
					t.Errorf("request %d: got %v, alone %v", i, got, want[i])
				}
			}
			server.Drain()
			if err := <-done; err != nil {
				t.Fatal(err)
			}

			// What a draft would have been is known, and counted, also where none is tried.
			if counted.Right == 0 || counted.Right >= counted.Guessed || counted.Guessed > 60*len(requests) {
				t.Errorf("%d of %d guesses were right", counted.Right, counted.Guessed)
			}
			metrics := server.Metrics()
			t.Logf("%d of %d guesses and %d of %d tokens of drafts were right", counted.Right, counted.Guessed,
				metrics.RightTokens, metrics.DraftTokens)
			if most == 0 {
				if metrics.DraftTokens != 0 {
					t.Errorf("%d tokens were drafted without drafts", metrics.DraftTokens)
				}
				return
			}
			if metrics.RightTokens == 0 || metrics.RightTokens == metrics.DraftTokens {
				t.Errorf("%d of %d tokens of drafts were right, want some", metrics.RightTokens, metrics.DraftTokens)
			}
		})
	}
}

// drawText are so many random tokens, of which parts are repeated.
func drawText(count int) []int32 {
	text := drawRequests(1, vocabulary)[0].Prompt
	for len(text) < count {
		text = append(text, text...)
	}
	return text[:count]
}

// An answer that is given comes as it is, with drafts and without.
func TestGivenAnswers(t *testing.T) {
	x := machine(t, demo)
	passage := drawText(60)
	request := serving.Request{Prompt: passage, MaxTokens: 50, Given: passage, IgnoreEnd: true, LogProbs: -1}
	for _, most := range []int{0, 7} {
		server := runningWith(t, x, serving.Options{Scheduler: scheduler.Default(1), Draft: most})

		got, reason, err := collect(submit(t, server, request))

		if err != nil || reason != serving.Length || !slices.Equal(got, passage[:50]) {
			t.Errorf("drafts of %d: got %v (%s, %v), want %v", most, got, reason, err, passage[:50])
		}
		t.Logf("drafts of %d: %d tokens of them were right", most, server.Metrics().RightTokens) // as time permits
		server.Drain()
	}

	request.MaxTokens = 61
	server := runningWith(t, x, serving.Options{Scheduler: scheduler.Default(1)})
	if _, err := server.Submit(request); err == nil {
		t.Error("60 tokens were accepted as an answer of 61")
	}
}

// Where decoding has other schemes than prefill, only what was a prompt serves another prompt, and drafts are not
// tried: a conversation gets the answers that it gets alone.
func TestOtherSchemesInDecode(t *testing.T) {
	x := machineIn(t, demo, fewBitsInDecode)
	server := runningWith(t, x, serving.Options{Scheduler: scheduler.Default(4), Draft: 7})
	var requests []serving.Request
	var got [][]int32
	var prompt []int32
	for turn := range int32(8) {
		prompt = append(slices.Clone(prompt), 20+turn, 40+turn, 60+turn)
		request := serving.Request{Prompt: prompt, MaxTokens: 12, LogProbs: -1}
		ids := ask(t, server, request)
		requests, got = append(requests, request), append(got, ids)
		prompt = append(prompt, ids...)
	}

	if metrics := server.Metrics(); metrics.ReusedTokens == 0 || metrics.DraftTokens != 0 {
		t.Errorf("%d tokens reused, drafts of %d", metrics.ReusedTokens, metrics.DraftTokens)
	}
	for i, want := range allAlone(t, x, requests) {
		if !slices.Equal(got[i], want) {
			t.Errorf("turn %d: got %v, alone %v", i, got[i], want)
		}
	}
}

// A prompt gets what it gets alone also if it begins with one whose last token was decoded, in other schemes, because
// it was left over by itself.
func TestPromptBehindADecodedToken(t *testing.T) {
	x := machineIn(t, demo, fewBitsInDecode)
	server := runningWith(t, x, serving.Options{Scheduler: scheduler.Default(4), Draft: 7})
	long := drawText(100)
	decoded := serving.Request{Prompt: long[:65], MaxTokens: 24} // a call of 64 tokens and one of 1
	request := serving.Request{Prompt: long, MaxTokens: 24}      // calls of 64 and 36

	ask(t, server, decoded)
	got := slices.Collect(submit(t, server, request).Tokens())

	if reused := server.Metrics().ReusedTokens; reused == 0 {
		t.Error("nothing was reused")
	}
	if want := byItself(t, x, request); !slices.EqualFunc(got, want, same) {
		t.Errorf("got %v, alone %v", got, want)
	}
}

// A conversation of ten turns processes each message once: the whole history is in the cache.
func TestConversationIsNotProcessedAgain(t *testing.T) {
	x := machine(t, demo)
	server := running(t, x, scheduler.Default(4))
	history := []int32{1}
	for turn := range 10 {
		message := []int32{int32(20 + turn), int32(40 + turn), int32(60 + turn)}
		prompt := append(slices.Clone(history), message...)
		answer := submit(t, server, serving.Request{
			Class: scheduler.Reactive, Prompt: prompt, MaxTokens: 8, LogProbs: -1,
		})
		got, _, err := collect(answer)
		if err != nil {
			t.Fatal(err)
		}

		// The last token of an answer is in no cache yet: nothing followed it.
		if reused := answer.Usage().ReusedTokens; turn > 0 && reused < len(history)-1 {
			t.Errorf("turn %d: %d of %d tokens of the history processed again", turn, len(history)-reused, len(history))
		}
		history = slices.Concat(prompt, got)
	}
}

// Log probabilities are those of the logits, and the likeliest token is the greedy one.
func TestLogProbs(t *testing.T) {
	x := machine(t, demo)
	request := serving.Request{Prompt: []int32{1, 5, 9}, MaxTokens: 4, LogProbs: 3}

	tokens := slices.Collect(submit(t, running(t, x, scheduler.Default(4)), request).Tokens())

	if len(tokens) != 4 {
		t.Errorf("%d tokens, want 4", len(tokens))
	}
	for i, token := range tokens {
		if token.LogProb > 0 || math.IsNaN(token.LogProb) {
			t.Errorf("token %d has log probability %v", i, token.LogProb)
		}
		if len(token.Likely) != 3 {
			t.Errorf("token %d has %d likely ones, want 3", i, len(token.Likely))
			continue
		}
		first, second := token.Likely[0], token.Likely[1]
		if first.ID != token.ID || first.LogProb != token.LogProb || second.LogProb > token.LogProb {
			t.Errorf("token %d: %+v, want the likeliest one first", i, token)
		}
	}
}

// goodRequest is short and wants little.
var goodRequest = serving.Request{Prompt: []int32{1, 2}, MaxTokens: 3, LogProbs: -1}

// Requests that nobody could answer are refused, and so is a server with more slots than the machine has sequences.
func TestRefusals(t *testing.T) {
	x := machine(t, demo)
	server, err := serving.New(x, serving.Options{Scheduler: scheduler.Default(4)}) // nothing runs
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*serving.Request){
		"no prompt":           func(r *serving.Request) { r.Prompt = nil },
		"no tokens":           func(r *serving.Request) { r.MaxTokens = 0 },
		"a long prompt":       func(r *serving.Request) { r.Prompt = make([]int32, contextLength+1) },
		"an id":               func(r *serving.Request) { r.Prompt = []int32{vocabulary} },
		"a negative id":       func(r *serving.Request) { r.Prompt = []int32{-1} },
		"a class":             func(r *serving.Request) { r.Class = 2 },
		"log probabilities":   func(r *serving.Request) { r.LogProbs = vocabulary + 1 },
		"a temperature below": func(r *serving.Request) { r.Sampler.Temperature = -1 },
	} {
		request := goodRequest
		change(&request)
		if _, err := server.Submit(request); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := serving.New(x, serving.Options{Scheduler: scheduler.Default(9)}); err == nil {
		t.Error("nine slots of four sequences were accepted")
	}
}

// A request is refused when the queue is full, and when the server shuts down, which answers what it has accepted.
func TestFullAndDraining(t *testing.T) {
	config := scheduler.Default(4)
	config.Queue = 1
	server, err := serving.New(machine(t, demo), serving.Options{Scheduler: config}) // nothing runs yet
	if err != nil {
		t.Fatal(err)
	}

	first := submit(t, server, goodRequest)
	if _, err := server.Submit(goodRequest); !errors.Is(err, serving.ErrFull) {
		t.Errorf("got %v, want that the queue is full", err)
	}

	server.Drain()
	if _, err := server.Submit(goodRequest); !errors.Is(err, serving.ErrDraining) {
		t.Errorf("got %v, want that the server shuts down", err)
	}
	if err := server.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ids, reason, err := collect(first); len(ids) != 3 || reason != serving.Length || err != nil {
		t.Errorf("got %v, %q, %v, want 3 tokens", ids, reason, err)
	}
}

// A request that waits takes memory for its prompt, not for the longest answer that it may get: with the context of
// 131,072 tokens that models have, a full queue would take hundreds of MiB.
func TestWaitingTakesLittle(t *testing.T) {
	const count, most = 1000, 4 << 10 // bytes each
	config := scheduler.Default(4)
	config.Queue = 0
	server, err := serving.New(machine(t, demo), serving.Options{Scheduler: config}) // nothing runs
	if err != nil {
		t.Fatal(err)
	}
	heap := func() int64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}

	before := heap()
	for range count {
		submit(t, server, serving.Request{Prompt: []int32{1, 2}, MaxTokens: contextLength, LogProbs: -1})
	}

	if each := (heap() - before) / count; each > most {
		t.Errorf("a request of 2 tokens that waits takes %d bytes, want at most %d", each, most)
	}
	runtime.KeepAlive(server)
}

// A reader that has all that it wants ends its request, which is then no cancelled one. Its slot is free for another.
func TestEnough(t *testing.T) {
	server := running(t, machine(t, demo), scheduler.Default(1))
	for range 2 {
		answer := submit(t, server, serving.Request{
			Prompt: []int32{1, 5}, MaxTokens: 200, LogProbs: -1, IgnoreEnd: true,
		})
		if _, there, err := answer.Next(t.Context()); !there || err != nil {
			t.Fatalf("no token: %v", err)
		}
		answer.Enough()
		answer.Cancel() // comes too late
		if ids, reason, err := collect(answer); reason != serving.Stop || err != nil {
			t.Errorf("%d more tokens, then %q, %v, want that it stopped", len(ids), reason, err)
		}
	}
	if metrics := server.Metrics(); metrics.Cancelled != [2]int64{} || metrics.Running != [2]int{} {
		t.Errorf("cancelled %v, running %v, want none", metrics.Cancelled, metrics.Running)
	}
}

// Waiting for a token ends with the context.
func TestNextEndsWithItsContext(t *testing.T) {
	server, err := serving.New(machine(t, demo), serving.Options{Scheduler: scheduler.Default(1)}) // nothing runs
	if err != nil {
		t.Fatal(err)
	}
	answer := submit(t, server, goodRequest)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Millisecond, cancel)

	if _, there, err := answer.Next(ctx); there || !errors.Is(err, context.Canceled) {
		t.Errorf("got a token: %v, %v, want that the context ended", there, err)
	}
}

// A new conversation takes the place of a long one, and what both begin with is not processed again, although it is the
// smaller part of the cache.
func TestPlaceThatIsTakenIsReused(t *testing.T) {
	x := machine(t, demo)
	random := rand.New(rand.NewPCG(4, 22))
	text := make([]int32, 300)
	for i := range text {
		text[i] = int32(random.IntN(vocabulary))
	}
	prompts := [][]int32{
		text[:200],
		slices.Concat(text[:60], text[200:230]),
		slices.Concat(text[:60], text[230:300]),
	}

	server := running(t, x, scheduler.Default(1))
	var got [][]int32
	for i, prompt := range prompts {
		answer := submit(t, server, serving.Request{Prompt: prompt, MaxTokens: 8, LogProbs: -1})
		ids, _, err := collect(answer)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, ids)
		if reused := answer.Usage().ReusedTokens; i > 0 && reused < 60 {
			t.Errorf("request %d: %d tokens were reused, want the 60 that all begin with", i, reused)
		}
	}

	for i, prompt := range prompts { // nothing is asked of the server any more
		if want := alone(t, x, serving.Request{Prompt: prompt, MaxTokens: 8}); !slices.Equal(got[i], want) {
			t.Errorf("request %d: got %v, alone %v", i, got[i], want)
		}
	}
}

// Prompts that begin with what was computed ahead of time, or with a part of it, do not process that, and get the
// tokens that they get alone.
func TestPrefixIsNotProcessedAgain(t *testing.T) {
	x := machine(t, demo)
	random := rand.New(rand.NewPCG(3, 22))
	tokens := func(n int) (out []int32) {
		for range n {
			out = append(out, int32(random.IntN(vocabulary)))
		}
		return out
	}
	prefix := tokens(90)
	cache := cachedTokens(t, x, prefix)

	var requests []serving.Request
	var reused []int
	for i, n := range []int{90, 90, 40, 0, 90, 89, 90} {
		prompt := append(slices.Clone(prefix[:n]), tokens(5+i)...)
		requests = append(requests, serving.Request{
			Prompt: prompt, MaxTokens: 6, LogProbs: -1, Class: scheduler.Reactive,
		})
		reused = append(reused, n)
	}
	requests = append(requests, serving.Request{Prompt: prefix, MaxTokens: 6, LogProbs: -1})
	reused = append(reused, 89) // the last token is processed
	want := allAlone(t, x, requests)

	options := serving.Options{Scheduler: scheduler.Default(4), Prefix: prefix, PrefixCache: cache}
	server := runningWith(t, x, options)
	var answers []*serving.Answer
	for _, request := range requests { // all at once
		answers = append(answers, submit(t, server, request))
	}

	for i, answer := range answers {
		got, _, err := collect(answer)
		if err != nil || !slices.Equal(got, want[i]) {
			t.Errorf("request %d: got %v (%v), alone %v", i, got, err, want[i])
		}
		if usage := answer.Usage(); usage.ReusedTokens < reused[i] {
			t.Errorf("request %d: %d tokens were not processed, want at least %d", i, usage.ReusedTokens, reused[i])
		}
	}
}

// cachedTokens processes tokens and returns what the cache holds of them.
func cachedTokens(t *testing.T, x *executor.Machine, tokens []int32) (cache []byte) {
	t.Helper()
	x.Reset()
	err := x.Do(t.Context(), func(control *executor.Control) (err error) {
		if _, err = control.Extend(0, tokens, executor.WantNone, nil); err != nil {
			return err
		}
		cache, err = control.Cached(0, len(tokens))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return cache
}
