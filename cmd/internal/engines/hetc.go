package engines

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/diag"
)

// Hetc is this engine: a program that runs bundles, and a bundle.
type Hetc struct {
	Program, Bundle, Trust string
	Of                     string // the form's name
	Kernels, Release       string // what it says of itself when it runs
}

// Name is the engine's name in tables.
func (h *Hetc) Name() string { return "hetc" }

// Form is what the measured plan is called.
func (h *Hetc) Form() string { return h.Of }

// Files are the bundle.
func (h *Hetc) Files() []string { return []string{h.Bundle} }

// Command is hetc run --bench. A decoding process prefills as many tokens as are to be in the cache.
func (h *Hetc) Command(task Task, _ int) (string, []string) {
	if task.Start > 0 {
		ids := make([]string, task.Start)
		for i := range ids {
			ids[i] = strconv.Itoa(i)
		}
		return h.Program, []string{"run", h.Bundle, "--trust", h.Trust, "--json", "--tokens", strings.Join(ids, ","),
			"--max-tokens", "1"}
	}
	prompt := task.Prompt
	if prompt == 0 {
		prompt = task.Depth
	}
	return h.Program, []string{"run", h.Bundle, "--trust", h.Trust, "--bench", "--json",
		"--prompt-len", strconv.Itoa(prompt), "--gen", strconv.Itoa(task.Gen), "--rounds", strconv.Itoa(task.Reps)}
}

// Parse reads the JSON of hetc run --bench.
func (h *Hetc) Parse(task Task, _ int, out, _ []byte) (Reading, error) {
	var doc struct {
		Simulated bool      `json:"simulated"`
		Tokens    []int     `json:"prompt_tokens"`
		PrefillUS []float64 `json:"prefill_samples_us"`
		DecodeUS  []float64 `json:"decode_samples_us"` // of one token
		Weights   int64     `json:"weight_bytes_per_token"`
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		return Reading{}, diag.New(diag.ClassRun, "hetc run --bench: %w%s", err, excerpt(out))
	}
	if doc.Simulated {
		return Reading{}, diag.New(diag.ClassInput,
			"the plan is for a simulated SoC: its times cannot be compared with measured ones").
			WithHint("make one for this machine: hetc probe, profile, solve")
	}
	reading := Reading{WeightBytes: doc.Weights, Version: h.Release, Backend: h.Kernels}
	// starts are timed from outside; only the length of the prompt is checked
	if task.Start > 0 {
		if len(doc.Tokens) != task.Start {
			return Reading{}, diag.New(diag.ClassRun, "hetc run: a prompt of %d tokens, want %d", len(doc.Tokens),
				task.Start)
		}
		return reading, nil
	}
	samples, tokens := doc.PrefillUS, 1
	if task.Prompt == 0 {
		samples, tokens = doc.DecodeUS, task.Gen
	}
	if len(samples) != task.Reps {
		return Reading{}, diag.New(diag.ClassRun, "hetc run --bench: got %d samples, want %d", len(samples), task.Reps)
	}
	for i, us := range samples {
		if !(us > 0) {
			return Reading{}, diag.New(diag.ClassRun, "hetc run --bench: sample %d is %g us, want a time", i, us)
		}
		reading.SecondsPerRep = append(reading.SecondsPerRep, us*float64(tokens)/1e6)
	}
	return reading, nil
}
