package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/serving"
	"github.com/hetc/hetc/runtime/tokenizer"
)

const hello = `"messages":[{"role":"user","content":"Hello"}]`

var greeting = []tokenizer.Message{{Role: "user", Content: "Hello"}}

func TestParseAccepts(t *testing.T) {
	once := executor.Sampler{Temperature: 1}
	tests := []struct {
		name   string
		fields map[string]field
		body   string
		want   request
	}{
		{"least chat", chatFields, `{` + hello + `}`, request{messages: greeting, sampler: once}},
		{"absent is null", chatFields, `{"model":null,"stop":null,"tools":null,"n":null,"max_tokens":null,` + hello + `}`,
			request{messages: greeting, sampler: once}},
		{"everything", chatFields, `{"model":"m","max_tokens":7,"temperature":0,"top_p":0.5,"top_k":3,"seed":-1,
			"stop":["a","b"],"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false},
			"logprobs":true,"top_logprobs":2,"service_tier":"flex",` + hello + `}`,
			request{model: "m", messages: greeting, maxTokens: 7, seeded: true, stop: []string{"a", "b"}, stream: true,
				usage: true, logProbs: true, likely: 2, tier: "flex",
				sampler: executor.Sampler{TopP: 0.5, TopK: 3, Seed: math.MaxUint64}}},
		{"both names of a length", chatFields, `{"max_completion_tokens":7,"max_tokens":7,` + hello + `}`,
			request{messages: greeting, maxTokens: 7, sampler: once}},
		{"top_p of nothing is the likeliest", chatFields, `{"top_p":0,` + hello + `}`,
			request{messages: greeting, sampler: executor.Sampler{Temperature: 1, TopP: math.SmallestNonzeroFloat64}}},
		{"parts", chatFields, `{"messages":[{"role":"system","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`,
			request{messages: []tokenizer.Message{{Role: "system", Content: "ab"}}, sampler: once}},
		{"newer name of a role", chatFields, `{"messages":[{"role":"developer","content":"a"}]}`,
			request{messages: []tokenizer.Message{{Role: "system", Content: "a"}}, sampler: once}},
		{"an answer sent back", chatFields, `{"messages":[{"role":"assistant","content":"x","refusal":null,"tool_calls":null,
			"annotations":[],"audio":null}]}`,
			request{messages: []tokenizer.Message{{Role: "assistant", Content: "x"}}, sampler: once}},
		{"ignored", chatFields, `{"user":"u","metadata":{"a":"b"},"store":true,"parallel_tool_calls":true,` + hello + `}`,
			request{messages: greeting, sampler: once}},
		{"neutral", chatFields, `{"n":1,"tools":[],"tool_choice":"none","response_format":{ "type": "text" },"logit_bias":{},
			"presence_penalty":0,"frequency_penalty":0.0,"modalities":["text"],` + hello + `}`,
			request{messages: greeting, sampler: once}},
		{"any way to write a number", completionFields, `{"prompt":"a","n":1.0,"frequency_penalty":-0.0,"best_of":1e0}`,
			request{text: "a", sampler: once}},
		{"newer tiers", completionFields, `{"prompt":"a","service_tier":"fast"}`,
			request{text: "a", tier: "fast", sampler: once}},
		{"both halves of a character, and no escape", completionFields, `{"prompt":"\ud83d\ude00 \\ud83d"}`,
			request{text: "😀 \\ud83d", sampler: once}},
		{"marks for a cache", chatFields, `{"prompt_cache_options":{"mode":"implicit"},"messages":[{"role":"user","content":[
			{"type":"text","text":"Hello","prompt_cache_breakpoint":{"mode":"explicit"},"image_url":null}]}]}`,
			request{messages: greeting, sampler: once}},
		{"one stop", completionFields, `{"prompt":"a","stop":"x"}`, request{text: "a", stop: []string{"x"}, sampler: once}},
		{"list of one text", completionFields, `{"prompt":["a"]}`, request{text: "a", sampler: once}},
		{"ids", completionFields, `{"prompt":[1,2]}`, request{ids: []int32{1, 2}, sampler: once}},
		{"list of one list", completionFields, `{"prompt":[[1,2]]}`, request{ids: []int32{1, 2}, sampler: once}},
		{"scores", completionFields, `{"prompt":"a","logprobs":0,"echo":false,"best_of":1,"suffix":""}`,
			request{text: "a", logProbs: true, sampler: once}},
	}
	for _, test := range tests {
		got, wrong := parse([]byte(test.body), test.fields)
		if wrong != nil {
			t.Errorf("%s: %v", test.name, wrong)
		} else if !reflect.DeepEqual(*got, test.want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", test.name, *got, test.want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	tests := []struct {
		fields           map[string]field
		body             string
		param, inMessage string
	}{
		{chatFields, ``, "", "the body is no JSON object"},
		{chatFields, `null`, "", "the body is no JSON object: got null"},
		{chatFields, `[]`, "", "the body is no JSON object: got array"},
		{chatFields, `"hello"`, "", "the body is no JSON object: got string"},
		{chatFields, `{"model":`, "", "unexpected end"},
		{chatFields, `{} {}`, "", "the body is no JSON object"},
		{chatFields, `{"model":"a","model":"b"}`, "", `key "model" twice`},
		{chatFields, `{"mesages":[]}`, "mesages", "did you mean messages?"},
		{chatFields, `{"xyzzy":1}`, "xyzzy", "unknown field; leave it out"},
		{chatFields, `{"prompt":"a"}`, "prompt", "unknown field"},
		{chatFields, `{"model":5}`, "model", "want a text, got 5"},
		{chatFields, `{"messages":[]}`, "messages", "at least one message"},
		{chatFields, `{"messages":[null]}`, "messages[0]", "want an object with role and content, got null"},
		{chatFields, `{"messages":[{"role":"user"}]}`, "messages[0]", "content is missing"},
		{chatFields, `{"messages":[{"content":"x"}]}`, "messages[0]", "role is missing"},
		{chatFields, `{"messages":[{"role":"user","content":null}]}`, "messages[0].content", "want a text or a list"},
		{chatFields, `{"messages":[{"role":"tool","content":"x"}]}`, "messages[0].role", "want one of system, user, assistant"},
		{chatFields, `{"messages":[{"role":"user","content":"x","name":"eve"}]}`, "messages[0].name", "not supported"},
		{chatFields, `{"messages":[{"role":"assistant","content":"x","tool_calls":[{}]}]}`, "messages[0].tool_calls", "not supported"},
		{chatFields, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]}`, "messages[0].content[0]", "the model reads text only"},
		{chatFields, `{"max_tokens":0}`, "max_tokens", "want a whole number from 1"},
		{chatFields, `{"max_tokens":1.5}`, "max_tokens", "got 1.5"},
		{chatFields, `{"max_tokens":99999999999}`, "max_tokens", "want a whole number from 1 to 2147483647"},
		{chatFields, `{"max_tokens":5,"max_completion_tokens":6}`, "max_tokens", "give one of them"},
		{chatFields, `{"temperature":2.1}`, "temperature", "want a number from 0 to 2, got 2.1"},
		{chatFields, `{"temperature":1e999}`, "temperature", "want a number"},
		{chatFields, `{"temperature":"hot"}`, "temperature", `got "hot"`},
		{chatFields, `{"top_p":-0.1}`, "top_p", "want a number from 0 to 1"},
		{chatFields, `{"top_k":-1}`, "top_k", "want a whole number"},
		{chatFields, `{"seed":0.5}`, "seed", "want a whole number"},
		{chatFields, `{"stop":["a","b","c","d","e"]}`, "stop", "up to 4 texts"},
		{chatFields, `{"stop":""}`, "stop", "want texts of 1 to 4096 bytes"},
		{chatFields, `{"stop":"` + strings.Repeat("x", 4097) + `"}`, "stop", "got one of 4097"},
		{chatFields, `{"stop":[null]}`, "stop", "want texts of 1 to 4096 bytes"},
		{chatFields, `{"stream":"yes"}`, "stream", "want true or false"},
		{chatFields, `{"stream_options":{"x":1}}`, "stream_options.x", "unknown field; want include_usage"},
		{chatFields, `{"stream_options":[]}`, "stream_options", "want an object"},
		{chatFields, `{"service_tier":"gold"}`, "service_tier", "want one of auto, default, scale, priority, fast, flex"},
		{chatFields, `{"top_logprobs":3}`, "top_logprobs", "needs logprobs"},
		{chatFields, `{"logprobs":true,"top_logprobs":21}`, "top_logprobs", "0 to 20"},
		{chatFields, `{"logprobs":5}`, "logprobs", "want true or false"},
		{chatFields, `{"n":2}`, "n", "not supported, got 2; leave it out"},
		{chatFields, `{"tools":[{"type":"function"}]}`, "tools", "not supported"},
		{chatFields, `{"response_format":{"type":"json_object"}}`, "response_format", "not supported"},
		{chatFields, `{"logit_bias":{"5":1}}`, "logit_bias", "not supported"},
		{chatFields, `{"presence_penalty":0.5}`, "presence_penalty", "set it to 0"},
		{chatFields, `{"n":""}`, "n", "not supported"},
		{chatFields, `{"n":false}`, "n", "not supported"},
		{chatFields, `{"frequency_penalty":[]}`, "frequency_penalty", "set it to 0"},
		{chatFields, `{"moderation":{"model":"m"}}`, "moderation", "nothing is moderated here"},
		{chatFields, `{"messages":[{"role":"user","role":"system","content":"x"}]}`, "messages[0]", `key "role" twice`},
		{chatFields, `{"messages":[{"role":"user","content":[{"type":"text","text":"x","text":"y"}]}]}`,
			"messages[0].content[0]", `key "text" twice`},
		{chatFields, `{"messages":[{"role":"user","content":[{"type":"text","text":"x","image_url":{"url":"y"}}]}]}`,
			"messages[0].content[0].image_url", "a part has type and text"},
		{chatFields, `{"messages":[{"role":"user","content":[{"type":"text","Text":"x"}]}]}`, "messages[0].content[0]",
			"the model reads text only"},
		{chatFields, `{"stream_options":{"include_usage":true,"include_usage":false}}`, "stream_options",
			`key "include_usage" twice`},
		{chatFields, `{"messages":[{"role":"user","content":"cut \ud83d"}]}`, "", `the body has \ud83d, half of a character`},
		{completionFields, `{"prompt":"\ude00\ud83d"}`, "", `the body has \ude00, half of a character`},
		{completionFields, `{"prompt":"\\\ud83d\u0041"}`, "", `the body has \ud83d, half of a character`},
		{completionFields, `{"prompt":["a","b"]}`, "prompt", "want one prompt, got 2; send a request for each"},
		{completionFields, `{"prompt":[[1],[2]]}`, "prompt", "want one prompt, got 2"},
		{completionFields, `{"prompt":[]}`, "prompt", "want a text or a list"},
		{completionFields, `{"prompt":[[]]}`, "prompt[0]", "want a text or a list"},
		{completionFields, `{"prompt":[1,null]}`, "prompt[1]", "want a whole number from 0"},
		{completionFields, `{"prompt":[1,-2]}`, "prompt[1]", "got -2"},
		{completionFields, `{"prompt":{}}`, "prompt", "want a text"},
		{completionFields, `{"logprobs":6}`, "logprobs", "0 to 5"},
		{completionFields, `{"echo":true}`, "echo", "not supported"},
		{completionFields, `{"suffix":"x"}`, "suffix", "not supported"},
		{completionFields, `{"best_of":2}`, "best_of", "not supported"},
	}
	for _, test := range tests {
		_, wrong := parse([]byte(test.body), test.fields)
		switch {
		case wrong == nil:
			t.Errorf("%s: accepted", test.body)
		case wrong.status != http.StatusBadRequest || wrong.param != test.param ||
			!strings.Contains(wrong.message, test.inMessage):
			t.Errorf("%s: status %d, param %q, message %q, want param %q and %q in the message", test.body, wrong.status,
				wrong.param, wrong.message, test.param, test.inMessage)
		}
	}
}

// What is wrong is told briefly, however long it is.
func TestParseIsBrief(t *testing.T) {
	long := strings.Repeat("é", 1<<18)
	for _, body := range []string{`{"` + long + `":1}`, `{"seed":"` + long + `"}`, `{"stream_options":{"` + long + `":1}}`,
		`{"messages":[{"` + long + `":1}]}`} {
		_, wrong := parse([]byte(body), chatFields)
		if wrong == nil || len(encode(wrong)) > 1000 {
			t.Errorf("%.20s...: %d bytes of error, want at most 1000", body, len(encode(wrong)))
		}
	}
}

// fuzzBody wants of every body that it is refused with a field that exists in it, or that what is read lies within its
// limits.
func fuzzBody(f *testing.F, fields map[string]field, seeds ...string) {
	for _, seed := range append(seeds, `{`, `[]`, `null`, `{"model":"m","seed":1e3}`, `{"temperature":1e-400,"top_p":0}`,
		`{"stop":["\ud800","x"]}`, `{"logprobs":1,"top_logprobs":1}`, `{"a":{"b":[[[[]]]]}}`, "{\"\xff\":1}") {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r, wrong := parse(body, fields)
		if wrong != nil {
			if wrong.status != http.StatusBadRequest || wrong.message == "" || len(encode(wrong)) > 2000 {
				t.Fatalf("problem %+v", wrong)
			}
			return
		}
		if err := r.sampler.Validate(); err != nil {
			t.Fatal(err)
		}
		if r.maxTokens < 0 || r.likely < 0 || r.likely > 20 || len(r.stop) > 4 {
			t.Fatalf("read %+v", r)
		}
		for _, id := range r.ids {
			if id < 0 {
				t.Fatalf("token id %d", id)
			}
		}
		newStopper(r.stop).push("text that goes on")
	})
}

func FuzzChatBody(f *testing.F) {
	fuzzBody(f, chatFields, `{`+hello+`}`, `{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"n":1}`)
}

func FuzzCompletionBody(f *testing.F) {
	fuzzBody(f, completionFields, `{"prompt":"a"}`, `{"prompt":["a"]}`, `{"prompt":[[1,2]],"max_tokens":3}`, `{"prompt":[1,null]}`)
}

// Whatever a body is, it gets an answer or a refusal in JSON, and what the engine is asked for lies within its limits.
func FuzzServedBody(f *testing.F) {
	for _, seed := range []string{`{` + hello + `}`, `{` + hello + `,"stream":true,"logprobs":true,"stream_options":{"include_usage":true}}`,
		`{"prompt":"In the beginning","stop":["heaven","\ufffd"],"logprobs":2}`, `{"prompt":[1,2],"stream":true,"max_tokens":3}`,
		`{"prompt":"\ud83d","seed":-1,"top_p":0}`, `{"messages":[{"role":"user","content":[{"type":"text","text":"FAIL"}]}]}`, `{`} {
		f.Add(true, []byte(seed))
		f.Add(false, []byte(seed))
	}
	const most, context = 40, 64
	engine := &fakeEngine{text: beginning + " 語 é", reason: serving.Length}
	api := New(engine, Options{Model: "demo", Tokenizer: demoTokenizer(), Context: context, Vocabulary: 2048, MaxTokens: most,
		MaxBody: 1 << 16, Timeout: time.Minute, Logf: func(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }})
	f.Fuzz(func(t *testing.T, chat bool, body []byte) {
		path := "/v1/completions"
		if chat {
			path = "/v1/chat/completions"
		}
		engine.got, engine.answers = nil, nil
		request := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body))
		request.Header.Set("Content-Type", "application/json")
		recorded := httptest.NewRecorder()
		api.ServeHTTP(recorded, request)
		text := recorded.Body.String()
		if strings.HasPrefix(recorded.Header().Get("Content-Type"), "text/event-stream") {
			streamed(t, text)
		} else if !json.Valid([]byte(text)) {
			t.Fatalf("status %d, and no JSON: %q", recorded.Code, text)
		}
		refusals := []int{http.StatusBadRequest, http.StatusNotFound, http.StatusRequestEntityTooLarge}
		if asked := len(engine.got); asked == 0 && !slices.Contains(refusals, recorded.Code) || asked == 1 && recorded.Code != http.StatusOK {
			t.Fatalf("status %d, %d requests submitted: %.200q", recorded.Code, asked, text)
		}
		for _, asked := range engine.got {
			if n := len(asked.Prompt); n < 1 || n > context || asked.MaxTokens < 1 || asked.MaxTokens > min(most, context-n+1) {
				t.Fatalf("a prompt of %d tokens, and %d to generate", n, asked.MaxTokens)
			}
		}
	})
}

// One long body is understood at a time, and short ones beside it. One that has waited in vain leaves no place taken.
func TestTurns(t *testing.T) {
	a := New(&fakeEngine{}, Options{Tokenizer: demoTokenizer()})
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	leave, err := a.await(t.Context(), longBody+1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.await(soon, longBody+1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second long body: %v, want it to wait", err)
	}
	short, err := a.await(t.Context(), longBody)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.await(soon, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a third body: %v, want it to wait", err)
	}
	leave()
	short()
	for range 2 {
		if leave, err = a.await(t.Context(), longBody+1); err != nil {
			t.Fatal(err)
		}
		leave()
	}
	if len(a.reading)+len(a.readingLong) > 0 {
		t.Error("places are taken though nobody reads")
	}
}

// A body arrives whole whatever its size, in pieces, and one that is cut is an error.
func TestReadSized(t *testing.T) {
	for _, size := range []int{0, 1, firstPart - 1, firstPart, firstPart + 1, 3*firstPart + 7} {
		sent := bytes.Repeat([]byte("abcdefg"), size/7+1)[:size]
		got, err := readSized(iotest.HalfReader(bytes.NewReader(sent)), size)
		if err != nil || !bytes.Equal(got, sent) || cap(got) > size+1 {
			t.Errorf("%d bytes: %d in %d, %v", size, len(got), cap(got), err)
		}
		if _, err := readSized(bytes.NewReader(sent), size+1); err == nil {
			t.Errorf("%d bytes of %d: no error", size, size+1)
		}
	}
}
