package serving_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	openclcompiler "github.com/hetc/hetc/emit/compile/opencl"
	ortcompiler "github.com/hetc/hetc/emit/compile/ort"
	"github.com/hetc/hetc/internal/clapi"
	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/opencl"
	"github.com/hetc/hetc/runtime/driver/ort"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/quality"
	"github.com/hetc/hetc/runtime/scheduler"
	"github.com/hetc/hetc/runtime/serving"
)

// exchange is a request of a trace and what it got.
type exchange struct {
	serving.Request
	got    []serving.Token
	reason serving.Reason
	left   bool // its reader wanted no more
}

// users send random requests until each has sent so many. Their conversations go on and begin alike, repeat what was
// said, are greedy or drawn, of either class, want scores, end early or leave.
func users(t *testing.T, server *serving.Server, begin []int32, many, each int) (all []exchange) {
	t.Helper()
	var mutex sync.Mutex
	var wait sync.WaitGroup
	for user := range many {
		wait.Go(func() {
			random := rand.New(rand.NewPCG(uint64(user), 23))
			var history []int32
			for range each {
				history = append(history, says(random, begin, history)...)
				if len(history) > contextLength-40 || random.IntN(4) == 0 {
					history = nil
					continue
				}
				one := converse(t, server, random, history)
				for _, token := range one.got {
					history = append(history, token.ID)
				}
				mutex.Lock()
				all = append(all, one)
				mutex.Unlock()
			}
		})
	}
	wait.Wait()
	return all
}

// converse sends a conversation so far, and reads the answer or a part of it.
func converse(t *testing.T, server *serving.Server, random *rand.Rand, history []int32) exchange {
	one := exchange{Request: serving.Request{
		Class:     scheduler.Class(random.IntN(2)),
		Prompt:    slices.Clone(history),
		MaxTokens: 1 + random.IntN(60),
		LogProbs:  random.IntN(5) - 1,
	}}
	if random.IntN(2) == 0 {
		one.Sampler = executor.Sampler{Temperature: 0.4, TopK: random.IntN(9), TopP: 0.9, Seed: random.Uint64()}
	}
	answer, err := server.Submit(one.Request)
	if err != nil {
		t.Error(err)
		return one
	}
	switch random.IntN(8) {
	case 0:
		time.Sleep(time.Duration(random.IntN(3000)) * time.Microsecond)
		answer.Cancel()
	case 1:
		if token, there, _ := answer.Next(context.Background()); there {
			one.got = append(one.got, token)
		}
		answer.Enough()
		one.left = true
	}
	for token := range answer.Tokens() {
		one.got = append(one.got, token)
	}
	if one.reason, err = answer.End(); err != nil {
		t.Error(err)
	}
	one.left = one.left || one.reason == serving.Cancelled
	return one
}

// says is the next message of a conversation: some of what all begin with, something new, something that was said
// before.
func says(random *rand.Rand, begin, history []int32) (out []int32) {
	if len(history) == 0 && random.IntN(4) > 0 {
		out = append(out, begin[:random.IntN(len(begin)+1)]...)
	}
	for range 1 + random.IntN(20) {
		out = append(out, int32(random.IntN(vocabulary)))
	}
	if from := len(history) - 20; from > 0 && random.IntN(2) == 0 {
		out = append(out, history[random.IntN(from):][:20]...)
	}
	return out
}

// byItself is what a request gets of a server that has never had another one and guesses nothing.
func byItself(t *testing.T, x *executor.Machine, request serving.Request) []serving.Token {
	t.Helper()
	server, err := serving.New(x, serving.Options{Scheduler: scheduler.Default(1)})
	if err != nil {
		t.Fatal(err)
	}
	answer := submit(t, server, request)
	server.Drain()
	if err := server.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return slices.Collect(answer.Tokens())
}

// same reports whether tokens are the same, with the bits of their scores.
func same(a, b serving.Token) bool {
	return a.ID == b.ID && a.LogProb == b.LogProb && slices.Equal(a.Likely, b.Likely)
}

// Every request of random traces gets the tokens that it gets alone, with the same bits of log probabilities. This
// holds whatever runs beside it or before it, what of its prompt is in the cache or was computed ahead of time, and
// whatever is guessed.
func TestTracesAreThoseAlone(t *testing.T) {
	for name, of := range map[string]func(t *testing.T) (string, shape){
		"one core": func(*testing.T) (string, shape) { return demo, shape{} },
		"two cores, beside": func(t *testing.T) (string, shape) {
			twoCores(t)
			return demo, shape{beside: true}
		},
		"experts": func(*testing.T) (string, shape) { return experts, shape{} },
		"dropped rows": func(t *testing.T) (string, shape) {
			return experts, shape{tiers: []planir.ExpertTiers{dropping(t, 16), dropping(t, 64)}}
		},
		"4 bit in decode":  func(*testing.T) (string, shape) { return demo, shape{scheme: fewBitsInDecode} },
		"sparse attention": sparseShape,
		"shadow outliers":  outlierShape,
		"columns divided":  func(t *testing.T) (string, shape) { return demo, onTwoCores(t, byColumns) },
		"all on opencl":    func(t *testing.T) (string, shape) { return demo, onOpenCL(t, everything) },
	} {
		t.Run(name, func(t *testing.T) {
			if name != "one core" && name != "4 bit in decode" {
				require.Slow(t)
			}
			dir, like := of(t)
			tracesAreThoseAlone(t, machineOf(t, dir, like))
		})
	}
}

