package httpapi

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/golden"
	"github.com/hetc/hetc/runtime/scheduler"
	"github.com/hetc/hetc/runtime/serving"
)

func TestMain(m *testing.M) { os.Exit(golden.Main(m)) }

const beginning = " God created the heaven and the earth."

// volatile is what differs between runs.
var volatile = regexp.MustCompile(`"(id":"(?:chat)?cmpl-)[0-9a-f]{16}|"(created":)\d+`)

func TestAnswersAreGolden(t *testing.T) {
	tests := []struct{ name, path, body string }{
		{"chat", "/v1/chat/completions", `{` + hello + `}`},
		{"chat scores", "/v1/chat/completions", `{` + hello + `,"max_tokens":2,"logprobs":true,"top_logprobs":2}`},
		{"chat stream", "/v1/chat/completions", `{` + hello + `,"stream":true}`},
		{"chat stream usage", "/v1/chat/completions",
			`{` + hello + `,"stream":true,"stream_options":{"include_usage":true},"max_tokens":2,"logprobs":true,"top_logprobs":1}`},
		{"chat stop", "/v1/chat/completions", `{` + hello + `,"stop":["the earth"],"service_tier":"flex"}`},
		{"text", "/v1/completions", `{"prompt":"In the beginning"}`},
		{"text scores", "/v1/completions", `{"prompt":"In the beginning","max_tokens":2,"logprobs":2}`},
		{"text stream", "/v1/completions", `{"prompt":"In the beginning","stream":true,"stop":" heaven","logprobs":1}`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := serve(t, &fakeEngine{text: beginning, reason: serving.Stop}, nil)
			response, text := f.post(test.path, test.body)
			kind := response.Header.Get("Content-Type")
			if streams := strings.Contains(test.name, "stream"); streams != (kind == "text/event-stream") {
				t.Errorf("content type %q", kind)
			}
			golden.Equal(t, "txt", []byte(volatile.ReplaceAllString(text, `"${1}${2}0`)))
		})
	}
}

// events are the data of a stream.
func events(t *testing.T, text string) (out []string) {
	t.Helper()
	for event := range strings.SplitSeq(strings.TrimSuffix(text, "\n\n"), "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		if !ok || strings.Contains(data, "\n") {
			t.Fatalf("event %q", event)
		}
		out = append(out, data)
	}
	return out
}

