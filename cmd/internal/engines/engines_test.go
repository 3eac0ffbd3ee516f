package engines

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/models/gguf"
)

// captured returns an output of llama.cpp: `llama-bench -m FILE -p 0 -n 4 -d 16 -t 2 -r 2 -o json` and the end of
// `llama-perplexity --kl-divergence`.
func captured(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// asked is the task of the captured output: four tokens after sixteen, twice.
var asked = Task{Depth: 16, Gen: 4, Reps: 2}

// The seconds, the version and the backend of llama-bench are read. Its own rate is of the decoded tokens alone, as
// ours.
func TestParseLlamaBench(t *testing.T) {
	out := captured(t, "llama-bench.json")
	var tests []struct {
		Nanoseconds []float64 `json:"samples_ns"`
		Rates       []float64 `json:"samples_ts"`
	}
	if err := json.Unmarshal(out, &tests); err != nil {
		t.Fatal(err)
	}

	said := []byte("x\nload_backend: loaded CPU backend from /a b/libggml-cpu-zen4.so\ny\n")
	r, err := parseLlamaBench(asked, 2, out, said)
	if err != nil {
		t.Fatal(err)
	}

	for i, ns := range tests[0].Nanoseconds {
		if got, want := r.SecondsPerRep[i], ns/1e9; got != want {
			t.Errorf("repetition %d: %v s, want %v", i, got, want)
		}
		got, want := float64(asked.Tokens())/r.SecondsPerRep[i], tests[0].Rates[i]
		if math.Abs(got/want-1) > 1e-5 {
			t.Errorf("repetition %d: %v tokens/s, llama-bench says %v", i, got, want)
		}
	}
	if r.Version != "0ad4a86 build 1" || r.Backend != "libggml-cpu-zen4.so" {
		t.Errorf("version %q, backend %q", r.Version, r.Backend)
	}
	if r, err := parseLlamaBench(asked, 2, out, nil); err != nil || r.Backend != "CPU" {
		t.Errorf("a build with one backend: %q, %v", r.Backend, err)
	}
}

// Output that is not of the measurement that was asked for is refused, with what is wrong with it.
func TestParseLlamaBenchRefuses(t *testing.T) {
	good := string(captured(t, "llama-bench.json"))
	replace := func(old, new string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("the captured output has no %q", old)
		}
		return strings.Replace(good, old, new, 1)
	}
	samples := good[strings.Index(good, `"samples_ns"`):]
	samples = samples[:strings.Index(samples, "]")+1]
	for name, c := range map[string]struct{ out, want string }{
		"empty":         {"", "it is empty"},
		"text":          {"error: unknown model\n", `it begins with "error: unknown model"`},
		"cut off":       {good[:len(good)/2], "its output is no list of tests"},
		"an object":     {"{}", "its output is no list of tests"},
		"null":          {"null", "got 0 tests, want 1"},
		"no test":       {"[]", "got 0 tests, want 1"},
		"two":           {"[{},{}]", "got 2 tests, want 1"},
		"empty test":    {"[{}]", "it measured prompt 0, generation 0 after 0, on 0 threads"},
		"other threads": {replace(`"n_threads": 2`, `"n_threads": 1`), "on 1 threads; asked for 0, 4 after 16, on 2"},
		"other length":  {replace(`"n_gen": 4`, `"n_gen": 128`), "generation 128"},
		"other depth":   {replace(`"n_depth": 16`, `"n_depth": 0`), "after 0"},
		"a prompt too":  {replace(`"n_prompt": 0`, `"n_prompt": 512`), "prompt 512"},
		"no samples":    {replace(samples, `"samples_ns": []`), "got 0 samples, want 2"},
		"one sample":    {replace(samples, `"samples_ns": [5]`), "got 1 samples, want 2"},
		"zero":          {replace(samples, `"samples_ns": [5, 0]`), "sample 1 is 0 ns"},
		"negative":      {replace(samples, `"samples_ns": [-5, 7]`), "sample 0 is -5 ns"},
		"fraction":      {replace(samples, `"samples_ns": [0.5, 7]`), "its output is no list of tests"},
		"huge":          {replace(samples, `"samples_ns": [1e300, 7]`), "its output is no list of tests"},
		"words":         {replace(samples, `"samples_ns": "fast"`), "its output is no list of tests"},
	} {
		_, err := parseLlamaBench(asked, 2, []byte(c.out), nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, c.want)
		}
	}
}

// FuzzParseLlamaBench refuses an output, or reads as many times as were asked for, each longer than nothing.
func FuzzParseLlamaBench(f *testing.F) {
	f.Add(captured(f, "llama-bench.json"), []byte("load_backend: loaded CPU backend from x.so\n"))
	f.Add([]byte("[{}]"), []byte{})
	f.Fuzz(func(t *testing.T, out, complaints []byte) {
		r, err := parseLlamaBench(asked, 2, out, complaints)
		if err != nil {
			return
		}
		if len(r.SecondsPerRep) != asked.Reps || len(r.Version) > 200 || len(r.Backend) > 200 {
			t.Errorf("accepted %+v", r)
		}
		for _, s := range r.SecondsPerRep {
			if !(s > 0) || math.IsInf(s, 0) {
				t.Errorf("a repetition took %v s", s)
			}
		}
	})
}

