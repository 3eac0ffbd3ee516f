package executor_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/emit"
	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
)

// longestPrompt is the longest prompt of the tests of chunks in flight, in tokens.
const longestPrompt = 1500

// lengthened is a small model whose configuration permits more positions than it was trained on.
func lengthened(t *testing.T, dir string) *models.Model {
	t.Helper()
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	const key = `"max_position_embeddings": `
	before, after, found := strings.Cut(string(config), key)
	_, after, ended := strings.Cut(after, ",")
	if !found || !ended {
		t.Fatalf("%s: no %s in config.json", dir, key)
	}

	made := t.TempDir()
	text := before + key + "2048," + after
	if err := os.WriteFile(filepath.Join(made, "config.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	weights, err := filepath.Abs(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(weights, filepath.Join(made, "model.safetensors")); err != nil {
		t.Fatal(err)
	}
	return openDir(t, made)
}

// lengthCase is a model whose products have one scheme, placed in one way.
type lengthCase struct {
	name   string
	model  *models.Model
	scheme op.Scheme
	layout layoutOf
}

// lengthCases are all schemes, of a dense model and of one with experts, each with the next of several placements.
func lengthCases(t *testing.T) (out []lengthCase) {
	t.Helper()
	layouts := []struct {
		name string
		of   layoutOf
	}{
		{"role", byRole},
		{"columns", byColumns},
		{"rows", byRows},
		{"pairs", swapped},
		{"one", bySingle},
	}
	for _, from := range []struct{ name, dir string }{{"dense", demo}, {"experts", experts}} {
		model := lengthened(t, from.dir)
		for _, scheme := range op.Schemes {
			if model.Experts > 0 && !scheme.Experts() {
				continue
			}
			layout := layouts[len(out)%len(layouts)]
			if layout.name == "pairs" && scheme.RoundsResults() { // such products have no partial sums
				layout = layouts[0]
			}
			name := fmt.Sprintf("%s %s by %s", from.name, scheme, layout.name)
			out = append(out, lengthCase{name, model, scheme, layout.of})
		}
	}
	return out
}

// plan is the case's plan of one chunk at a time, for up to three sequences, with the calibration that it needs (nil:
// none).
func (c *lengthCase) plan(t *testing.T, first, second string) (*planir.Plan, *calibration.Calibration) {
	t.Helper()
	plan := batchPlan(t, c.model, []int{2, 3}, planSpec{
		procs: pairOn(first, second), rows: []int{1, 32, 128}, context: longestPrompt + 10,
		scheme: c.scheme, layout: c.layout,
	})
	if !c.scheme.Static() {
		return plan, nil
	}
	cal := ranged(t, c.model, first, tokens(rand.New(rand.NewPCG(1, 1)), c.model.Vocab, 60))
	if c.scheme.Scales() > 1 {
		shares := []float32{0.3, 0.6, 0.8, 1}
		cal.Scales = scales(c.model, cal, shares[len(shares)-c.scheme.Scales():]...)
	}
	return folded(t, plan, c.model, cal), cal
}

// cancelled begins a prompt and cancels it after some time, and reports whether that was before its end.
func cancelled(x *executor.Machine, ids []int32, after time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), after)
	defer cancel()
	x.Reset()
	return x.Do(ctx, func(c *executor.Control) error {
		_, err := c.Forward(ids, executor.WantNone, nil)
		return err
	}) != nil
}

// lengthComparison counts what TestInFlightAtLength has compared.
type lengthComparison struct {
	rng       *rand.Rand
	lengths   []int // of the first prompts; others are random
	prompts   int   // compared
	positions int   // compared
	cancelled int   // calls
}

