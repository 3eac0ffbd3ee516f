package engines

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/hetc/hetc/models/gguf"
)

// captured are outputs of llama.cpp: `llama-bench -m FILE -p 0 -n 4 -d 16 -t 2 -r 2 -o json` and the end of
// `llama-perplexity --kl-divergence`.
func captured(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

var asked = Task{Depth: 16, Gen: 4, Reps: 2}

func TestParseLlamaBench(t *testing.T) {
	out := captured(t, "llama-bench.json")
	r, err := parseLlamaBench(asked, 2, out, []byte("x\nload_backend: loaded CPU backend from /a b/libggml-cpu-zen4.so\ny\n"))
	if err != nil {
		t.Fatal(err)
	}
	var doc []map[string]any
	if err := json.Unmarshal(out, &doc); err != nil {
		t.Fatal(err)
	}
	for i, ns := range doc[0]["samples_ns"].([]any) {
		if got, want := r.SecondsPerRep[i], ns.(float64)/1e9; got != want {
			t.Errorf("repetition %d: %v s, want %v", i, got, want)
		}
		// Its own rate is of the decoded tokens alone, as ours.
		if got, want := float64(asked.Tokens())/r.SecondsPerRep[i], doc[0]["samples_ts"].([]any)[i].(float64); math.Abs(got/want-1) > 1e-5 {
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

// Whatever is not the measurement that was asked for is refused, with what is wrong with it.
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
		if _, err := parseLlamaBench(asked, 2, []byte(c.out), nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, c.want)
		}
	}
}

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

func TestParsePerplexity(t *testing.T) {
	out := captured(t, "llama-perplexity.txt")
	q, err := parsePerplexity("Q4_0", out)
	want := Quality{Engine: "llama.cpp", Form: "Q4_0", MeanKL: 0.020483, KLError: 1.96 * 0.001140, SameTop: 0.90748, Perplexity: 19.873093}
	if err != nil || math.Abs(q.KLError-want.KLError) > 1e-12 || math.Abs(q.SameTop-want.SameTop) > 1e-12 {
		t.Fatalf("got %+v, %v, want %+v", q, err, want)
	}
	if q.KLError, q.SameTop = want.KLError, want.SameTop; q != want {
		t.Errorf("got %+v, want %+v", q, want)
	}
	for what, broken := range map[string][]byte{
		"no KL":         bytes.ReplaceAll(out, []byte("KLD"), []byte("KLX")),
		"no top token":  bytes.ReplaceAll(out, []byte("Same top p"), []byte("Same")),
		"no perplexity": bytes.ReplaceAll(out, []byte("PPL(Q)"), []byte("PPL")),
		`KL is "0.0.2"`: bytes.ReplaceAll(out, []byte("0.020483"), []byte("0.0.2")),
		"it is empty":   nil,
	} {
		if _, err := parsePerplexity("Q4_0", broken); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Of a start the process's own time counts: a reading has none, but says that it was what was asked for.
func TestParseStart(t *testing.T) {
	start := Task{Start: 8, Reps: 1}
	if start.Phase() != "start" || start.Tokens() != 1 {
		t.Errorf("%v: phase %q, %d tokens", start, start.Phase(), start.Tokens())
	}
	h := &Hetc{Bundle: "b", Trust: "k"}
	if _, args := h.Command(start, 2); !strings.Contains(strings.Join(args, " "), "--tokens 0,1,2,3,4,5,6,7 --max-tokens 1") {
		t.Errorf("hetc: %q", args)
	}
	if r, err := h.Parse(start, 2, []byte(`{"prompt_tokens": [0,1,2,3,4,5,6,7]}`), nil); err != nil || len(r.SecondsPerRep) != 0 {
		t.Errorf("hetc: %+v, %v", r, err)
	}
	if _, err := h.Parse(start, 2, []byte(`{"prompt_tokens": [0]}`), nil); err == nil || !strings.Contains(err.Error(), "a prompt of 1 tokens, want 8") {
		t.Errorf("hetc with another prompt: %v", err)
	}
	peer := (&LlamaCpp{}).Engine("f", "Q8_0")
	if _, args := peer.Command(start, 2); !strings.Contains(strings.Join(args, " "), "-p 8 -n 0 --no-warmup") {
		t.Errorf("llama.cpp: %q", args)
	}
	out := `[{"build_commit": "c", "n_threads": 2, "n_prompt": 8, "n_gen": 0, "samples_ns": [5]}]`
	if r, err := peer.Parse(start, 2, []byte(out), nil); err != nil || len(r.SecondsPerRep) != 0 {
		t.Errorf("llama.cpp: %+v, %v", r, err)
	}
	if _, err := peer.Parse(start, 2, []byte(strings.Replace(out, `"n_prompt": 8`, `"n_prompt": 9`, 1)), nil); err == nil {
		t.Error("llama.cpp with another prompt was read")
	}
}

func TestParseHetc(t *testing.T) {
	h := &Hetc{}
	r, err := h.Parse(Task{Prompt: 8, Reps: 2}, 2, []byte(`{"prefill_samples_us": [2000, 4000], "decode_samples_us": []}`), nil)
	if err != nil || r.SecondsPerRep[0] != 0.002 || r.SecondsPerRep[1] != 0.004 {
		t.Errorf("prefill: %v, %v", r.SecondsPerRep, err)
	}
	r, err = h.Parse(Task{Depth: 8, Gen: 5, Reps: 1}, 2, []byte(`{"prefill_samples_us": [2000], "decode_samples_us": [1000]}`), nil)
	if err != nil || r.SecondsPerRep[0] != 0.005 {
		t.Errorf("decode: %v, %v", r.SecondsPerRep, err)
	}
	for out, want := range map[string]string{
		"":                                "it is empty",
		`{"simulated": true}`:             "simulated SoC",
		`{"prefill_samples_us": [1]}`:     "got 1 samples, want 2",
		`{"prefill_samples_us": [1, 0]}`:  "sample 1 is 0 us",
		`{"prefill_samples_us": [-1, 1]}`: "sample 0 is -1 us",
	} {
		if _, err := h.Parse(Task{Prompt: 8, Reps: 2}, 2, []byte(out), nil); err == nil || !strings.Contains(err.Error(), want) {
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
