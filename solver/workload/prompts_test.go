package workload

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
)

// Of 4 sequences, in batches of 3, one is left over: 3 of 4 tokens are decoded in a batch that takes a third of a step
// each.
func TestDecodeSteps(t *testing.T) {
	demand := &Demand{OutputTokens: 10, Batches: []int{3}}
	demand.countSteps([]Parallel{{1, 1}, {2, 1}, {4, 2}})
	one, three := demand.DecodeNS(1, 8), demand.DecodeNS(3, 8)
	if one != 10*8*(1.0/4+1.0/8) || three != 10*8*(1.0/8+1.0/8) {
		t.Errorf("%v and %v", one, three)
	}
}

// reader writes files into a folder and reads workloads beside them.
type reader struct {
	t   *testing.T
	dir string
}

// write writes a file and returns its path.
func (r reader) write(name, text string) string {
	path := filepath.Join(r.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// read reads a workload with this text.
func (r reader) read(text string) (*Workload, error) {
	return Read(r.write("w.yaml", "schema: hetc.workload/1\n"+text))
}

// Traces in three formats that say the same are the same prompts, with the same digest.
func TestTracesOfPrompts(t *testing.T) {
	files := reader{t, t.TempDir()}
	files.write("plain.txt", "# recorded\n120\n40 10\n120,  30\n\n")
	files.write("requests.jsonl", `{"prompt": 120}`+"\n"+`{"prompt": 40, "output": 10, "id": "x"}`+"\n"+
		`{"prompt":120,"output":30}`+"\n")
	files.write("served.jsonl", `{"at_ms":1,"class":"reactive","prompt_tokens":120,"output_tokens":30}`+"\n"+
		`{"at_ms":2,"class":"proactive","prompt_tokens":240,"cached_tokens":120,"output_tokens":30}`+"\n"+
		`{"at_ms":3,"class":"reactive","prompt_tokens":40,"output_tokens":10}`+"\n")
	want := Prompts{{Tokens: 40, Share: 1, Output: 10}, {Tokens: 120, Share: 2, Output: 30}}
	var digests []string
	for _, name := range []string{"plain.txt", "requests.jsonl", "served.jsonl"} {
		work, err := files.read("prompts: {trace: " + name + "}\n")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(work.Prompts, want) {
			t.Errorf("%s: %v, want %v", name, work.Prompts, want)
		}
		digest, err := work.Digest()
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, digest)
		demand, err := work.Apply(1024)
		if err != nil || demand.OutputTokens != 23 { // (10 + 2*30) / 3
			t.Errorf("%+v, %v", demand, err)
		}
	}
	if digests[0] != digests[1] || digests[0] != digests[2] {
		t.Error("equal traces have different digests")
	}

	files.write("plain.txt", "120\n41 10\n120 30\n")
	work, err := files.read("prompts: {trace: plain.txt}\n")
	if err != nil {
		t.Fatal(err)
	}
	if digest, _ := work.Digest(); digest == digests[0] {
		t.Error("another trace has the same digest")
	}
}

// Prompts may be named, or follow a distribution.
func TestNamedAndDrawnPrompts(t *testing.T) {
	files := reader{t, t.TempDir()}
	work, err := files.read("prompts: {named: llmnpu-ui}\n")
	if err != nil || len(work.Prompts) != 323 || work.Prompts[0].Tokens != 505 {
		t.Fatalf("%v, %v", work, err)
	}
	if answer := work.Prompts.answer(); answer < 3.49 || answer > 3.51 {
		t.Errorf("answers of %v tokens", answer)
	}
	for _, test := range named {
		if prompts, err := NamedPrompts(test.name); err != nil || len(prompts) == 0 || test.source == "" {
			t.Errorf("%s: %v", test.name, err)
		}
	}

	work, err = files.read("prompts: {lognormal: {median: 200, sigma: 0.8, max: 2048}}\n")
	if err != nil {
		t.Fatal(err)
	}
	sum, half := 0.0, 0.0
	for _, prompt := range work.Prompts {
		sum += prompt.Share
		if prompt.Tokens <= 200 {
			half += prompt.Share
		}
	}
	if math.Abs(sum-1e9) > 2048 || math.Abs(half/sum-0.5) > 0.005 {
		t.Errorf("shares add up to %v, and %v of them are of at most 200 tokens", sum, half/sum)
	}
}

// Prompts, buckets and batches that make no sense are refused with what is wanted.
func TestPromptSourcesAreRefused(t *testing.T) {
	files := reader{t, t.TempDir()}
	files.write("twice.txt", "120\n{\"prompt\":1,\"prompt\":2}\n")
	files.write("plain.txt", "120\n")
	for text, want := range map[string]string{
		"prompts: {trace: none.txt}\n": "none.txt",
		"prompts: {trace: twice.txt}\n": `twice.txt:2: workload.trace: key "prompt" ` +
			"twice",
		"prompts: {named: llmnpu-uj}\n":                `did you mean "llmnpu-ui"`,
		"prompts: {named: llmnpu, trace: plain.txt}\n": "2 sources",
		"prompts: {}\n": "0 sources",
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
		_, err := files.read(text)
		said := fmt.Sprint(err, diag.HintsOf(err))
		if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(said, want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// Traces that make no sense are refused with the line and what is wanted.
func TestTracesAreRefused(t *testing.T) {
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
		_, err := parseTrace("trace.txt", []byte(text))
		if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text[:min(20, len(text))], err, want)
		}
	}
}

// A workload is written as it is read.
func TestRowsWritten(t *testing.T) {
	for _, rows := range []Rows{{64, 256}, AtMost(8)} {
		work := Default()
		work.Buckets = rows
		text, err := decode.YAML(*work)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Parse("w.yaml", text); err != nil || !slices.Equal(got.Buckets, rows) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}