// compare computes a prompt with one chunk at a time and with two in flight, there after a call that is cancelled at a
// random time.
func (l *lengthComparison) compare(t *testing.T, one, two *executor.Machine, vocab int) {
	t.Helper()
	length := 1 + l.rng.IntN(longestPrompt)
	if l.prompts < len(l.lengths) {
		length = l.lengths[l.prompts]
	}
	ids := tokens(l.rng, vocab, length)
	begun := time.Now()
	want := allLogits(t, one, ids)
	took := time.Since(begun)

	if cancelled(two, ids, time.Duration(l.rng.Float64()*float64(took))) {
		l.cancelled++
	}
	if d := maxDiff(allLogits(t, two, ids), want); d != 0 {
		t.Fatalf("prompt of %d tokens: logits differ by %g, want equal bits", length, d)
	}
	l.prompts++
	l.positions += length
}

// Two chunks in flight have the very logits of one after the other, at every position. This holds in all schemes, for
// prompts of 1 to 1,500 tokens, for sequences that are decoded together, and after calls that were cancelled somewhere.
// HETC_LONG=1 compares 200 prompts.
func TestInFlightAtLength(t *testing.T) {
	require.Slow(t)
	first, second := cores(t)
	cases := lengthCases(t)
	prompts := len(cases)
	if os.Getenv("HETC_LONG") != "" {
		prompts = 200
	}
	rng := rand.New(rand.NewPCG(13, 14))
	compared := &lengthComparison{rng: rng, lengths: []int{longestPrompt, 1, 255, 256, 257, 512}}
	for i := range cases {
		t.Run(cases[i].name, func(t *testing.T) {
			c := &cases[i]
			plan, cal := c.plan(t, first, second)
			one := machineWith(t, c.model, plan, cal, executor.Options{})
			defer one.Close()
			var two [2]*executor.Machine // the second chunk begins with the first, and a part of a layer behind
			for at := range two {
				pair := inFlight(t, c.model, plan, 128, at == 1, shuffled(rng))
				two[at] = machineWith(t, c.model, pair, cal, executor.Options{})
				defer two[at].Close()
			}

			count := (prompts + len(cases) - 1 - i) / len(cases)
			for at := range count {
				compared.compare(t, one, two[(i+at)%2], c.model.Vocab)
			}

			var list [][]int32
			for range 3 {
				list = append(list, tokens(rng, c.model.Vocab, 1+rng.IntN(600)))
			}
			same(t, "decoded together", together(t, one, list, 4), together(t, two[i%2], list, 4), 0)

			loaded := slices.Concat(two[0].Loaded(), two[1].Loaded())
			if !slices.Contains(loaded, "prefill@128x2") {
				t.Errorf("loaded %v, want prefill@128x2 of one", loaded)
			}
		})
	}
	t.Logf("%d prompts of %d tokens in all have equal logits, %d calls were cancelled before", compared.prompts,
		compared.positions, compared.cancelled)
	if !t.Failed() && (compared.prompts < prompts || compared.cancelled < compared.prompts/4) {
		t.Errorf("%d of %d prompts were compared, after %d cancelled calls", compared.prompts, prompts,
			compared.cancelled)
	}
}

// killedBundle is, in the process that TestInFlightIsKilled kills, the folder of its bundle.
const killedBundle = "HETC_TEST_KILLED"

// killedPrompts are the prompts that the process answers, one after the other.
func killedPrompts(vocab int) (out [][]int32) {
	rng := rand.New(rand.NewPCG(15, 16))
	for range 6 {
		out = append(out, tokens(rng, vocab, 300+rng.IntN(600)))
	}
	return out
}

// digestOf stands for logits in a line of text.
func digestOf(logits []float32) string {
	hash := sha256.New()
	_ = binary.Write(hash, binary.LittleEndian, logits) // never fails
	return fmt.Sprintf("%x", hash.Sum(nil))
}

