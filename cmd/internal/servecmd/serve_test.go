package servecmd

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
)

var prompts = []string{
	"In the beginning", "Blessed are", "And it came to pass", "Woe", "Thus saith", "And the LORD said unto Moses",
	"In the beginning God created the heaven and the earth. And the earth was without form, and void;",
	"In the beginning God created the heaven and the earth. And God said, Let there be light",
}

// expected is a request and the tokens that it gets alone.
type expected struct {
	prompt string
	seed   uint64 // 0: greedy
	tokens []int32
}

// greedy chooses the likeliest token.
var greedy executor.Sampler

// longest is how many tokens requests of the load ask for at most.
const longest = 40

// load is what requests are made of: each prompt greedy and drawn.
func load(t *testing.T, r reference) (out []expected) {
	t.Helper()
	for i, prompt := range prompts {
		out = append(out, expected{prompt, 0, r.tokens(t, prompt, greedy, longest)})
		seed := uint64(i + 1)
		drawn := executor.Sampler{Temperature: 0.9, TopK: 40, Seed: seed}
		out = append(out, expected{prompt, seed, r.tokens(t, prompt, drawn, longest)})
	}
	return out
}

// Whatever else runs at the time, and whoever leaves, reads slowly or sends nonsense, each request gets the answer that it
// gets alone; nothing is left of any of them.
func TestLoad(t *testing.T) {
	for _, name := range []string{oneCore, besideIt} {
		t.Run(name, func(t *testing.T) { testLoad(t, name) })
	}
}

func testLoad(t *testing.T, name string) {
	count := 60
	if !testing.Short() {
		count = 1000
	}
	r := aloneIn(t, name)
	cases := load(t, r)
	before := runtime.NumGoroutine()
	s := launchOf(t, name, "--max-body", "8KiB")
	heap := heapBytes()
	s.besiege(r, cases, 8, count)
	s.idle()
	beside := !strings.Contains(s.metrics(), "hetserve_chunks_beside_total 0\n")
	if beside != (name == besideIt) {
		t.Errorf("chunks were processed beside decoding: %v\n%s", beside, s.metrics())
	}
	if grown := heapBytes() - heap; grown > 32<<20 {
		t.Errorf("%d requests have left %d MiB on the heap", count, grown>>20)
	}
	s.end()
	settled(t, before)
}

// besiege has some clients send count requests, of which some are wrong, read slowly or left. Each of the others has to get
// the answer that it gets alone.
func (s *instance) besiege(r reference, cases []expected, many, count int) {
	t := s.t
	t.Helper()
	var next, left, answered, refused atomic.Int64
	var clients sync.WaitGroup
	for client := range many {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(uint64(client), 1))
			for next.Add(1) <= int64(count) {
				one := &cases[random.IntN(len(cases))]
				switch lot := random.IntN(20); {
				case lot < 3:
					if leave(s, one, random) {
						left.Add(1)
					}
				case lot < 5:
					askWrongly(t, s, random)
					refused.Add(1)
				case lot < 7:
					askSlowly(t, s, r, one, random)
					answered.Add(1)
				default:
					askOne(t, s, r, one, random)
					answered.Add(1)
				}
			}
		})
	}
	clients.Wait()
	t.Logf("%d answered, %d left before their answer was complete, %d refused", answered.Load(), left.Load(), refused.Load())
	if left.Load() == 0 || refused.Load() == 0 {
		t.Error("no client left before its answer was complete, or none was refused, so that the test shows less than it " +
			"means to")
	}
}

