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

// What llama.cpp's server streamed for 3 tokens (release of node-llama-cpp 3.22.1), shortened.
const streamed = `data: {"index":0,"content":" a","tokens":[263],"stop":false,"id_slot":-1,"tokens_predicted":1}

data: {"index":0,"content":" b","tokens":[289],"stop":false,"id_slot":-1,"tokens_predicted":2}

data: {"index":0,"content":"","tokens":[],"id_slot":0,"stop":true,"tokens_predicted":3,"stop_type":"limit"}

`

func TestReadEvents(t *testing.T) {
	clock := int64(0)
	now := func() int64 { clock += 10; return clock }
	tokens, first, last, err := readEvents(strings.NewReader(streamed), now)
	if err != nil || tokens != 3 || first != 10 || last != 30 {
		t.Errorf("%d tokens from %d to %d (%v), want 3 from 10 to 30", tokens, first, last, err)
	}
	for what, text := range map[string]string{"cut off": streamed[:200], "no event": "", "no JSON": "data: {\n\n"} {
		if _, _, _, err := readEvents(strings.NewReader(text), now); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
}

// Every request of a trace is sent as it is: its tokens, how many are to come, and that none may be left out or kept for
// later. An answer that lacks tokens, or another status, is an error.
func TestLlamaServerIsAsked(t *testing.T) {
	left := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
		if r.URL.Path != "/completion" || !asked.Ignore || asked.Cache == nil || *asked.Cache || !asked.Stream ||
			len(asked.Prompt) != asked.Tokens+1 {
			t.Errorf("asked %s %+v", r.URL.Path, asked)
		}
		if left == -100 {
			http.Error(w, "busy", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, "data: {\"stop\":false}\n\ndata: {\"stop\":true,\"tokens_predicted\":%d}\n\n", asked.Tokens+left)
	}))
	defer server.Close()
	trace := []Request{{AtMS: 0, Class: "reactive", Prompt: 4, Output: 3}, {AtMS: 5, Class: "proactive", Prompt: 8, Output: 7}}
	peer := &llamaServer{url: server.URL}
	report, err := peer.measure(t.Context(), trace, [][]int32{make([]int32, 4), make([]int32, 8)})
	if err != nil {
		t.Fatal(err)
	}
	if report.Policy != llamaPolicy || report.Simulated || len(report.Classes) != 2 || report.Classes[1].Requests != 1 {
		t.Errorf("%+v", report)
	}
	for _, left = range []int{-1, -100} {
		if _, err := peer.measure(t.Context(), trace, [][]int32{make([]int32, 4), make([]int32, 8)}); err == nil {
			t.Errorf("answers with %d tokens more were accepted", left)
		}
	}
}

// What the other server fails to answer costs the row of its own policy, and no measurement of hetc's.
func TestFailingPeerCostsItsRow(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "busy", http.StatusServiceUnavailable)
	}))
	defer server.Close()
	var warnings strings.Builder
	ui := &cli.Streams{Tool: "hetc", Out: io.Discard, Err: &warnings}
	trace := []Request{{AtMS: 0, Class: "proactive", Prompt: 4, Output: 3}, {AtMS: 1, Class: "proactive", Prompt: 8, Output: 2}}
	measuring := bench{ui: ui, options: &Options{Rounds: 2}, machine: onOneCore(t), peer: &llamaServer{url: server.URL}}
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

// The server itself, where it was compiled: it plays a trace with the demo model, and ends when it is closed.
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
	trace := []Request{{AtMS: 0, Class: "proactive", Prompt: 40, Output: 9}, {AtMS: 1, Class: "reactive", Prompt: 5, Output: 4}}
	texts := [][]int32{slices.Repeat([]int32{700}, 40), {9, 8, 7, 6, 5}}
	report, err := peer.measure(t.Context(), trace, texts)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Classes) != 2 || report.Classes[0].TTFT <= 0 || report.Rate <= 0 {
		t.Errorf("%+v", report)
	}
}
