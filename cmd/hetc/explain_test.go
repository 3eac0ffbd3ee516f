package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/socs"
)

// A machine of round numbers: 1000 and 100 operations and 10 bytes a nanosecond.
const roundSoC = `schema: hetc.soc/1
name: round
control: cpu
processors:
  - name: cpu
    kind: cpu
    driver: host
    select: "0"
    cores: [0]
    peak_gops: {i8: 1000, f32: 100}
    bandwidth_gbps: 10
    tile: {k: 32, n: 32}
    schemes: [a32/w32, a8t/q8c]
    layouts: {w32: n32, q8c: n32}
    kv: [f32]
    dynamic_rows: true
    strided_output: true
    strided_input: true
    weight_ranges: true
    weight_bytes: shared
sources:
  processors: "measured: a test"
`

// explain shows what share of the hardware's bound every predicted time is.
func TestExplainRoof(t *testing.T) {
	dir := t.TempDir()
	socFile, planFile := filepath.Join(dir, "soc.yaml"), filepath.Join(dir, "plan.yaml")
	if err := os.WriteFile(socFile, []byte(roundSoC), 0o644); err != nil {
		t.Fatal(err)
	}
	soc, err := socs.Open(socFile)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := soc.Digest()
	if err != nil {
		t.Fatal(err)
	}
	m, err := models.Open("../../testdata/models/tiny-llama-kjv")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	g := m.Graph()
	p := &planir.Plan{Schema: planir.Schema, Model: planir.ModelRef{Name: m.Name, Digest: "model", BOS: m.BOS, EOS: m.EOS},
		SoC:        planir.SoCRef{Name: soc.Name, Digest: digest, Control: "cpu"},
		MaxContext: 128, KV: op.F32, Procs: []planir.Proc{check.Proc(&soc.Processors[0])}}
	if p.Decisions, err = lower.Trivial(&g, "cpu", []int{64, 1}, p.MaxContext, p.KV, func(node string, _ int) op.Scheme {
		return op.A8TQ8C
	}); err != nil {
		t.Fatal(err)
	}
	for i := range p.Decisions {
		p.Decisions[i].PredictNS = 100_000
		p.Decisions[i].Shares[0].PredictNS = 100_000
	}
	if err := lower.Lower(p, &g); err != nil {
		t.Fatal(err)
	}
	text, err := plantext.Encode(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(planFile, text, 0o644); err != nil {
		t.Fatal(err)
	}
	explain := func(args ...string) string {
		var out, errs bytes.Buffer
		if code := run(append([]string{"explain", planFile}, args...), strings.NewReader(""), &out, &errs); code != 0 {
			t.Fatalf("explain %v: exit code %d\n%s", args, code, errs.String())
		}
		return out.String()
	}
	// 2*64*256*768 operations at 1000 a nanosecond are 25.2 us; the weight's 199 KB are read in 19.9.
	all := explain("--soc", socFile)
	for _, want := range []string{
		`layers.ffn_down@64 single a8t/q8c cpu 100.0 - 25 % of int8 peak`,
		`layers.ffn_down@1 single a8t/q8c cpu 100.0 - 20 % of stream bandwidth`,
		`layers.attn_norm@64 single cpu 100.0 - -`,
		// The time is that of the prompts' mean context, the graph has the whole cache.
		`layers.attention@64 single cpu 100.0 - -`,
	} {
		if !strings.Contains(words(all), want) {
			t.Errorf("explain --soc lacks %q:\n%s", want, all)
		}
	}
	const one = `layers.ffn_down@64 on round, predicted
the plan stores these alternatives, the best of each strategy; with --soc, --costs and --model every choice is priced again
 strategy  shares     us  source               roof         
────────────────────────────────────────────────────────────
 single    cpu     100.0  -          25 % of int8 peak  chosen
`
	if got := explain("layers.ffn_down@64", "--soc", socFile); words(got) != words(one) {
		t.Errorf("got\n%swant\n%s", got, one)
	}
	// Six layers of 2*64*786432 operations in 400 us, and the head's product of one row in 100.
	if want, got := "arithmetic, 242 Gop/s in matrix products: ", explain("prefill@64"); !strings.Contains(got, want) {
		t.Errorf("explain prefill@64 lacks %q:\n%s", want, got)
	}
	if got := explain(); strings.Contains(got, "roof") {
		t.Errorf("a roof without a SoC:\n%s", got)
	}

	// Faster than the probed peak.
	for i := range p.Decisions {
		p.Decisions[i].PredictNS, p.Decisions[i].Shares[0].PredictNS = 10_000, 10_000
	}
	if text, err = plantext.Encode(p); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(planFile, text, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, got := range []string{explain("--soc", socFile), explain("layers.ffn_down@64", "--soc", socFile)} {
		for _, want := range []string{"above the probed int8 peak", "\nabove the probed: "} {
			if !strings.Contains(got, want) {
				t.Errorf("explain lacks %q:\n%s", want, got)
			}
		}
	}
}

// words is text with every run of blanks as one, so that widths of columns do not matter.
func words(text string) string {
	var lines []string
	for l := range strings.SplitSeq(text, "\n") {
		if !strings.HasPrefix(l, "─") {
			lines = append(lines, strings.Join(strings.Fields(l), " "))
		}
	}
	return strings.Join(lines, "\n")
}