// heapBytes is what is alive on the heap.
func heapBytes() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// askWrongly sends a body that no request is, and wants it refused.
func askWrongly(t *testing.T, s *instance, random *rand.Rand) {
	bodies := []struct {
		text string
		want int
	}{
		{`{"prompt": "Woe", "max_tokens"`, http.StatusBadRequest}, {`{"prompt": 5}`, http.StatusBadRequest},
		{`{"prompt": "Woe", "max_tokens": -1}`, http.StatusBadRequest}, {"\x00\xff", http.StatusBadRequest}, {"", http.StatusBadRequest},
		{`{"prompt": [99999999]}`, http.StatusBadRequest},
		{`{"prompt": "` + strings.Repeat("Woe ", 4000) + `"}`, http.StatusRequestEntityTooLarge},
	}
	body := bodies[random.IntN(len(bodies))]
	response, err := s.client.Post(s.started.URL+"/completions", "application/json", strings.NewReader(body.text))
	if err != nil {
		if body.want != http.StatusRequestEntityTooLarge { // which may close the connection while the rest is sent
			t.Errorf("%.40q: %v", body.text, err)
		}
		return
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	if response.StatusCode != body.want {
		t.Errorf("%.40q: status %d, want %d", body.text, response.StatusCode, body.want)
	}
}

// askSlowly reads a stream a few bytes at a time, and compares the text.
func askSlowly(t *testing.T, s *instance, r reference, one *expected, random *rand.Rand) {
	size := 1 + random.IntN(longest)
	body := map[string]any{"prompt": one.prompt, "max_tokens": size, "temperature": 0, "stream": true}
	if one.seed != 0 {
		body["temperature"], body["top_k"], body["seed"] = 0.9, 40, one.seed
	}
	want := one.tokens[:min(size, len(one.tokens))]
	got, err := s.completeBy(t.Context(), body, func(from io.Reader) ([]byte, error) {
		var text []byte
		piece := make([]byte, 256)
		for {
			n, err := from.Read(piece)
			text = append(text, piece[:n]...)
			if err == io.EOF {
				return text, nil
			}
			if err != nil {
				return text, err
			}
			time.Sleep(time.Duration(random.IntN(1500)) * time.Microsecond)
		}
	})
	if err != nil || got.text != r.text(want) {
		t.Errorf("%q, seed %d, read slowly: got %q (%v), want %q", one.prompt, one.seed, got.text, err, r.text(want))
	}
}

// askOne sends a request of random length and form, and compares its answer.
func askOne(t *testing.T, s *instance, r reference, one *expected, random *rand.Rand) {
	size := 1 + random.IntN(longest)
	body := map[string]any{"prompt": one.prompt, "max_tokens": size, "temperature": 0, "stream": random.IntN(2) == 0}
	if one.seed != 0 {
		body["temperature"], body["top_k"], body["seed"] = 0.9, 40, one.seed
	}
	if random.IntN(3) == 0 {
		body["service_tier"] = "flex"
	}
	want := one.tokens[:min(size, len(one.tokens))]
	got, err := s.complete(t.Context(), body)
	switch {
	case err != nil:
		t.Errorf("%q: %v", one.prompt, err)
	case got.text != r.text(want) || got.tokens != len(want) || got.finish == "length" != (len(want) == size):
		t.Errorf("%q, seed %d: got %d tokens, %q (%s), want those of the request alone: %d, %q", one.prompt, one.seed,
			got.tokens, got.text, got.finish, len(want), r.text(want))
	}
}

// leave sends a request and goes away at some time; it reports whether that was before the answer was complete.
func leave(s *instance, one *expected, random *rand.Rand) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(random.IntN(40))*time.Millisecond)
	defer cancel()
	_, err := s.complete(ctx, map[string]any{"prompt": one.prompt, "max_tokens": 200, "temperature": 0, "stream": true})
	return err != nil
}