// Where programs compute the same row in unlike ways, nothing is guessed: what is verified would not be what plain
// decoding computes.
func TestUnlikeProgramsGuessNothing(t *testing.T) {
	for name, of := range map[string]func(t *testing.T) (string, shape){
		"sums divided in prefill":  func(t *testing.T) (string, shape) { return demo, onTwoCores(t, byPairs) },
		"prompts on opencl":        func(t *testing.T) (string, shape) { return demo, onOpenCL(t, promptsOnly) },
		"products by onnx runtime": onORT,
	} {
		t.Run(name, func(t *testing.T) {
			if name == "prompts on opencl" {
				require.Slow(t)
			}
			dir, like := of(t)
			x := machineOf(t, dir, like)
			server := runningWith(t, x, serving.Options{Scheduler: scheduler.Default(4), Draft: 7})
			for _, request := range draftRequests(12) {
				ask(t, server, request)
			}

			if x.Plan().Unlike() == "" {
				t.Error("the plan's programs are alike")
			}
			if guessed := server.Metrics().DraftTokens; guessed > 0 {
				t.Errorf("%d tokens were guessed, want none", guessed)
			}
		})
	}
}

// tracesAreThoseAlone plays a trace of one user, and of six at once, on a server with a prefix.
func tracesAreThoseAlone(t *testing.T, x *executor.Machine) {
	t.Helper()
	begin := drawText(90)
	ahead := begin[:70]
	cache := cachedTokens(t, x, ahead)
	each := 15
	if testing.Short() {
		each = 6
	}
	config := scheduler.Default(4)
	config.Queue, config.AgeNS = 0, 5e6
	server, err := serving.New(x, serving.Options{Scheduler: config, Draft: 7, Prefix: ahead, PrefixCache: cache})
	if err != nil {
		t.Fatal(err)
	}

	done := make(chan error, 1)
	go func() { done <- server.Run(t.Context()) }()
	all := append(users(t, server, begin, 1, each), users(t, server, begin, 6, each)...)
	server.Drain()
	if err := <-done; err != nil {
		t.Fatal(err)
	}

	for i := range all {
		one := &all[i]
		want := byItself(t, x, one.Request)
		n := len(one.got)
		rightLength := n == len(want) || n < len(want) && one.left
		if !rightLength || !slices.EqualFunc(one.got, want[:n], same) {
			t.Errorf("request %d of %d tokens, %+v: got %v (%s), alone %v", i, len(one.Prompt), one.Sampler, one.got,
				one.reason, want)
		}
	}
	metrics := server.Metrics()
	t.Logf("%d requests: %+v", len(all), metrics)
	if metrics.ReusedTokens == 0 {
		t.Error("nothing was reused")
	}
}

// twoCores skips a test where there are no two.
func twoCores(t *testing.T) {
	t.Helper()
	if runtime.NumCPU() < 2 {
		t.Skip("one core")
	}
}

// fewBitsInDecode has other schemes in decode than in prefill.
func fewBitsInDecode(_ string, rows int) op.Scheme {
	if rows <= 4 {
		return op.A8TQ4B32
	}
	return op.A8TQ8C
}

// calibrationOf is a calibration of a model with even attention.
func calibrationOf(t *testing.T, model *models.Model) *calibration.Calibration {
	t.Helper()
	digest, err := model.Digest()
	if err != nil {
		t.Fatal(err)
	}
	of := calibration.Model{Name: model.Name, Digest: digest}
	return calibration.Even(of, model.Layers, model.Heads, model.KVHeads, 0.3)
}

// sparseShape has sparse attention in prefill.
func sparseShape(t *testing.T) (string, shape) {
	t.Helper()
	model, err := models.Open(demo)
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	return demo, shape{calibration: calibrationOf(t, model), sparse: []int{16, 64}}
}

// outlierShape has static scales that some channels exceed, which are multiplied beside the products.
func outlierShape(t *testing.T) (string, shape) {
	t.Helper()
	model, err := models.Open(demo)
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	allOf := func(scheme op.Scheme) func(string, int) op.Scheme {
		return func(string, int) op.Scheme { return scheme }
	}

	var ranges quality.Ranges
	observed := machineOf(t, demo, shape{scheme: allOf(op.A32W32), observe: ranges.Observe})
	request := serving.Request{Prompt: drawRequests(1, vocabulary)[0].Prompt, MaxTokens: 1}
	alone(t, observed, request)
	ranges.Again()
	alone(t, observed, request)

	cal := calibrationOf(t, model)
	cal.Attention = nil
	if cal.Activations, err = ranges.Activations(0); err != nil {
		t.Fatal(err)
	}
	return demo, shape{calibration: cal, scheme: allOf(op.A8OQ8C)}
}

