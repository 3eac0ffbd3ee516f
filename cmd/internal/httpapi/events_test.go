package httpapi

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/runtime/serving"
)

// flushWriter is a connection that counts how often what was written goes out.
type flushWriter struct {
	header  http.Header
	text    strings.Builder
	out     int // bytes that have gone out
	flushes chan int
}

func newFlushWriter() *flushWriter {
	return &flushWriter{header: http.Header{}, flushes: make(chan int, 1000)}
}

func (w *flushWriter) Header() http.Header              { return w.header }
func (w *flushWriter) WriteHeader(int)                  {}
func (w *flushWriter) SetReadDeadline(time.Time) error  { return nil }
func (w *flushWriter) SetWriteDeadline(time.Time) error { return nil }
func (w *flushWriter) Write(data []byte) (int, error)   { return w.text.Write(data) }

func (w *flushWriter) FlushError() error {
	w.flushes <- w.text.Len() - w.out
	w.out = w.text.Len()
	return nil
}

// streamTo streams the answer of an engine to a writer.
func streamTo(t *testing.T, engine *fakeEngine, writer *flushWriter) {
	t.Helper()
	api := New(engine, Options{Model: "demo", Tokenizer: demoTokenizer(), Context: 64, Vocabulary: 2048, MaxTokens: 40,
		MaxBody: 1 << 16, Timeout: time.Minute, Logf: t.Logf})
	request, err := http.NewRequest(http.MethodPost, "/v1/completions",
		strings.NewReader(`{"prompt":"x","max_tokens":40,"stream":true,"stream_options":{"include_usage":true}}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	api.ServeHTTP(writer, request)
}

// Tokens that are there at the same time go out in one write, and none of them waits for what is not there yet.
func TestEventsGoOutTogether(t *testing.T) {
	writer := newFlushWriter()
	streamTo(t, &fakeEngine{text: beginning, reason: serving.Stop}, writer)
	events := strings.Count(writer.text.String(), "data: ")
	if events < 8 || !strings.HasSuffix(writer.text.String(), "data: [DONE]\n\n") {
		t.Fatalf("%d events: %s", events, writer.text.String())
	}
	if count := len(writer.flushes); count > 2 || writer.out != writer.text.Len() {
		t.Errorf("%d events that were all there went out in %d parts, want 2 at most; %d of %d bytes went out", events, count,
			writer.out, writer.text.Len())
	}

	// one token after the other, each when the one before it has gone out
	ids, err := demoTokenizer().Encode(beginning)
	if err != nil {
		t.Fatal(err)
	}
	writer, engine := newFlushWriter(), &fakeEngine{hold: true}
	done := make(chan struct{})
	go func() {
		defer close(done)
		answer := engine.waiting()
		<-writer.flushes // the head
		for i, id := range ids[:4] {
			answer.tokens <- serving.Token{ID: id, AfterNS: int64(i+1) * 1e6}
			select {
			case bytes := <-writer.flushes:
				if bytes == 0 {
					t.Errorf("token %d: nothing went out", i)
				}
			case <-time.After(time.Minute):
				t.Errorf("token %d has not gone out", i)
			}
		}
		answer.Cancel()
	}()
	streamTo(t, engine, writer)
	<-done
}