// streamed is the text of a stream and why it ended.
func streamed(t *testing.T, text string) (answer, finish string) {
	t.Helper()
	all := events(t, text)
	if last := all[len(all)-1]; last != "[DONE]" {
		t.Fatalf("the last event is %q", last)
	}
	for _, data := range all[:len(all)-1] {
		var event struct {
			Choices []struct {
				Text   string
				Delta  struct{ Content string }
				Finish string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			t.Fatalf("event %q: %v", data, err)
		}
		for _, choice := range event.Choices {
			answer, finish = answer+choice.Delta.Content+choice.Text, choice.Finish
		}
	}
	return answer, finish
}

// A stop sequence that spells a special token ends the answer at that token, which has no text of its own.
func TestSpecialTokenIsAStop(t *testing.T) {
	for _, test := range []struct{ stop, want, finish string }{
		{`"</s>"`, " God created", finishStop},
		{`[" created and","</s>"]`, " God created", finishStop}, // a part of the other one was held back
		{`["created","</s>"]`, " God ", finishStop},
		{`"<s>"`, " God created the heaven", finishLength},
		{`"</s> the"`, " God created the heaven", finishLength},
	} {
		f := serve(t, &fakeEngine{text: " God created</s> the heaven", reason: serving.Length}, nil)
		_, text := f.post("/v1/completions", `{"prompt":"a","logprobs":0,"stop":`+test.stop+`}`)
		var whole struct {
			Choices []struct {
				Text     string
				Finish   string `json:"finish_reason"`
				LogProbs struct{ Tokens []string }
			}
		}
		if err := json.Unmarshal([]byte(text), &whole); err != nil {
			t.Fatal(err)
		}
		got := whole.Choices[0]
		if got.Text != test.want || got.Finish != test.finish {
			t.Errorf("stop %s: %s, want %q and %q", test.stop, text, test.want, test.finish)
		}
		if stopped := test.finish == finishStop; stopped == slices.Contains(got.LogProbs.Tokens, "</s>") {
			t.Errorf("stop %s: scores of %q", test.stop, got.LogProbs.Tokens)
		}
		_, text = f.post("/v1/completions", `{"prompt":"a","stream":true,"stop":`+test.stop+`}`)
		if answer, finish := streamed(t, text); answer != test.want || finish != test.finish {
			t.Errorf("stop %s, streamed: %q, %q", test.stop, answer, finish)
		}
	}
}

// Among the likeliest tokens of a completion is the one that was drawn, as in OpenAI's answers: clients look it up.
func TestDrawnTokenIsAmongTheLikeliest(t *testing.T) {
	for _, test := range []struct {
		likely []scored
		want   map[string]float64
	}{
		{nil, map[string]float64{" a": -3}},
		{[]scored{{text: " b", logProb: -1}, {text: " c", logProb: -2}}, map[string]float64{" b": -1, " c": -2, " a": -3}},
		{[]scored{{text: " b", logProb: -1}, {text: " a", logProb: -3}}, map[string]float64{" b": -1, " a": -3}},
	} {
		got := textScoresOf([]scored{{text: " a", logProb: -3, likely: test.likely}}, true)
		if len(got.Likely) != 1 || !maps.Equal(got.Likely[0], test.want) {
			t.Errorf("of %v: %v, want %v", test.likely, got.Likely, test.want)
		}
	}
}

// A stream and an answer at once have the same text, the text before the first stop sequence; no event shows a part of
// that sequence.
func TestStopSequencesInEveryPlace(t *testing.T) {
	text := beginning + " Then said he: 語 ééé."
	f := serve(t, &fakeEngine{text: text, reason: serving.Length}, nil)
	all := []rune(text)
	for from := range all {
		for _, size := range []int{1, 2, 5} {
			stop := string(all[from:min(from+size, len(all))])
			want, _ := beforeStop(text, []string{stop})
			body := fmt.Sprintf(`{"prompt":"x","max_tokens":60,"stop":[%q]`, stop)
			_, stream := f.post("/v1/completions", body+`,"stream":true}`)
			if got, finish := streamed(t, stream); got != want || finish != "stop" {
				t.Errorf("stop %q: streamed %q (%s), want %q", stop, got, finish, want)
			}
			var whole struct{ Choices []struct{ Text string } }
			_, at := f.post("/v1/completions", body+"}")
			if err := json.Unmarshal([]byte(at), &whole); err != nil || whole.Choices[0].Text != want {
				t.Errorf("stop %q: %q, %v, want %q", stop, at, err, want)
			}
		}
	}
}

func TestWhatIsSubmitted(t *testing.T) {
	f := serve(t, &fakeEngine{text: "x", reason: serving.Stop}, nil)
	tests := []struct {
		path, body, class string
		check             func(r serving.Request) bool
		want              string
	}{
		{"chat/completions", `{` + hello + `}`, "", func(r serving.Request) bool {
			return r.Class == scheduler.Reactive && r.MaxTokens == 40 && r.LogProbs == -1 && r.Sampler.Temperature == 1
		}, "as many tokens as --max-tokens, temperature 1, reactive"},
		{"chat/completions", `{` + hello + `,"max_tokens":2000000000}`, "",
			func(r serving.Request) bool { return r.MaxTokens == 40 }, "no more than --max-tokens"},
		{"completions", `{"prompt":"x"}`, "", func(r serving.Request) bool { return r.MaxTokens == 16 }, "16 tokens"},
		{"completions", `{"prompt":[` + strings.Repeat("5,", 63) + `5]}`, "",
			func(r serving.Request) bool { return len(r.Prompt) == 64 && r.MaxTokens == 1 }, "a token behind a full context"},
		{"completions", `{"prompt":[5,6],"seed":7,"temperature":0,"logprobs":3}`, "", func(r serving.Request) bool {
			return slices.Equal(r.Prompt, []int32{5, 6}) && r.Sampler.Seed == 7 && r.Sampler.Temperature == 0 && r.LogProbs == 3
		}, "ids and seed as they are"},
		{"completions", `{"prompt":"x","service_tier":"flex"}`, "",
			func(r serving.Request) bool { return r.Class == scheduler.Proactive }, "flex is proactive"},
		{"completions", `{"prompt":"x","service_tier":"flex"}`, "Reactive",
			func(r serving.Request) bool { return r.Class == scheduler.Reactive }, "the header counts more"},
		{"completions", `{"prompt":"x","service_tier":"priority"}`, "proactive",
			func(r serving.Request) bool { return r.Class == scheduler.Proactive }, "the header counts more"},
	}
	for _, test := range tests {
		header := []string{}
		if test.class != "" {
			header = []string{classHeader, test.class}
		}
		response, text := f.post("/v1/"+test.path, test.body, header...)
		if response.StatusCode != http.StatusOK || !test.check(f.engine.last()) {
			t.Errorf("%s: %d %s\nsubmitted %+v, want %s", test.body, response.StatusCode, text, f.engine.last(), test.want)
		}
	}
	want, _ := demoTokenizer().Encode("user: Hello\nassistant:")
	f.post("/v1/chat/completions", `{`+hello+`}`)
	one := f.engine.last()
	f.post("/v1/chat/completions", `{`+hello+`}`)
	if two := f.engine.last(); !slices.Equal(two.Prompt, want) || one.Sampler.Seed == two.Sampler.Seed {
		t.Errorf("prompt %v, seeds %d and %d, want %v and different seeds", two.Prompt, one.Sampler.Seed,
			two.Sampler.Seed, want)
	}
}

func TestRefusals(t *testing.T) {
	f := serve(t, &fakeEngine{text: "x", reason: serving.Stop}, nil)
	for _, test := range []struct {
		path, body string
		status     int
		code, part string
	}{
		{"/v1/completions", `{"prompt":"x","model":"gpt-4"}`, 404, "model_not_found", `want "demo"`},
		{"/v1/completions", `{"prompt":""}`, 400, "", "give some text"},
		{"/v1/completions", `{}`, 400, "", "give some text"},
		{"/v1/chat/completions", `{}`, 400, "", "messages is missing"},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"FAIL"}]}`, 400, "", "/v1/completions takes text"},
		{"/v1/completions", `{"prompt":[2048]}`, 400, "", "want 0 to 2047"},
		{"/v1/completions", `{"prompt":[` + strings.Repeat("5,", 64) + `5]}`, 400, "context_length_exceeded", "65 tokens, and the context has 64"},
		{"/v1/completions", `{"prompt":"` + strings.Repeat("x", 1<<16) + `"}`, 413, "request_too_large", "more than 65536 bytes"},
		{"/v1/completions", `{"prompt":`, 400, "", "no JSON object"},
		{"/v1/nothing", `{}`, 404, "not_found", "/v1/completions"},
		{"/v1/models", `{}`, 405, "method_not_allowed", "want GET"},
		{"/v1/models/demo", `{}`, 405, "method_not_allowed", "want GET"},
	} {
		response, text := f.post(test.path, test.body)
		f.refused(response, text, test.status, test.code, test.part)
	}
	response, text := f.post("/v1/completions", `{"prompt":"x"}`, "Content-Type", "text/plain")
	f.refused(response, text, http.StatusUnsupportedMediaType, "unsupported_media_type", "Content-Type: application/json")
	response, text = f.post("/v1/completions", "\x1f\x8b", "Content-Encoding", "gzip")
	f.refused(response, text, http.StatusUnsupportedMediaType, "unsupported_media_type", "send the body as it is")
	response, text = f.post("/v1/completions", `{"prompt":"x"}`, classHeader, "urgent")
	f.refused(response, text, http.StatusBadRequest, "", "want reactive or proactive")
	request, err := http.NewRequest(http.MethodPost, f.url+"/v1/completions", strings.NewReader(`{"prompt":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header = http.Header{"Content-Type": {"application/json"}, classHeader: {"proactive", "reactive"}}
	response, text = f.do(request)
	f.refused(response, text, http.StatusBadRequest, "", `got "proactive, reactive"`)
	response, text = f.get("/v1/completions")
	f.refused(response, text, http.StatusMethodNotAllowed, "method_not_allowed", "want POST")
	if allow := response.Header.Get("Allow"); allow != http.MethodPost {
		t.Errorf("allows %q, want POST", allow)
	}
}

// Paths count as they are. One that is not clean leads nowhere: a redirect would be followed by some clients only, and
// is no error in the form of the API.
func TestPathsAreNotCleaned(t *testing.T) {
	f := serve(t, &fakeEngine{text: "x", reason: serving.Stop}, func(o *Options) { o.Model = "org//demo/v1.." })
	for _, test := range []struct {
		method, path string
		status       int
		part         string
	}{
		{http.MethodGet, "/v1/../x", 404, `"code":"not_found"`}, {http.MethodPost, "//v1/completions", 404, `"code":"not_found"`},
		{http.MethodPost, "/v1//completions", 404, `"code":"not_found"`}, {http.MethodGet, "/v1/./models", 404, `"code":"not_found"`},
		{http.MethodPost, "/v1/completions/", 404, `"code":"not_found"`}, {http.MethodGet, "/", 404, `"code":"not_found"`},
		{http.MethodGet, "/v1/models/../x", 404, `"code":"model_not_found"`},
		{http.MethodGet, "/v1/models/", 404, `"code":"model_not_found"`},
		{http.MethodPost, "/v1/models/../x", 405, `"code":"method_not_allowed"`},
		{http.MethodOptions, "/v1/completions", 405, `"code":"method_not_allowed"`},
		{http.MethodGet, "/v1/models/org//demo/v1..", 200, `"id":"org//demo/v1.."`},
		{http.MethodGet, "/v1/models/org%2f%2fdemo%2fv1..", 200, `"id":"org//demo/v1.."`},
		{http.MethodHead, "/v1/models", 200, ""}, {http.MethodHead, "/v1/completions", 405, ""},
	} {
		connection, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(connection, "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
			test.method, test.path)
		text, err := io.ReadAll(connection)
		connection.Close()
		head, body, _ := strings.Cut(string(text), "\r\n\r\n")
		if err != nil || !strings.HasPrefix(head, fmt.Sprintf("HTTP/1.1 %d ", test.status)) ||
			!strings.Contains(head, "Content-Type: application/json") || !strings.Contains(body, test.part) ||
			test.method == http.MethodHead && body != "" {
			t.Errorf("%s %s: %q, %v, want status %d and JSON with %s", test.method, test.path, text, err, test.status, test.part)
		}
	}
}

// What the engine says becomes a status that clients know what to do with.
func TestErrorsOfTheEngine(t *testing.T) {
	body := `{"prompt":"x"}`
	for _, test := range []struct {
		engine     *fakeEngine
		status     int
		code, part string
	}{
		{&fakeEngine{refuse: serving.ErrFull}, 429, "rate_limit_exceeded", "queue is full"},
		{&fakeEngine{refuse: serving.ErrDraining}, 503, "draining", "shutting down"},
		{&fakeEngine{refuse: diag.New(diag.ClassInput, "wrong prompt").WithHint("another")}, 400, "", "wrong prompt; another"},
		{&fakeEngine{reason: serving.Cancelled}, 503, "draining", "shutting down"},
		{&fakeEngine{err: errors.New("/secret/path is broken")}, 500, "", "the server's log says why"},
		{&fakeEngine{panics: true}, 500, "", "a defect of the server"},
	} {
		f := serve(t, test.engine, nil)
		response, text := f.post("/v1/completions", body)
		f.refused(response, text, test.status, test.code, test.part)
		if test.status == http.StatusTooManyRequests && response.Header.Get("Retry-After") == "" {
			t.Error("429 without Retry-After")
		}
		if logged := f.log.String(); (test.status == http.StatusInternalServerError) != (logged != "") {
			t.Errorf("status %d, and the log says %q", test.status, logged)
		}
	}
	// Behind the first event an error is the last one, and [DONE] does not follow.
	f := serve(t, &fakeEngine{text: beginning, err: errors.New("broken")}, nil)
	response, text := f.post("/v1/completions", `{"prompt":"x","stream":true}`)
	all := events(t, text)
	last := all[len(all)-1]
	if response.StatusCode != http.StatusOK || len(all) < 3 || !strings.HasPrefix(last, `{"error":{"message":`) {
		t.Errorf("status %d, %d events, the last one %s", response.StatusCode, len(all), last)
	}
}

func TestTimeout(t *testing.T) {
	f := serve(t, &fakeEngine{text: beginning, hold: true}, func(o *Options) { o.Timeout = 50 * time.Millisecond })
	response, text := f.post("/v1/completions", `{"prompt":"x"}`)
	f.refused(response, text, http.StatusGatewayTimeout, "timeout", "--request-timeout")
	_, text = f.post("/v1/completions", `{"prompt":"x","stream":true}`)
	if !strings.Contains(text, `"code":"timeout"`) || strings.Contains(text, "[DONE]") {
		t.Errorf("stream that timed out: %s", text)
	}
}

func TestKeys(t *testing.T) {
	f := serve(t, &fakeEngine{text: "x", reason: serving.Stop}, func(o *Options) {
		o.Keys, o.LocalOnly = []string{"first-key", "second-key"}, false
	})
	for _, test := range []struct {
		header string
		status int
	}{
		{"Bearer first-key", 200}, {"Bearer second-key", 200}, {"bearer first-key", 200}, {"", 401}, {"Bearer", 401},
		{"Bearer ", 401}, {"Bearer first-ke", 401}, {"Basic first-key", 401}, {"first-key", 401}, {"Bearer first-key x", 401},
	} {
		for _, path := range []string{"/v1/models", "/v1/models/demo", "/metrics", "/v1/nothing"} {
			response, text := f.get(path, "Authorization", test.header)
			switch {
			case test.status == http.StatusUnauthorized:
				f.refused(response, text, http.StatusUnauthorized, "invalid_api_key", "Authorization: Bearer KEY")
			case response.StatusCode == http.StatusUnauthorized:
				t.Errorf("%s with %q: %s", path, test.header, text)
			}
		}
	}
	if response, text := f.get("/healthz"); response.StatusCode != http.StatusOK {
		t.Errorf("health without a key: %s", text)
	}
	// A body without a key is not read.
	response, text := f.post("/v1/completions", strings.Repeat("x", 1<<20))
	f.refused(response, text, http.StatusUnauthorized, "invalid_api_key", "no valid API key")
}

// Pages of the web cannot use a server on this machine through a name of theirs.
func TestHosts(t *testing.T) {
	f := serve(t, &fakeEngine{text: "x", reason: serving.Stop}, nil)
	for host, ok := range map[string]bool{"localhost": true, "LOCALHOST:8080": true, "127.0.0.1:80": true, "[::1]:80": true,
		"[::1]": true, "evil.example": false, "localhost.evil.example:8080": false, "127.0.0.1.evil.example": false} {
		response, text := f.get("/v1/models", "Host", host)
		if ok && response.StatusCode != http.StatusOK {
			t.Errorf("host %q: %s", host, text)
		} else if !ok {
			f.refused(response, text, http.StatusForbidden, "host_not_allowed", "--api-key-file")
		}
	}
}

func TestModelsHealthMetrics(t *testing.T) {
	f := serve(t, &fakeEngine{text: "In the beginning", reason: serving.Stop}, nil)
	f.post("/v1/completions", `{"prompt":"x","max_tokens":3}`)
	f.post("/v1/completions", `{"prompt":"x","max_tokens":2,"service_tier":"flex"}`)
	for path, part := range map[string]string{
		"/v1/models": `"data":[{"id":"demo","object":"model"`, "/v1/models/demo": `"max_model_len":64`,
		"/healthz": `{"status":"ok"}`, "/metrics": `hetserve_requests_waiting{class="reactive"} 2`,
	} {
		if response, text := f.get(path); response.StatusCode != http.StatusOK || !strings.Contains(text, part) {
			t.Errorf("%s: %d %s, want %s", path, response.StatusCode, text, part)
		}
	}
	_, text := f.get("/metrics")
	for _, part := range []string{`hetserve_http_responses_total{path="POST /v1/completions",status="200"} 2`,
		"hetserve_busy_seconds_total 1.5", "hetserve_prompt_tokens_total 42",
		`hetserve_calls_total{after="idle up to 10 ms",call="last chunk",size="64"} 3`,
		`hetserve_call_seconds_total{after="idle up to 10 ms",call="last chunk",size="64"} 0.25`,
		`hetserve_call_executed_seconds_total{after="idle up to 10 ms",call="last chunk",size="64"} 0.2`,
		`hetserve_call_planned_seconds_total{after="idle up to 10 ms",call="last chunk",size="64"} 0.125`,
		`hetserve_first_token_seconds_count{class="reactive"} 1`, `hetserve_first_token_seconds_sum{class="proactive"} 0.2`,
		`hetserve_token_seconds_count{class="reactive"} 2`, `hetserve_token_seconds_sum{class="reactive"} 0.4`,
		`hetserve_token_seconds_bucket{class="reactive",le="0.1024"} 0`,
		`hetserve_token_seconds_bucket{class="proactive",le="0.2048"} 1`} {
		if !strings.Contains(text, part) {
			t.Errorf("metrics without %s:\n%s", part, text)
		}
	}
	if strings.Contains(text, "go_") || strings.Contains(text, "process_") {
		t.Errorf("metrics tell of the process:\n%s", text)
	}
	response, text := f.get("/v1/models/other/one")
	f.refused(response, text, http.StatusNotFound, "model_not_found", `"other/one" is not served`)
}

func TestDrain(t *testing.T) {
	f := serve(t, &fakeEngine{text: "x", reason: serving.Stop}, nil)
	f.api.Drain()
	response, text := f.post("/v1/completions", `{"prompt":"x"}`)
	f.refused(response, text, http.StatusServiceUnavailable, "draining", "shutting down")
	if response, _ := f.get("/healthz"); response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("health while draining: %d, want 503", response.StatusCode)
	}
	if response, _ := f.get("/metrics"); response.StatusCode != http.StatusOK {
		t.Errorf("metrics while draining: %d, want 200", response.StatusCode)
	}
}

