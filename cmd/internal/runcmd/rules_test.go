package runcmd

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/diag"
)

// Each command line breaks one rule, and the error names what is wrong.
func TestRules(t *testing.T) {
	for _, tt := range []struct {
		name   string
		given  string // flags on the command line
		change func(*options)
		want   string
	}{
		{"nothing to do", "", func(*options) {}, "got 0 of --prompt"},
		{"two inputs", "prompt tokens", func(o *options) { o.prompt, o.tokens = "a", "1" }, "got 2 of --prompt"},
		{"a prompt for a benchmark", "prompt", func(o *options) { o.bench, o.prompt = true, "a" },
			"--bench makes its own prompt"},
		{"a benchmark that checks", "", func(o *options) { o.bench, o.check = true, true },
			"--bench cannot be combined"},
		{"a chat without a message", "tokens", func(o *options) { o.chat, o.tokens = true, "1" },
			"--chat needs --prompt"},
		{"no time", "prompt", func(o *options) { o.prompt, o.deadline = "a", 0 },
			"--deadline 0s: want more than 0"},
		{"no rounds", "prompt", func(o *options) { o.prompt, o.rounds = "a", 0 }, "--rounds 0: want at least 1"},
		{"rounds of nothing", "prompt rounds", func(o *options) { o.prompt = "a" }, "--rounds needs --bench"},
		{"a seed of a benchmark", "seed", func(o *options) { o.bench = true }, "--seed cannot be combined with --bench"},
		{"a draw without a temperature", "prompt top-p", func(o *options) { o.prompt, o.sampler.TopP = "a", 0.9 },
			"--top-p needs --temperature"},
		{"figures of a check", "prompt", func(o *options) { o.prompt, o.stats, o.check = "a", true, true },
			"--stats cannot be combined with --bench"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := &options{maxTokens: 64, promptLen: 256, gen: 32, rounds: 5, deadline: time.Minute}
			tt.change(o)
			err := o.validate(func(flag string) bool { return slices.Contains(strings.Fields(tt.given), flag) })
			if diag.ClassOf(err) != diag.ClassUsage || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

// A script that always gives a temperature may give 0, whatever else it gives. With a seed, the same text comes without
// any.
func TestNothingIsDrawn(t *testing.T) {
	for _, given := range [][]string{{"prompt", "top-p", "temperature"}, {"prompt", "seed"}} {
		o := &options{maxTokens: 64, promptLen: 256, gen: 32, rounds: 5, deadline: time.Minute, prompt: "a"}
		o.sampler.TopP, o.sampler.Seed = 0.9, 7
		if err := o.validate(func(flag string) bool { return slices.Contains(given, flag) }); err != nil {
			t.Errorf("%v: %v", given, err)
		}
	}
}