// The quality that llama-perplexity prints is read. Its errors are of one deviation, ours of 95 %.
func TestParsePerplexity(t *testing.T) {
	got, err := parsePerplexity("Q4_0", captured(t, "llama-perplexity.txt"))
	if err != nil {
		t.Fatal(err)
	}
	want := Quality{
		Engine:     "llama.cpp",
		Form:       "Q4_0",
		MeanKL:     0.020483,
		KLError:    1.96 * 0.001140,
		SameTop:    0.90748,
		Perplexity: 19.873093,
	}
	if math.Abs(got.KLError-want.KLError) > 1e-12 || math.Abs(got.SameTop-want.SameTop) > 1e-12 {
		t.Errorf("got %+v, want %+v", got, want)
	}
	got.KLError, got.SameTop = want.KLError, want.SameTop
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Output that lacks one of the numbers is refused, and the error names it.
func TestParsePerplexityRefuses(t *testing.T) {
	good := captured(t, "llama-perplexity.txt")
	without := func(old, new string) []byte { return bytes.ReplaceAll(good, []byte(old), []byte(new)) }
	for want, out := range map[string][]byte{
		"no KL":         without("KLD", "KLX"),
		"no top token":  without("Same top p", "Same"),
		"no perplexity": without("PPL(Q)", "PPL"),
		`KL is "0.0.2"`: without("0.020483", "0.0.2"),
		"it is empty":   nil,
	} {
		if _, err := parsePerplexity("Q4_0", out); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// start is a task whose time is that of the whole process: a reading has no time of its own.
var start = Task{Start: 8, Reps: 1}

// A start is a phase of its own with one token.
func TestStart(t *testing.T) {
	if start.Phase() != "start" || start.Tokens() != 1 {
		t.Errorf("%v: phase %q, %d tokens", start, start.Phase(), start.Tokens())
	}
}

// A start of hetc is asked for with its prompt, and its output says that prompt.
func TestStartOfHetc(t *testing.T) {
	h := &Hetc{Bundle: "b", Trust: "k"}
	_, args := h.Command(start, 2)
	if !strings.Contains(strings.Join(args, " "), "--tokens 0,1,2,3,4,5,6,7 --max-tokens 1") {
		t.Errorf("arguments %q", args)
	}

	r, err := h.Parse(start, 2, []byte(`{"prompt_tokens": [0,1,2,3,4,5,6,7]}`), nil)
	if err != nil || len(r.SecondsPerRep) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = h.Parse(start, 2, []byte(`{"prompt_tokens": [0]}`), nil)
	if err == nil || !strings.Contains(err.Error(), "a prompt of 1 tokens, want 8") {
		t.Errorf("another prompt: %v", err)
	}
}

// A start of llama.cpp is asked for with the length of its prompt, and its output says that length.
func TestStartOfLlamaCpp(t *testing.T) {
	peer := (&LlamaCpp{}).Engine("f", "Q8_0")
	_, args := peer.Command(start, 2)
	if !strings.Contains(strings.Join(args, " "), "-p 8 -n 0 --no-warmup") {
		t.Errorf("arguments %q", args)
	}

	const out = `[{"build_commit": "c", "n_threads": 2, "n_prompt": %d, "n_gen": 0, "samples_ns": [5]}]`
	if r, err := peer.Parse(start, 2, fmt.Appendf(nil, out, 8), nil); err != nil || len(r.SecondsPerRep) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := peer.Parse(start, 2, fmt.Appendf(nil, out, 9), nil); err == nil {
		t.Error("another prompt was read")
	}
}

// The times of a prompt and of a token that hetc prints are read as seconds of a repetition.
func TestParseHetc(t *testing.T) {
	h := &Hetc{}
	prompts := []byte(`{"prefill_samples_us": [2000, 4000], "decode_samples_us": []}`)
	r, err := h.Parse(Task{Prompt: 8, Reps: 2}, 2, prompts, nil)
	if err != nil || !slices.Equal(r.SecondsPerRep, []float64{0.002, 0.004}) {
		t.Errorf("prefill: %v, %v", r.SecondsPerRep, err)
	}
	tokens := []byte(`{"prefill_samples_us": [2000], "decode_samples_us": [1000]}`)
	r, err = h.Parse(Task{Depth: 8, Gen: 5, Reps: 1}, 2, tokens, nil)
	if err != nil || !slices.Equal(r.SecondsPerRep, []float64{0.005}) {
		t.Errorf("decode: %v, %v", r.SecondsPerRep, err)
	}
}

// Output of hetc without as many times, or of a simulated SoC, is refused.
func TestParseHetcRefuses(t *testing.T) {
	for out, want := range map[string]string{
		"":                                "it is empty",
		`{"simulated": true}`:             "simulated SoC",
		`{"prefill_samples_us": [1]}`:     "got 1 samples, want 2",
		`{"prefill_samples_us": [1, 0]}`:  "sample 1 is 0 us",
		`{"prefill_samples_us": [-1, 1]}`: "sample 0 is -1 us",
	} {
		_, err := (&Hetc{}).Parse(Task{Prompt: 8, Reps: 2}, 2, []byte(out), nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", out, err, want)
		}
	}
}

// A token of decoding reads all matrices once, and of an embedding beside a head one row.
func TestDecodeBytes(t *testing.T) {
	const path = "../../../models/gguf/testdata/llama.gguf"
	file, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var all int64
	for _, name := range file.Names() {
		tensor, _ := file.Tensor(name)
		all += int64(len(tensor.Data))
	}
	want := all
	if _, separate := file.Tensor("output.weight"); separate {
		table, _ := file.Tensor("token_embd.weight")
		want -= int64(len(table.Data))
	}
	if got := decodeBytes(path); got != want || got == 0 {
		t.Errorf("got %d bytes, want %d of %d", got, want, all)
	}
	if got := decodeBytes("gone"); got != 0 {
		t.Errorf("a file that is not there: got %d bytes, want 0", got)
	}
}
