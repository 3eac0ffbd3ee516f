package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hetc/hetc/runtime/serving"
	"github.com/hetc/hetc/runtime/tokenizer"
)

// template writes a conversation as lines of "role: content".
const template = `{"chat_template": "{% for m in messages %}{% if m.content == 'FAIL' %}` +
	`{{ raise_exception('no') }}{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}` +
	`{% if add_generation_prompt %}assistant:{% endif %}"}`

// demoTokenizer is that of the demo model, with a chat template.
var demoTokenizer = sync.OnceValue(func() tokenizer.Tokenizer {
	data, err := os.ReadFile("../../../testdata/models/tiny-llama-kjv/tokenizer.json")
	if err != nil {
		panic(err)
	}
	tok, err := tokenizer.New(data, []byte(template), -1)
	if err != nil {
		panic(err)
	}
	return tok
})

// fakeAnswer gives tokens; with hold it then waits until it is cancelled.
type fakeAnswer struct {
	tokens    chan serving.Token
	cancel    sync.Once
	cancelled chan struct{}
	enough    bool
	reason    serving.Reason
	err       error
	usage     serving.Usage
}

func (f *fakeAnswer) Next(ctx context.Context) (serving.Token, bool, error) {
	select {
	case token, more := <-f.tokens:
		return token, more, nil
	case <-ctx.Done():
		return serving.Token{}, false, ctx.Err()
	}
}
func (f *fakeAnswer) Ready() bool                  { return len(f.tokens) > 0 }
func (f *fakeAnswer) Cancel()                      { f.cancel.Do(func() { close(f.cancelled) }) }
func (f *fakeAnswer) Enough()                      { f.enough = true }
func (f *fakeAnswer) End() (serving.Reason, error) { return f.reason, f.err }
func (f *fakeAnswer) Usage() serving.Usage         { return f.usage }

// fakeEngine answers every request with the tokens of a text.
type fakeEngine struct {
	text   string
	reason serving.Reason
	err    error // of the end
	refuse error // of Submit
	hold   bool  // answers do not end by themselves
	panics bool

	mu      sync.Mutex
	got     []serving.Request
	answers []*fakeAnswer
}

func (f *fakeEngine) Submit(request serving.Request) (Answer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.panics {
		panic("out of order")
	}
	if f.refuse != nil {
		return nil, f.refuse
	}
	ids, err := demoTokenizer().Encode(f.text)
	if err != nil {
		return nil, err
	}
	reason := f.reason
	if len(ids) > request.MaxTokens {
		ids, reason = ids[:request.MaxTokens], serving.Length
	}
	answer := &fakeAnswer{tokens: make(chan serving.Token, len(ids)), cancelled: make(chan struct{}), reason: reason,
		err: f.err, usage: serving.Usage{PromptTokens: len(request.Prompt), ReusedTokens: 1, GeneratedTokens: len(ids)}}
	for i, id := range ids {
		token := serving.Token{ID: id, AfterNS: int64(i+1) * 2e8, LogProb: -float64(i) / 4} // 0.2 s a token
		for n := range max(0, request.LogProbs) {
			token.Likely = append(token.Likely, serving.Likely{ID: id + int32(n), LogProb: -float64(n)})
		}
		answer.tokens <- token
	}
	if f.hold {
		go func() {
			<-answer.cancelled
			answer.reason = serving.Cancelled
			close(answer.tokens)
		}()
	} else {
		close(answer.tokens)
	}
	f.got = append(f.got, request)
	f.answers = append(f.answers, answer)
	return answer, nil
}

func (f *fakeEngine) Metrics() serving.Metrics {
	return serving.Metrics{Waiting: [2]int{1, 2}, PromptTokens: 42, BusyNS: 1_500_000_000,
		Calls: []serving.CallTimes{{CallKey: serving.CallKey{Kind: serving.LastChunkCall, Size: 64, After: serving.AfterIdle(1e6)}, Calls: 3,
			ServedNS: 250_000_000, CallNS: 200_000_000, PlannedNS: 125_000_000}}}
}

// last is the request that was submitted last.
func (f *fakeEngine) last() serving.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.got[len(f.got)-1]
}

// front is an API of a fake behind a real server.
type front struct {
	*testing.T
	url    string
	api    *API
	engine *fakeEngine
	log    *lockedBuffer
}

// lockedBuffer is what the server logs.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lockedBuffer) add(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.WriteString(text + "\n")
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// serve starts a server, which ends with the test without leaving a goroutine.
func serve(t *testing.T, engine *fakeEngine, change func(*Options)) *front {
	t.Helper()
	demoTokenizer()
	before := runtime.NumGoroutine()
	logged := &lockedBuffer{}
	options := Options{Model: "demo", Fingerprint: "fp", Tokenizer: demoTokenizer(), Context: 64, Vocabulary: 2048,
		MaxTokens: 40, MaxBody: 1 << 16, Timeout: time.Minute, LocalOnly: true,
		Logf: func(format string, args ...any) { logged.add(fmt.Sprintf(format, args...)) }}
	if change != nil {
		change(&options)
	}
	api := New(engine, options)
	server := httptest.NewUnstartedServer(nil)
	server.Config = api.HTTPServer()
	server.Start()
	t.Cleanup(func() {
		server.Close()
		http.DefaultClient.CloseIdleConnections()
		settled(t, before)
	})
	return &front{t, server.URL, api, engine, logged}
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
	var stacks [1 << 16]byte
	t.Errorf("%d goroutines are left, %d were there before\n%s", runtime.NumGoroutine(), before,
		stacks[:runtime.Stack(stacks[:], true)])
}

// post sends a body and returns status and text of the response.
func (f *front) post(path, body string, header ...string) (*http.Response, string) {
	f.Helper()
	request, err := http.NewRequest(http.MethodPost, f.url+path, strings.NewReader(body))
	if err != nil {
		f.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	return f.do(request, header...)
}

// get asks for a path.
func (f *front) get(path string, header ...string) (*http.Response, string) {
	f.Helper()
	request, err := http.NewRequest(http.MethodGet, f.url+path, nil)
	if err != nil {
		f.Fatal(err)
	}
	return f.do(request, header...)
}

func (f *front) do(request *http.Request, header ...string) (*http.Response, string) {
	f.Helper()
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			request.Host = header[i+1]
		}
		request.Header.Set(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		f.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		f.Fatal(err)
	}
	return response, string(text)
}

// refused wants an error of the API.
func (f *front) refused(response *http.Response, text string, status int, code, part string) {
	f.Helper()
	var document struct {
		Error struct{ Message, Type, Code string }
	}
	if err := json.Unmarshal([]byte(text), &document); err != nil {
		f.Errorf("%q is no error: %v", text, err)
	}
	if response.StatusCode != status || document.Error.Code != code || document.Error.Type == "" ||
		!strings.Contains(document.Error.Message, part) {
		f.Errorf("status %d, %s, want %d, code %q and a message with %q", response.StatusCode, text, status, code, part)
	}
}
