package workload

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
)

// Of 4 sequences, in batches of 3, one is left over: 3 of 4 tokens are decoded in a batch that takes a third of a
// step each.
func TestDecodeSteps(t *testing.T) {
	d := &Demand{OutputTokens: 10, Batches: []int{3}}
	d.countSteps([]Parallel{{1, 1}, {2, 1}, {4, 2}})
	if one, three := d.DecodeNS(1, 8), d.DecodeNS(3, 8); one != 10*8*(1.0/4+1.0/8) || three != 10*8*(1.0/8+1.0/8) {
		t.Errorf("%v and %v", one, three)
	}
}

func TestPromptSources(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("twice.txt", "120\n{\"prompt\":1,\"prompt\":2}\n")
	write("plain.txt", "# recorded\n120\n40 10\n120,  30\n\n")
	write("requests.jsonl", `{"prompt": 120}`+"\n"+`{"prompt": 40, "output": 10, "id": "x"}`+"\n"+`{"prompt":120,"output":30}`+"\n")
	write("served.jsonl", `{"at_ms":1,"class":"reactive","prompt_tokens":120,"output_tokens":30}`+"\n"+
		`{"at_ms":2,"class":"proactive","prompt_tokens":240,"cached_tokens":120,"output_tokens":30}`+"\n"+
		`{"at_ms":3,"class":"reactive","prompt_tokens":40,"output_tokens":10}`+"\n")
	read := func(text string) (*Workload, error) {
		return Read(write("w.yaml", "schema: hetc.workload/1\n"+text))
	}
	want := Prompts{{Tokens: 40, Share: 1, Output: 10}, {Tokens: 120, Share: 2, Output: 30}}
	var digests []string
	for _, name := range []string{"plain.txt", "requests.jsonl", "served.jsonl"} {
		w, err := read("prompts: {trace: " + name + "}\n")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(w.Prompts, want) {
			t.Errorf("%s: %v, want %v", name, w.Prompts, want)
		}
		digest, err := w.Digest()
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, digest)
		if d, err := w.Apply(1024); err != nil || d.OutputTokens != 23 { // (10 + 2*30) / 3
			t.Errorf("%+v, %v", d, err)
		}
	}
	if digests[0] != digests[1] || digests[0] != digests[2] {
		t.Error("equal traces have different digests")
	}
	write("plain.txt", "120\n41 10\n120 30\n")
	if w, err := read("prompts: {trace: plain.txt}\n"); err != nil {
		t.Fatal(err)
	} else if d, _ := w.Digest(); d == digests[0] {
		t.Error("another trace has the same digest")
	}
	w, err := read("prompts: {named: llmnpu-ui}\n")
	if err != nil || len(w.Prompts) != 323 || w.Prompts[0].Tokens != 505 || w.Prompts.answer() < 3.49 || w.Prompts.answer() > 3.51 {
		t.Errorf("%v, %v", w, err)
	}
	for _, x := range named {
		if p, err := NamedPrompts(x.name); err != nil || len(p) == 0 || x.source == "" {
			t.Errorf("%s: %v", x.name, err)
		}
	}
	w, err = read("prompts: {lognormal: {median: 200, sigma: 0.8, max: 2048}}\n")
	if err != nil {
		t.Fatal(err)
	}
	sum, half := 0.0, 0.0
	for _, p := range w.Prompts {
		if sum += p.Share; p.Tokens <= 200 {
			half += p.Share
		}
	}
	if math.Abs(sum-1e9) > 2048 || math.Abs(half/sum-0.5) > 0.005 {
		t.Errorf("shares add up to %v, and %v of them are of at most 200 tokens", sum, half/sum)
	}
	for text, want := range map[string]string{
		"prompts: {trace: none.txt}\n":                                       "none.txt",
		"prompts: {trace: twice.txt}\n":                                      `twice.txt:2: workload.trace: key "prompt" twice`,
		"prompts: {named: llmnpu-uj}\n":                                      `did you mean "llmnpu-ui"`,
		"prompts: {named: llmnpu, trace: plain.txt}\n":                       "2 sources",
		"prompts: {}\n":                                                      "0 sources",
		"prompts: {lognormal: {median: 200, sigma: -1, max: 9}}\n":           "sigma -1",
		"prompts: {lognormal: {median: 200, sigma: 1}}\n":                    "max",
		"prompts: {lognormal: {median: 2000000, sigma: 0.001, max: 9}}\n":    "none is at most 9 tokens",
		"prompts: {histogram: 3}\n":                                          "histogram",
		"buckets: {max: 0}\n":                                                "want 1..64",
		"buckets: {most: 3}\n":                                               "most",
		"batches: {max: 2}\n":                                                "parallel",
		"batches: {max: 2}\nparallel: [{sequences: 0, share: 1}]\n":          "want 1..256",
		"parallel: [{sequences: 3, share: 1}, {sequences: 2, share: 1}]\n":   "ascending",
		"parallel: [{sequences: 3, share: 0}]\n":                             "share above 0",
		"prompts: [{tokens: 3, output: -1}]\n":                               "answer has -1",
		"buckets: {max: 3}\nprompts: [9]\nbatches: [2]\nquality: {max: 1}\n": "quality",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error()+strings.Join(diag.HintsOf(err), " "), want) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"12x\n":             `"12x" is no number`,
		"1 2 3\n":           "3 values",
		"0\n":               "request of 0 tokens",
		"5\n5 -1\n":         "trace.txt:2",
		"{\"output\": 3}\n": `no "prompt"`,
		`{"prompt_tokens": 3, "cached_tokens": 3}`:                    "request of 0 tokens",
		`{"prompt_tokens": 3, "cached_tokens": -4}`:                   "-4 cached tokens",
		`{"prompt_tokens": -9, "cached_tokens": 9223372036854775807}`: "9223372036854775807 cached tokens",
		"{\"prompt\": 3\n":         "no JSON object",
		"# nothing\n":              "has no request",
		"{\"prompt\":1.5}":         "no JSON object",
		strings.Repeat("1", 1<<17): "token too long",
	} {
		if _, err := parseTrace("trace.txt", []byte(text)); err == nil || !strings.Contains(err.Error(), want) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%q: %v, want %q", text[:min(20, len(text))], err, want)
		}
	}
}

// A workload is written as it is read.
func TestRowsWritten(t *testing.T) {
	for _, rows := range []Rows{{64, 256}, AtMost(8)} {
		w := Default()
		w.Buckets = rows
		text, err := decode.YAML(*w)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Parse("w.yaml", text); err != nil || !slices.Equal(got.Buckets, rows) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}