// dial sends the beginning of a request and returns its connection.
func (f *front) dial(path, body string, length int) net.Conn {
	f.Helper()
	address := strings.TrimPrefix(f.url, "http://")
	connection, err := net.Dial("tcp", address)
	if err != nil {
		f.Fatal(err)
	}
	fmt.Fprintf(connection, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		path, address, length, body)
	return connection
}

// A client that leaves, in the queue or between two events, has its request cancelled; serve looks for goroutines.
func TestClientLeaves(t *testing.T) {
	f := serve(t, &fakeEngine{text: beginning, hold: true}, nil)
	for _, stream := range []bool{false, true} {
		body := fmt.Sprintf(`{"prompt":"x","stream":%v}`, stream)
		connection := f.dial("/v1/completions", body, len(body))
		if stream {
			line, err := bufio.NewReader(connection).ReadString('\n')
			if err != nil || !strings.Contains(line, "200") {
				t.Errorf("%q, %v", line, err)
			}
		}
		answer := f.engine.waiting()
		_ = connection.Close()
		select {
		case <-answer.cancelled:
		case <-time.After(10 * time.Second):
			t.Fatal("the request goes on after its client has left")
		}
	}
	// One that leaves in the middle of its body submits nothing.
	count := len(f.engine.got)
	connection := f.dial("/v1/completions", `{"prompt":`, 100)
	_ = connection.Close()
	time.Sleep(20 * time.Millisecond)
	if len(f.engine.got) != count {
		t.Error("half a body was submitted")
	}
}