// onTwoCores divides decisions between two cores.
func onTwoCores(t *testing.T, divide func(*planir.Decision, *lower.Node)) shape {
	t.Helper()
	twoCores(t)
	second := onCore("b", "1", 1)
	return shape{second: &second, divide: divide}
}

// halves divides a length between processors a and b, at a multiple of 32.
func halves(length int) []planir.Share {
	middle := length / 64 * 32
	return []planir.Share{{Proc: "a", To: middle}, {Proc: "b", From: middle, To: length}}
}

// byColumns divides the columns of products in prefill.
func byColumns(decision *planir.Decision, node *lower.Node) {
	if o := node.Op(); o.Kind == op.MatMul && decision.Rows > 4 {
		decision.Strategy, decision.Axis = planir.WeightCentric, planir.AxisCols
		decision.Shares = halves(o.N)
	}
}

// byPairs divides the reduction of products in prefill: their parts are rounded before they are added.
func byPairs(decision *planir.Decision, node *lower.Node) {
	if o := node.Op(); o.Kind == op.MatMul && decision.Rows > 4 {
		decision.Strategy, decision.Axis = planir.Paired, planir.AxisK
		decision.Shares = halves(o.K)
	}
}

// onOpenCL gives nodes to a device of OpenCL.
func onOpenCL(t *testing.T, divide func(*planir.Decision, *lower.Node)) shape {
	t.Helper()
	device := openCLProc(t)
	whatItCan := func(decision *planir.Decision, node *lower.Node) {
		unable := slices.ContainsFunc(node.Ops, func(o op.Op) bool {
			return len(device.Kinds) > 0 && !slices.Contains(device.Kinds, o.Kind)
		})
		if !unable {
			divide(decision, node)
		}
	}
	return shape{
		second:  &device,
		divide:  whatItCan,
		drivers: []driver.Driver{opencl.New()},
		with:    []driver.Compiler{openclcompiler.New()},
	}
}

// openCLProc is what a plan says of a device of OpenCL; without any the test is skipped.
func openCLProc(t *testing.T) planir.Proc {
	t.Helper()
	require.Deps()
	out := planir.Proc{Name: "b", Kind: "gpu", Driver: opencl.Name, Options: map[string]string{"memory": "own"}}
	devices, err := opencl.New().Devices(t.Context())
	intel := filepath.Join(os.Getenv(native.EnvDir), clapi.IntelFolder, clapi.IntelLibrary)
	switch _, missing := os.Stat(intel); {
	case len(devices) > 0:
		out.Select = devices[0].Select
	case missing == nil:
		out.Select, out.Options["library"] = "0.0", intel
	default:
		require.Skip(t, opencl.Name, err)
	}
	opened, err := opencl.New().Open(t.Context(), driver.Config{Select: out.Select, Options: out.Options})
	if err != nil {
		t.Fatal(err)
	}
	capabilities := opened.Capabilities()
	out.Set = capabilities.Offered()
	slices.Sort(out.Kinds)
	if err := opened.Close(); err != nil {
		t.Fatal(err)
	}
	return out
}

// onORT has ONNX Runtime execute what it can.
func onORT(t *testing.T) (string, shape) {
	t.Helper()
	require.Deps()
	opened, err := ort.New().Open(t.Context(), driver.Config{Select: "0"})
	if errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrIncapable) {
		require.Skip(t, ort.Name, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	capabilities := opened.Capabilities()
	second := planir.Proc{
		Name: "b", Kind: "cpu", Driver: ort.Name, Select: "0",
		Cores: capabilities.Cores, Set: capabilities.Offered(),
	}
	slices.Sort(second.Kinds)
	if err := opened.Close(); err != nil {
		t.Fatal(err)
	}
	products := func(decision *planir.Decision, node *lower.Node) {
		if node.Op().Kind == op.MatMul && slices.Contains(second.Kinds, op.MatMul) {
			decision.Shares[0].Proc = "b"
		}
	}
	return demo, shape{
		second:  &second,
		divide:  products,
		drivers: []driver.Driver{ort.New()},
		with:    []driver.Compiler{ortcompiler.New()},
	}
}

// promptsOnly has prompts processed by the second processor.
func promptsOnly(decision *planir.Decision, _ *lower.Node) {
	if decision.Rows > 4 {
		decision.Shares[0].Proc = "b"
	}
}

// everything is executed by the second processor.
func everything(decision *planir.Decision, _ *lower.Node) { decision.Shares[0].Proc = "b" }
