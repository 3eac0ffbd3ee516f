package traffic

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/scheduler"
)

// streamed is what llama.cpp's server streamed for 3 tokens (release of node-llama-cpp 3.22.1), shortened.
const streamed = `data: {"index":0,"content":" a","tokens":[263],"stop":false,"id_slot":-1,"tokens_predicted":1}

data: {"index":0,"content":" b","tokens":[289],"stop":false,"id_slot":-1,"tokens_predicted":2}

data: {"index":0,"content":"","tokens":[],"id_slot":0,"stop":true,"tokens_predicted":3,"stop_type":"limit"}

`

// The events of an answer tell how many tokens came, and when the first and the last did. Text that is cut off or is no
// event is an error.
func TestReadEvents(t *testing.T) {
	clock := int64(0)
	now := func() int64 {
		clock += 10
		return clock
	}

	tokens, first, last, err := readEvents(strings.NewReader(streamed), now)
	if err != nil || tokens != 3 || first != 10 || last != 30 {
		t.Errorf("%d tokens from %d to %d (%v), want 3 from 10 to 30", tokens, first, last, err)
	}

	for what, text := range map[string]string{
		"cut off":  streamed[:200],
		"no event": "",
		"no JSON":  "data: {\n\n",
	} {
		if _, _, _, err := readEvents(strings.NewReader(text), now); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
}

// answersOf serves requests as llama.cpp's server does, with some tokens more than they ask for. It expects requests
// for all tokens, of which none may be left out or kept for later.
func answersOf(t *testing.T, more int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			Prompt []int32 `json:"prompt"`
			Tokens int     `json:"n_predict"`
			Ignore bool    `json:"ignore_eos"`
			Cache  *bool   `json:"cache_prompt"`
			Stream bool    `json:"stream"`
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			t.Error(err)
		}
		if r.URL.Path != "/completion" || len(asked.Prompt) != asked.Tokens+1 {
			t.Errorf("asked %s for %d tokens after %d", r.URL.Path, asked.Tokens, len(asked.Prompt))
		}
		if !asked.Ignore || asked.Cache == nil || *asked.Cache || !asked.Stream {
			t.Errorf("asked %+v", asked)
		}
		const events = "data: {\"stop\":false}\n\ndata: {\"stop\":true,\"tokens_predicted\":%d}\n\n"
		fmt.Fprintf(w, events, asked.Tokens+more)
	}
}

// busy refuses every request.
func busy(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "busy", http.StatusServiceUnavailable)
}

// Every request of a trace is sent as it is. An answer that lacks tokens, or has another status, is an error.
func TestLlamaServerIsAsked(t *testing.T) {
	trace := []Request{
		{AtMS: 0, Class: "reactive", Prompt: 4, Output: 3},
		{AtMS: 5, Class: "proactive", Prompt: 8, Output: 7},
	}
	measure := func(handler http.HandlerFunc) (*Report, error) {
		server := httptest.NewServer(handler)
		defer server.Close()
		peer := &llamaServer{url: server.URL}
		return peer.measure(t.Context(), trace, [][]int32{make([]int32, 4), make([]int32, 8)})
	}

	report, err := measure(answersOf(t, 0))
	if err != nil {
		t.Fatal(err)
	}
	if report.Policy != llamaPolicy || report.Simulated || len(report.Classes) != 2 || report.Classes[1].Requests != 1 {
		t.Errorf("%+v", report)
	}

	if _, err := measure(answersOf(t, -1)); err == nil {
		t.Error("answers that lack a token were accepted")
	}
	if _, err := measure(busy); err == nil {
		t.Error("another status was accepted")
	}
}

// What the other server fails to answer costs the row of its own policy, and no measurement of hetc's.
func TestFailingPeerCostsItsRow(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(busy))
	defer server.Close()
	var warnings strings.Builder
	trace := []Request{
		{AtMS: 0, Class: "proactive", Prompt: 4, Output: 3},
		{AtMS: 1, Class: "proactive", Prompt: 8, Output: 2},
	}
	measuring := bench{
		ui:      &cli.Streams{Tool: "hetc", Out: io.Discard, Err: &warnings},
		options: &Options{Rounds: 2},
		machine: onOneCore(t),
		peer:    &llamaServer{url: server.URL},
	}

	reports, _, err := measuring.measure(t.Context(), &load{trace: trace})
	if err != nil {
		t.Fatal(err)
	}

	var policies []scheduler.Policy
	for _, report := range reports {
		policies = append(policies, report.Policy)
	}
	if !slices.Equal(policies, scheduler.Policies) {
		t.Errorf("rows %q, want %q", policies, scheduler.Policies)
	}
	if !strings.Contains(warnings.String(), "2 of 2 requests failed") {
		t.Errorf("warnings: %q", warnings.String())
	}
}

// The server itself, where it was compiled, plays a trace with the demo model.
func TestLlamaServer(t *testing.T) {
	require.Deps()
	if _, err := findLlamaServer(); err != nil {
		require.Skip(t, llamaServerName, err)
	}
	file := filepath.Join(t.TempDir(), "demo.gguf")
	model, err := models.Open(demo)
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	if err := models.Export(t.Context(), model, file, op.F16); err != nil {
		t.Fatal(err)
	}
	plan := &planir.Plan{MaxContext: 256, Procs: []planir.Proc{{Cores: []int{0}}}}
	peer, err := startLlamaServer(t.Context(), plan, file, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	trace := []Request{
		{AtMS: 0, Class: "proactive", Prompt: 40, Output: 9},
		{AtMS: 1, Class: "reactive", Prompt: 5, Output: 4},
	}
	texts := [][]int32{slices.Repeat([]int32{700}, 40), {9, 8, 7, 6, 5}}
	report, err := peer.measure(t.Context(), trace, texts)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Classes) != 2 || report.Classes[0].TTFT <= 0 || report.Rate <= 0 {
		t.Errorf("%+v", report)
	}
}