// metrics is what /metrics shows.
func (s *instance) metrics() string {
	s.t.Helper()
	response, err := s.client.Get(strings.TrimSuffix(s.started.URL, "/v1") + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// idle waits until the engine has forgotten all requests.
func (s *instance) idle() {
	s.t.Helper()
	want := []string{
		`hetserve_requests_running{class="proactive"} 0`, `hetserve_requests_running{class="reactive"} 0`,
		`hetserve_requests_waiting{class="proactive"} 0`, `hetserve_requests_waiting{class="reactive"} 0`,
	}
	text := ""
	for range 500 {
		text = s.metrics()
		missing := 0
		for _, line := range want {
			if !strings.Contains(text, line) {
				missing++
			}
		}
		if missing == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.t.Errorf("requests are left in the engine:\n%s", text)
}

// settled fails unless no more goroutines are left than there were.
func settled(t *testing.T, before int) {
	t.Helper()
	for range 500 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	stacks := make([]byte, 1<<16)
	t.Errorf("%d goroutines are left, %d were there before\n%s", runtime.NumGoroutine(), before,
		stacks[:runtime.Stack(stacks, true)])
}

// All policies give the same answers.
func TestPolicies(t *testing.T) {
	r := alone(t)
	want := r.text(r.tokens(t, prompts[0], greedy, 12))
	for _, flags := range [][]string{{"--policy", "batching"}, {"--policy", "fcfs"}, {"--slots", "1"}, {"--draft", "8"}} {
		s := launch(t, flags...)
		var clients sync.WaitGroup
		for range 3 {
			clients.Go(func() {
				got, err := s.complete(t.Context(), map[string]any{"prompt": prompts[0], "max_tokens": 12, "temperature": 0})
				if err != nil || got.text != want {
					t.Errorf("%v: %q, %v, want %q", flags, got.text, err, want)
				}
			})
		}
		clients.Wait()
		s.end()
	}
}

// A plan whose programs round a row differently verifies no drafts, and the server that is asked for some says so.
func TestNoDrafts(t *testing.T) {
	for name, warns := range map[string]bool{inFloat: true, oneCore: false} {
		s := launchOf(t, name, "--draft", "8")
		if said := strings.Contains(s.errs.String(), "--draft 8: no tokens are guessed"); said != warns {
			t.Errorf("%s: warned: %v, want %v\n%s", name, said, warns, s.errs)
		}
		s.end()
	}
}

// A conversation is answered as its text by the chat template is continued, and the next turn reuses the cache. The
// recording says how long both were, and nothing of what they said.
func TestConversation(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	s := launch(t, "--record", trace)
	turn := func(content string) (text string, cached int) {
		t.Helper()
		status, body, err := s.post(t.Context(), "/chat/completions", map[string]any{"max_tokens": 8, "temperature": 0,
			"messages": []map[string]string{{"role": "user", "content": content}}})
		if err != nil || status != http.StatusOK {
			t.Fatalf("status %d, %s, %v", status, body, err)
		}
		var answer struct {
			Choices []struct{ Message struct{ Content string } }
			Usage   struct {
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			t.Fatal(err)
		}
		return answer.Choices[0].Message.Content, answer.Usage.Details.Cached
	}
	first, cached := turn("In the beginning")
	second, more := turn("In the beginning" + first)
	if cached != 0 || more == 0 || second == "" {
		t.Errorf("first turn %q with %d cached tokens, second %q with %d, want none and some", first, cached, second, more)
	}
	s.end()
	data, err := os.ReadFile(trace)
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	if err != nil || len(lines) != 2 {
		t.Fatalf("recorded %q (%v), want 2 lines", data, err)
	}
	var last recorded
	if err := json.Unmarshal([]byte(lines[1]), &last); err != nil {
		t.Fatal(err)
	}
	if last.Class != "reactive" || last.Cached != more || last.Prompt <= more || last.Output < 1 || last.AtMS <= 0 {
		t.Errorf("recorded %+v of a turn with %d cached tokens", last, more)
	}
}

// More requests than may wait are refused at once, and those that wait are answered: two where all come before the first
// has a slot.
func TestQueueIsFull(t *testing.T) {
	s := launch(t, "--slots", "1", "--max-queue", "2", "--policy", "fcfs")
	var answered, refused atomic.Int64
	var clients sync.WaitGroup
	for range 12 {
		clients.Go(func() {
			status, text, err := s.post(t.Context(), "/completions",
				map[string]any{"prompt": "Woe", "max_tokens": 200, "temperature": 0})
			switch {
			case err == nil && status == http.StatusOK:
				answered.Add(1)
			case err == nil && status == http.StatusTooManyRequests && strings.Contains(text, "queue is full"):
				refused.Add(1)
			default:
				t.Errorf("status %d, %s, %v", status, text, err)
			}
		})
	}
	clients.Wait()
	if answered.Load() < 2 || refused.Load() == 0 {
		t.Errorf("%d answered and %d refused, want at least 2 and 1", answered.Load(), refused.Load())
	}
}

// begun starts a long stream and returns when its first event is there; the function returned reads the rest.
func (s *instance) begun() func() (string, error) {
	s.t.Helper()
	body := `{"prompt":"Woe","max_tokens":250,"temperature":0,"stream":true}`
	response, err := s.client.Post(s.started.URL+"/completions", "application/json", strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	first := make([]byte, 1)
	if _, err := response.Body.Read(first); err != nil {
		s.t.Fatal(err)
	}
	return func() (string, error) {
		defer response.Body.Close()
		var rest strings.Builder
		_, err := io.Copy(&rest, response.Body)
		return string(first) + rest.String(), err
	}
}

// The first signal lets requests under way end, and lets no more in.
func TestDrain(t *testing.T) {
	before := runtime.NumGoroutine()
	s := launch(t)
	rest := s.begun()
	s.stop()
	text, err := rest()
	if err != nil || !strings.HasSuffix(text, "data: [DONE]\n\n") {
		t.Errorf("a request under way ended with %v: ...%s", err, text[max(0, len(text)-300):])
	}
	s.end()
	if _, _, err := s.post(t.Context(), "/completions", map[string]any{"prompt": "x"}); err == nil {
		t.Error("the server still answers after it has ended")
	}
	s.client.CloseIdleConnections()
	if !strings.Contains(s.errs.String(), "shutting down") {
		t.Errorf("standard error: %s", s.errs)
	}
	settled(t, before)
}

// Requests that take longer than --drain-timeout end with an error that their clients see.
func TestDrainTimeout(t *testing.T) {
	s := launch(t, "--drain-timeout", "1ms")
	rest := s.begun()
	s.stop()
	text, err := rest()
	if err != nil || strings.Contains(text, "[DONE]") || !strings.Contains(text, `"code":"draining"`) {
		t.Errorf("a request that was ended: %v: ...%s", err, text[max(0, len(text)-300):])
	}
	s.end()
	if !strings.Contains(s.errs.String(), "requests under way were ended") {
		t.Errorf("standard error: %s", s.errs)
	}
}

// A signal while the bundle is loaded ends the command as any other.
func TestInterruptedWhileLoading(t *testing.T) {
	app, key := demo(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	ui := &cli.Streams{Tool: "hetserve", Out: io.Discard, Err: io.Discard}
	err := command(ui, app, "--trust", key, "--listen", "127.0.0.1:0").ExecuteContext(ctx)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v, want that it was cancelled", err)
	}
}

// A processor that fails or hangs ends the requests under way with an error, and the server with its own.
func TestProcessorFails(t *testing.T) {
	for _, hang := range []bool{false, true} {
		released, release := context.WithCancel(context.Background())
		t.Cleanup(release)
		broken := drivertest.Inject(released, host.New(), drivertest.Fault{At: drivertest.AtRun, K: 5000, Hang: hang})
		s := launchOn(t, oneCore, []driver.Driver{broken}, "--deadline", "2s")
		var clients sync.WaitGroup
		var failed atomic.Int64
		for client := range 4 {
			clients.Go(func() {
				for failed.Load() == 0 {
					status, text, err := s.post(t.Context(), "/completions", map[string]any{"prompt": prompts[client],
						"max_tokens": 100, "temperature": 0, "stream": client%2 == 0})
					switch {
					case err != nil: // the server has ended
						return
					case strings.Contains(text, `"error"`):
						failed.Add(1)
						if !strings.Contains(text, "the server's log says why") && !strings.Contains(text, `"code":"draining"`) {
							t.Errorf("hang %v: status %d, %s", hang, status, text)
						}
					}
				}
			})
		}
		clients.Wait()
		err := <-s.ended
		release()
		if failed.Load() == 0 || diag.ClassOf(err) != diag.ClassRun {
			t.Errorf("hang %v: %d requests ended with an error, the server with %v, want one at least, and class %v", hang,
				failed.Load(), err, diag.ClassRun)
		}
		if err != nil {
			t.Logf("hang %v: %v", hang, err)
		}
	}
}
