package workload

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/socs"
)

// Without a file there are six buckets, stored precision, and as much context as there is up to a default.
func TestWorkloadDefaults(t *testing.T) {
	demand, err := Default().Apply(1024)
	if err != nil {
		t.Fatal(err)
	}
	if len(demand.Buckets) != 6 || demand.Buckets[0] != 16 || demand.Buckets[5] != 512 {
		t.Errorf("buckets %v", demand.Buckets)
	}
	if demand.Context != 1024 || demand.OutputTokens != defaultOutputTokens {
		t.Errorf("%+v", demand)
	}
	stored := []op.Scheme{op.A32W32}
	if !slices.Equal(demand.Prefill, stored) || !slices.Equal(demand.Decode, stored) {
		t.Errorf("schemes %v %v, want stored precision", demand.Prefill, demand.Decode)
	}

	if large, err := Default().Apply(100_000); err != nil || large.Context != defaultContext {
		t.Errorf("context %d, want %d (%v)", large.Context, defaultContext, err)
	}
	if small, err := Default().Apply(8); err != nil || len(small.Buckets) != 1 || small.Buckets[0] != 8 {
		t.Errorf("buckets of a model with 8 positions: %v (%v)", small.Buckets, err)
	}
	if one, err := Default().Apply(1); err != nil || len(one.Buckets) != 0 {
		t.Errorf("buckets of a model with one position: %v (%v)", one.Buckets, err)
	}
}

// Of as many rows there is one program: a batch takes the place of a bucket.
func TestWorkloadBatches(t *testing.T) {
	work := Default()
	work.Batches = []int{4, 16}
	demand, err := work.Apply(1024)
	if err != nil {
		t.Fatal(err)
	}
	if len(demand.Buckets) != 5 || demand.Buckets[0] != 32 || demand.contexts[16] != demand.contexts[1] {
		t.Errorf("%+v", demand)
	}
	if want := []int{1, 4, 16, 32, 64, 128, 256, 512}; !slices.Equal(demand.Rows(), want) {
		t.Errorf("rows %v, want %v", demand.Rows(), want)
	}
	if ns := (&Demand{OutputTokens: 100, Batches: []int{4}}).DecodeNS(4, 8); ns != 100*8/4/2 {
		t.Errorf("100 tokens, half of them four at a time in steps of 8 ns, are counted as %v ns", ns)
	}
}

// A prompt fills the largest bucket as often as it can, and the rest goes to the smallest that holds it, as the decider
// does.
func TestWorkloadShares(t *testing.T) {
	work := Default()
	work.Buckets = []int{32, 128}
	work.Prompts = []Prompt{{Tokens: 20, Share: 1}, {Tokens: 300, Share: 3}} // 300 = 128 + 128 + 44
	demand, err := work.Apply(1024)
	if err != nil {
		t.Fatal(err)
	}
	if demand.Share[0] != 0.25 || demand.Share[1] != 2.25 {
		t.Errorf("calls per prompt %v, want 0.25 of 32 and 2.25 of 128", demand.Share)
	}
	if demand.contexts[32] != 20 || demand.contexts[1] != 230+64 {
		t.Errorf("contexts %v", demand.contexts)
	}
	if demand.contexts[128] != (128+256+300)/3 { // two full calls and the rest
		t.Errorf("contexts %v", demand.contexts)
	}

	sum := 0.0
	for _, length := range demand.Lengths[128] {
		sum += length.Share
		if length.Tokens != 128 && length.Tokens != 44 {
			t.Errorf("a call of %d rows", length.Tokens)
		}
	}
	if math.Abs(sum-1) > 1e-12 {
		t.Errorf("lengths add up to %v", sum)
	}
}