// A process that is killed while two chunks are in flight leaves nothing behind: one that opens the same bundle again
// computes the logits of one chunk after the other.
func TestInFlightIsKilled(t *testing.T) {
	if dir := os.Getenv(killedBundle); dir != "" {
		answerUntilKilled(t, dir)
		return
	}
	require.Slow(t)
	m := open(t)
	first, second := cores(t)
	plan := makePlan(t, m, planSpec{
		procs: pairOn(first, second), rows: []int{1, 64}, context: 1000, scheme: op.A8TQ8C,
		layout: byRole,
	})
	one := machine(t, m, plan, executor.Options{})
	var want []string
	for _, prompt := range killedPrompts(m.Vocab) {
		want = append(want, digestOf(allLogits(t, one, prompt)))
	}
	if err := one.Close(); err != nil {
		t.Fatal(err)
	}

	dir := t.TempDir()
	emitBundle(t, dir, m, inFlight(t, m, plan, 64, true, alternating))
	before := listed(t, dir)
	killed := 0
	for run := range 8 {
		last := run == 7 // it may answer everything
		lines := answered(t, dir, func(line int, kill func()) {
			if !last && line == run%len(want) {
				time.Sleep(time.Duration(5*run) * time.Millisecond)
				kill()
			}
		})
		if !slices.Equal(lines, want[:min(len(lines), len(want))]) || last && len(lines) != len(want) {
			t.Fatalf("run %d: %d answers %v, want those of one chunk after the other: %v", run, len(lines), lines, want)
		}
		if len(lines) < len(want) {
			killed++
		}
	}
	if killed < 4 {
		t.Errorf("%d of 7 processes were killed before their last answer, want at least 4", killed)
	}
	if after := listed(t, dir); after != before {
		t.Errorf("files before:\n%s\nafter:\n%s", before, after)
	}
}

// emitBundle writes a bundle and its key to a folder.
func emitBundle(t *testing.T, dir string, m *models.Model, plan *planir.Plan) {
	t.Helper()
	key, err := emit.GenerateKey(bundle.Ed25519, "test", true)
	if err != nil {
		t.Fatal(err)
	}
	if err := key.Save(filepath.Join(dir, "key")); err != nil {
		t.Fatal(err)
	}
	_, err = emit.Emit(context.Background(), filepath.Join(dir, "app.hetb"), emit.Options{
		Plan: plan, Model: m, Compilers: []driver.Compiler{hostcompiler.New()},
		Signers: []bundle.Signer{key.Signer()}, Product: "test", Generation: 1, OS: "any", Arch: "any",
	})
	if err != nil {
		t.Fatal(err)
	}
}

// answered runs this test in another process and returns the answers it printed. before is called with the number of
// answers so far, at the start and after each, and may kill the process.
func answered(t *testing.T, dir string, before func(line int, kill func())) (lines []string) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^TestInFlightIsKilled$")
	child.Env = append(os.Environ(), killedBundle+"="+dir)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}

	kill := func() { _ = child.Process.Kill() } // it may have ended
	scanner := bufio.NewScanner(out)
	before(0, kill)
	for scanner.Scan() {
		if answer, ok := strings.CutPrefix(scanner.Text(), "answer "); ok {
			lines = append(lines, answer)
			before(len(lines), kill)
		}
	}
	if err := scanner.Err(); err != nil {
		t.Error(err)
	}
	_ = child.Wait() // it was killed, or has said why it failed by having too few answers
	return lines
}

// answerUntilKilled opens the bundle of a folder and prints a line for each prompt.
func answerUntilKilled(t *testing.T, dir string) {
	ring, err := bundle.LoadTrust(filepath.Join(dir, "key.pub"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := bundle.Open(filepath.Join(dir, "app.hetb"),
		bundle.Options{Trust: ring, Policy: bundle.Policy{AllowDev: true}, Mode: bundle.Lazy})
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	text, err := file.Bytes(emit.PlanBlob)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := planir.Decode(text)
	if err != nil {
		t.Fatal(err)
	}

	options := executor.Options{Drivers: []driver.Driver{host.New()}}
	x, err := executor.Open(context.Background(), plan, source{file}, options)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for _, prompt := range killedPrompts(2048) {
		fmt.Printf("answer %s\n", digestOf(allLogits(t, x, prompt)))
	}
}

// source is an open bundle as the executor reads it.
type source struct{ *bundle.Bundle }

func (s source) Blob(name string) ([]byte, error) { return s.Bytes(name) }

// listed are the files of a folder with sizes and digests.
func listed(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "%s %d %x\n", entry.Name(), len(data), sha256.Sum256(data))
	}
	return out.String()
}