// A client that closes its sending side has left. What it still reads is no complete response.
func TestHalfClosed(t *testing.T) {
	f := serve(t, &fakeEngine{text: beginning, hold: true}, nil)
	for _, stream := range []bool{false, true} {
		body := fmt.Sprintf(`{"prompt":"x","stream":%v}`, stream)
		connection := f.dial("/v1/completions", body, len(body))
		f.engine.waiting()
		if err := connection.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(connection), nil)
		if stream && err == nil {
			_, err = io.ReadAll(response.Body)
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("stream %v: read %+v, %v, want that it was cut off", stream, response, err)
		}
		_ = connection.Close()
	}
}

// waiting returns an answer that is not cancelled, once there is one.
func (f *fakeEngine) waiting() *fakeAnswer {
	for {
		f.mu.Lock()
		for _, answer := range f.answers {
			select {
			case <-answer.cancelled:
			default:
				f.mu.Unlock()
				return answer
			}
		}
		f.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
}

// A client that reads nothing holds up nobody, and is disconnected when it has taken nothing for the time limit.
func TestSlowReader(t *testing.T) {
	writer := &stuckWriter{header: http.Header{}}
	engine := &fakeEngine{text: beginning, hold: true}
	demoTokenizer()
	api := New(engine, Options{Model: "demo", Tokenizer: demoTokenizer(), Context: 64, Vocabulary: 2048, MaxTokens: 40,
		MaxBody: 1 << 16, Timeout: time.Minute, Logf: t.Logf})
	request, err := http.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(`{"prompt":"x","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	api.ServeHTTP(writer, request)
	select {
	case <-engine.answers[0].cancelled:
	default:
		t.Error("the request goes on although its client takes nothing")
	}
	if len(writer.deadlines) == 0 || time.Until(writer.deadlines[len(writer.deadlines)-1]) > writeTimeout {
		t.Errorf("deadlines %v, want one within %v", writer.deadlines, writeTimeout)
	}
}

// The time limit of a response begins with it, not with the head of its request, whose body may have come slowly.
func TestHeadOfStreamHasItsTime(t *testing.T) {
	for path, body := range map[string]string{"completions": `{"prompt":"x","stream":true}`,
		"chat/completions": `{` + hello + `,"stream":true}`} {
		writer := &stuckWriter{header: http.Header{}}
		api := New(&fakeEngine{text: beginning, reason: serving.Stop}, Options{Model: "demo", Tokenizer: demoTokenizer(),
			Context: 64, Vocabulary: 2048, MaxTokens: 40, MaxBody: 1 << 16, Timeout: time.Minute, Logf: t.Logf})
		request := httptest.NewRequest(http.MethodPost, "/v1/"+path, strings.NewReader(body))
		request.Header.Set("Content-Type", "application/json")
		api.ServeHTTP(writer, request)
		if writer.flushedLate {
			t.Errorf("%s: the head was written under the time limit of the request's head", path)
		}
	}
}

// A body that does not come in time is told so, and not by what the connection says of it.
func TestBodyComesTooLate(t *testing.T) {
	f := serve(t, &fakeEngine{text: "x", reason: serving.Stop}, nil)
	request := httptest.NewRequest(http.MethodPost, "/v1/completions",
		io.MultiReader(strings.NewReader(`{"prompt":`), lateReader{}))
	request.Header.Set("Content-Type", "application/json")
	request.Host = "localhost"
	recorded := httptest.NewRecorder()
	f.api.ServeHTTP(recorded, request)
	f.refused(recorded.Result(), recorded.Body.String(), http.StatusRequestTimeout, "body_timeout", "within 30s")
}

// A client that sends all of a body that is too large before it reads is told so, and one that asks before it sends is
// told at once. What is discarded takes no memory.
func TestTooLargeIsTold(t *testing.T) {
	f := serve(t, &fakeEngine{text: "x", reason: serving.Stop}, nil)
	const size = 16 << 20 // more than a connection holds on its way
	connection := f.dial("/v1/completions", "", size)
	defer connection.Close()
	if _, err := connection.Write(make([]byte, size)); err != nil {
		t.Fatalf("send the body: %v", err)
	}
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	f.refused(response, string(text), http.StatusRequestEntityTooLarge, "request_too_large", "more than 65536 bytes")

	asking, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer asking.Close()
	fmt.Fprintf(asking, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+
		"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n", size)
	if response, err = http.ReadResponse(bufio.NewReader(asking), nil); err != nil ||
		response.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a client that asks before it sends %d bytes: %+v, %v, want status 413", size, response, err)
	}
}

// lateReader is the rest of a body that does not come.
type lateReader struct{}

func (lateReader) Read([]byte) (int, error) {
	return 0, &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
}

// A client that got its stop text has left nothing undone: its request counts as answered.
func TestStopTextIsEnough(t *testing.T) {
	for _, stop := range []bool{false, true} {
		f := serve(t, &fakeEngine{text: beginning, reason: serving.Length}, nil)
		body := `{"prompt":"x"`
		if stop {
			body += `,"stop":"heaven"`
		}
		f.post("/v1/completions", body+"}")
		if got := f.engine.answers[0].enough; got != stop {
			t.Errorf("stop text %v: the answer is enough: %v", stop, got)
		}
	}
}

// stuckWriter is a connection that takes some bytes and then reaches its deadline.
type stuckWriter struct {
	header      http.Header
	taken       int
	deadlines   []time.Time
	flushedLate bool // before it had a deadline
}

func (w *stuckWriter) Header() http.Header             { return w.header }
func (w *stuckWriter) WriteHeader(int)                 {}
func (w *stuckWriter) SetReadDeadline(time.Time) error { return nil }

func (w *stuckWriter) FlushError() error {
	w.flushedLate = w.flushedLate || len(w.deadlines) == 0
	return nil
}

func (w *stuckWriter) SetWriteDeadline(at time.Time) error {
	w.deadlines = append(w.deadlines, at)
	return nil
}

func (w *stuckWriter) Write(data []byte) (int, error) {
	if w.taken += len(data); w.taken > 500 {
		return 0, os.ErrDeadlineExceeded
	}
	return len(data), nil
}

// A connection serves several requests, also behind one that was refused.
func TestConnectionIsReused(t *testing.T) {
	f := serve(t, &fakeEngine{text: beginning, reason: serving.Stop}, nil)
	body := `{"prompt":"x"}`
	connection := f.dial("/v1/completions", body, len(body))
	defer connection.Close()
	responses := bufio.NewReader(connection)
	for i, want := range []int{200, 400, 200, 200} {
		response, err := http.ReadResponse(responses, nil)
		if err != nil || response.StatusCode != want {
			t.Fatalf("response %d: %v, %v, want status %d", i, response, err, want)
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			t.Fatal(err)
		}
		body := []string{`{"prompt":{}}`, `{"prompt":"x","stream":true}`, `{"prompt":"x"}`, ""}[i]
		fmt.Fprintf(connection, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+
			"Content-Length: %d\r\n\r\n%s", len(body), body)
	}
}

// A panic ends its request and nothing else.
func TestPanic(t *testing.T) {
	engine := &fakeEngine{text: "x", reason: serving.Stop, panics: true}
	f := serve(t, engine, nil)
	response, text := f.post("/v1/completions", `{"prompt":"x"}`)
	f.refused(response, text, http.StatusInternalServerError, "", "its log says more")
	engine.mu.Lock()
	engine.panics = false
	engine.mu.Unlock()
	if response, text := f.post("/v1/completions", `{"prompt":"x"}`); response.StatusCode != http.StatusOK {
		t.Errorf("after a panic: %s", text)
	}
	if logged := f.log.String(); !strings.Contains(logged, "out of order") || !strings.Contains(logged, "generate.go") {
		t.Errorf("the log has neither the panic nor its place: %s", logged)
	}
}