// A file says what it says, and its digest depends on all of it.
func TestWorkloadFile(t *testing.T) {
	work, err := Parse("w.yaml", []byte(`
schema: hetc.workload/1
name: chat
prompts: [54, {tokens: 296, share: 0.5}]
output_tokens: 374
context: 1024
schemes: {prefill: [a8t/q8c], decode: [a8t/q8c, a8t/q4b32]}
buckets: [64, 256]
weights: {prefill: 1, decode: 2}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := Prompts{{Tokens: 54, Share: 1}, {Tokens: 296, Share: 0.5}}
	if !slices.Equal(work.Prompts, want) || len(work.Schemes.Decode) != 2 || work.Weights.Decode != 2 {
		t.Errorf("%+v", work)
	}
	before, err := work.Digest()
	if err != nil {
		t.Fatal(err)
	}
	work.Context++
	if after, _ := work.Digest(); after == before {
		t.Error("another context has the same digest")
	}
}

// Files that make no sense are refused with the place and what is wanted.
func TestWorkloadRefuses(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"no schema":            {"name: x\n", "schema"},
		"unknown key":          {"schema: hetc.workload/1\nprompt: [1]\n", `did you mean "prompts"`},
		"unknown scheme":       {"schema: hetc.workload/1\nschemes: {decode: [a8t/q3]}\n", "a8t/q3"},
		"scheme twice":         {"schema: hetc.workload/1\nschemes: {decode: [a8t/q8c, a8t/q8c]}\n", "twice"},
		"negative share":       {"schema: hetc.workload/1\nprompts: [{tokens: 5, share: -1}]\n", "share is -1"},
		"no share":             {"schema: hetc.workload/1\nprompts: [{tokens: 5, share: 0}]\n", "no length"},
		"not a number":         {"schema: hetc.workload/1\nprompts: [{tokens: 5, share: .nan}]\n", "share"},
		"no tokens":            {"schema: hetc.workload/1\nprompts: [0]\n", "0 tokens"},
		"buckets out of order": {"schema: hetc.workload/1\nbuckets: [64, 32]\n", "ascending"},
		"bucket of one":        {"schema: hetc.workload/1\nbuckets: [1]\n", "one row is decode"},
		"batch of one":         {"schema: hetc.workload/1\nbatches: [1]\n", "one sequence is always there"},
		"batches out of order": {"schema: hetc.workload/1\nbatches: [8, 4]\n", "ascending"},
		"a batch too large":    {"schema: hetc.workload/1\nbatches: [1000]\n", "2..256"},
		"batch and bucket":     {"schema: hetc.workload/1\nbatches: [4, 16]\nbuckets: [16]\n", "bucket of prefill too"},
		"huge context":         {"schema: hetc.workload/1\ncontext: 99999999\n", "99999999"},
		"negative output":      {"schema: hetc.workload/1\noutput_tokens: -4\n", "-4"},
		"minimise what":        {"schema: hetc.workload/1\nminimise: tokens\n", "\"memory\""},
		"less than no energy":  {"schema: hetc.workload/1\nlimits: {energy_mj: -1}\n", "limit is -1 mJ"},
		"no region":            {"schema: hetc.workload/1\nlimits: {address_bytes: {npu: 0B}}\n", "more than 0"},
		"no graphs":            {"schema: hetc.workload/1\nlimits: {max_graphs: {npu: 0}}\n", "1.."},
		"an unknown limit":     {"schema: hetc.workload/1\nlimits: {prefil_ms: 3}\n", `did you mean "prefill_ms"`},
		"a negative loss":      {"schema: hetc.workload/1\nquality: {max_kl: {decode: -0.1}}\n", "limit is -0.1"},
		"an infinite loss":     {"schema: hetc.workload/1\nquality: {max_kl: .inf}\n", "finite number"},
		"quality of what":      {"schema: hetc.workload/1\nquality: {}\n", "max_kl"},
		"another phase":        {"schema: hetc.workload/1\nquality: {max_kl: {prefil: 1}}\n", `did you mean "prefill"`},
		"negative memory":      {"schema: hetc.workload/1\nmemory: -1GiB\n", "from 0"},
		"memory of no unit":    {"schema: hetc.workload/1\nmemory: 3 Gb\n", "unknown unit"},
		"too much memory":      {"schema: hetc.workload/1\nmemory: 9000000GiB\n", "bound is"},
		"negative weight":      {"schema: hetc.workload/1\nweights: {decode: -1}\n", "-1"},
		"a limit of nothing": {"schema: hetc.workload/1\nlimits:\n  decode_ms: 0\n",
			"w.yaml:3: limits.decode_ms: workload.value: limit is 0"},
		"a bound of nothing": {"schema: hetc.workload/1\nmemory: 0\n", "w.yaml:2: memory"},
		"no context":         {"schema: hetc.workload/1\ncontext: 0\n", "at least 1"},
		"no answer":          {"schema: hetc.workload/1\noutput_tokens: 0\n", "at least 1"},
		"nothing counts":     {"schema: hetc.workload/1\nweights: {prefill: 0, decode: 0}\n", "both are 0"},
		"nothing may be lost": {"schema: hetc.workload/1\nexperts: {overflow: prune, max_drop: 0, max_lost: 0.1}\n",
			"experts.max_drop: workload.value: limit is 0"},
		"the line of a list": {"schema: hetc.workload/1\nprompts:\n  - 5\n  - {tokens: 5, share: -1}\n",
			"w.yaml:4: prompts[1].share"},
		"no list of buckets":  {"schema: hetc.workload/1\nbuckets: true\n", "buckets is a truth value"},
		"no number in a list": {"schema: hetc.workload/1\nbuckets: [16.0]\n", "buckets[0] is a number"},
	} {
		_, err := Parse("w.yaml", []byte(test.text))
		if err == nil || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v, want an input error", name, err)
			continue
		}
		if text := err.Error() + strings.Join(diag.HintsOf(err), " "); !strings.Contains(text, test.want) {
			t.Errorf("%s: %q, want %q", name, text, test.want)
		}
	}

	work, err := Parse("w.yaml", []byte("schema: hetc.workload/1\nweights: {prefill: 3}\n"))
	if err != nil || work.Weights != (Weights{3, 1}) || work.Context != 0 || work.Memory != 0 || !work.Limits.IsZero() {
		t.Errorf("a weight that is left out: %+v (%v), want 1", work, err)
	}

	work = Default()
	work.Prompts = []Prompt{{Tokens: 5000, Share: 1}}
	if _, err := work.Apply(2048); diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "5000") {
		t.Errorf("a prompt beyond the context: %v", err)
	}

	work = Default()
	work.Context, work.Buckets = 64, []int{128}
	if _, err := work.Apply(2048); diag.ClassOf(err) != diag.ClassInput || !strings.Contains(err.Error(), "128") {
		t.Errorf("a bucket beyond the context: %v", err)
	}
}

// The example of the documentation is a workload.
func TestWorkloadDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/workload.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(text), "```yaml\n")
	if len(blocks) < 2 {
		t.Fatal("docs/workload.md has no example")
	}
	for _, block := range blocks[1:] {
		example, _, _ := strings.Cut(block, "```")
		if _, err := Parse("docs/workload.md", []byte(example)); err != nil {
			t.Error(err)
		}
	}
}

// Whatever a file has, a workload that is accepted can be applied and has a digest.
func FuzzWorkload(f *testing.F) {
	f.Add([]byte("schema: hetc.workload/1\nprompts: [1, {tokens: 9, share: 2}]\nbuckets: [16]\n"))
	f.Add([]byte(`{"schema":"hetc.workload/1","context":5,"schemes":{"decode":["a8t/q8c"]}}`))
	f.Add([]byte("schema: hetc.workload/1\nquality: {max_kl: {prefill: 0.1, decode: 1e-3}}\nmemory: 1.5GiB\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		work, err := Parse("w.yaml", data)
		if err != nil {
			return
		}
		if d, err := work.Apply(2048); err == nil && (d.Context < 1 || d.Context > 2048) {
			t.Fatalf("context %d of a model with 2048 positions", d.Context)
		}
		if _, err := work.Digest(); err != nil {
			t.Fatal(err)
		}
	})
}

// A limit of quality permits what is measured, for the phases it names; schemes narrow it down.
func TestWorkloadQuality(t *testing.T) {
	parse := func(text string) *Demand {
		t.Helper()
		work, err := Parse("w.yaml", []byte("schema: hetc.workload/1\n"+text))
		if err != nil {
			t.Fatal(err)
		}
		demand, err := work.Apply(1024)
		if err != nil {
			t.Fatal(err)
		}
		return demand
	}
	all := len(op.Schemes)
	both := parse("quality: {max_kl: 0.01}\nmemory: 1.2GiB\n")
	if both.MaxKL != (KLLimit{0.01, 0.01}) || len(both.Prefill) != all || len(both.Decode) != all {
		t.Errorf("%+v", both)
	}
	decode := parse("quality: {max_kl: {decode: 0.01}}\n")
	if decode.MaxKL != (KLLimit{Decode: 0.01}) || len(decode.Prefill) != 1 || len(decode.Decode) != all {
		t.Errorf("%+v", decode)
	}
	none := parse("quality: {max_kl: {decode: 0}}\n")
	if none.MaxKL != (KLLimit{Decode: Lossless}) || len(none.Decode) != all {
		t.Errorf("without any loss: %+v", none)
	}
	listed := parse("quality: {max_kl: {decode: 0.01}}\nschemes: {decode: [a8t/q8c]}\n")
	if len(listed.Decode) != 1 || listed.MaxKL.Decode != 0.01 {
		t.Errorf("%+v", listed)
	}
}

// A limit of quality has every scheme measured that processors execute, and those that are asked for by name.
func TestWorkloadNeeds(t *testing.T) {
	cores := &socs.SoC{Processors: make([]socs.Processor, 1)}
	cores.Processors[0].Schemes = []op.Scheme{op.A32W32, op.A8TQ8C}
	work := Default()
	work.Quality.MaxKL.Decode = 1
	needs, err := work.Needs(1024)
	if err != nil || len(needs.Schemes) != len(op.Schemes) {
		t.Fatalf("needs %v (%v), want every scheme", needs.Schemes, err)
	}
	if on := needs.On(cores); len(on) != 2 { // which execute two
		t.Errorf("to measure on its processors: %v", on)
	}

	work.Schemes.Decode = []op.Scheme{op.A8TQ4B32}
	needs, err = work.Needs(1024)
	if err != nil || len(needs.On(cores)) != 2 || !slices.Contains(needs.On(cores), op.A8TQ4B32) {
		t.Errorf("asked for by name: %v (%v)", needs, err)
	}
}

// Under a limit of quality, outliers decide which schemes with one static scale there are; a list that says otherwise
// is refused.
func TestOutliers(t *testing.T) {
	for outliers, want := range map[string][2]bool{ // clipping, shadows
		"": {true, true}, "best": {true, true}, "clip": {true, false}, "shadow": {false, true},
	} {
		text := "schema: hetc.workload/1\nquality: {max_kl: 0.01}\n"
		if outliers != "" {
			text += "outliers: " + outliers + "\n"
		}
		work, err := Parse("w.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		demand, err := work.Apply(1024)
		if err != nil {
			t.Fatal(err)
		}

		for _, list := range [][]op.Scheme{demand.Prefill, demand.Decode} {
			got := [2]bool{slices.Contains(list, op.A8SQ8C), slices.Contains(list, op.A8OQ8C)}
			if got != want || !slices.Contains(list, op.A8TQ8C) {
				t.Errorf("outliers %q permit %v", outliers, list)
			}
		}
	}

	for _, text := range []string{"outliers: drop", "outliers: clip\nschemes: {prefill: [a8o/q8c]}",
		"outliers: shadow\nschemes: {decode: [a8s/q8c]}", "shadows: {prune: 1.5}", "shadows: {prune: .nan}",
		"shadows: {slower: -0.1}", "shadows: {prune: 0}", "shadows: {slower: 0}",
		"shadows: {prune: 0.5, slower: 0.1}", "outliers: clip\nshadows: {prune: 0.5}"} {
		if _, err := Parse("w.yaml", []byte("schema: hetc.workload/1\n"+text+"\n")); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}
