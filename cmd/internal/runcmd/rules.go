package runcmd

import (
	"slices"

	"github.com/hetc/hetc/internal/diag"
)

// commandLine is what the rules look at: the values of the flags, and which of them were given.
type commandLine struct {
	*options
	given func(flag string) bool
}

// inputs returns how many of the flags that say what to continue were given.
func (l *commandLine) inputs() (n int) {
	for _, flag := range []string{"prompt", "prompt-file", "messages", "prompts", "tokens"} {
		if l.given(flag) {
			n++
		}
	}
	return n
}

// rule is something that a command line must not be.
type rule struct {
	broken  func(l *commandLine) bool
	message string // of the error, a format for values
	hint    string // the way out
	values  func(l *commandLine) []any
}

// rules are checked in this order, and the first that is broken is told.
var rules = slices.Concat(combinations, limits, uses)

// combinations are flags that exclude or need each other.
var combinations = []rule{
	{
		broken:  func(l *commandLine) bool { return l.bench && l.inputs() > 0 },
		message: "--bench makes its own prompt",
		hint:    "use --prompt-len and --gen to set its sizes",
	},
	{
		broken:  func(l *commandLine) bool { return l.bench && (l.check || l.dumpLogits != "") },
		message: "--bench cannot be combined with --check or --dump-logits",
		hint:    "run them separately",
	},
	{
		broken:  func(l *commandLine) bool { return !l.bench && l.inputs() != 1 },
		message: "got %d of --prompt, --prompt-file, --messages, --prompts and --tokens, want one",
		values:  func(l *commandLine) []any { return []any{l.inputs()} },
		hint:    "or --bench",
	},
	{
		broken: func(l *commandLine) bool {
			return l.chat && !l.given("prompt") && !l.given("prompt-file") && !l.given("prompts")
		},
		message: "--chat needs --prompt, --prompt-file or --prompts",
		hint:    "--messages is a conversation already",
	},
	{
		broken:  func(l *commandLine) bool { return l.given("system") && !l.chat },
		message: "--system needs --chat",
		hint:    "a conversation of --messages has its own system message",
	},
	{
		broken:  func(l *commandLine) bool { return l.dumpLogits != "" && l.check },
		message: "--dump-logits cannot be combined with --check",
		hint:    "run them separately",
	},
	{
		broken: func(l *commandLine) bool {
			return l.prompts != "" && (l.check || l.dumpLogits != "" || l.stats || l.maxTokens == 0)
		},
		message: "--prompts cannot be combined with --check, --dump-logits, --stats or --max-tokens 0",
		hint:    "give one prompt with --prompt",
	},
}

// limits are the least values of flags.
var limits = []rule{
	{
		broken:  func(l *commandLine) bool { return l.deadline <= 0 },
		message: "--deadline %v: want more than 0",
		values:  func(l *commandLine) []any { return []any{l.deadline} },
		hint:    "give a time such as 30s or 2m",
	},
	atLeast("max-tokens", 0, func(l *commandLine) int { return l.maxTokens }),
	atLeast("prompt-len", 1, func(l *commandLine) int { return l.promptLen }),
	atLeast("gen", 0, func(l *commandLine) int { return l.gen }),
	atLeast("rounds", 1, func(l *commandLine) int { return l.rounds }),
}

// uses are flags that would change nothing, so that the user must have misunderstood them.
var uses = slices.Concat(
	forBench("prompt-len", "gen", "rounds"),
	[]rule{{
		broken: func(l *commandLine) bool {
			return l.stats && (l.bench || l.dumpLogits != "" || l.check || l.maxTokens == 0)
		},
		message: "--stats cannot be combined with --bench, --check, --dump-logits or --max-tokens 0",
		hint:    "leave them out, and generate at least one token",
	}},
	forGenerating("max-tokens", "temperature", "top-k", "top-p", "seed"),
	forSampling("top-k", "top-p"), // a seed keeps its promise: same seed, same text
)

// atLeast returns the rule that a flag is not below a value.
func atLeast(flag string, least int, value func(*commandLine) int) rule {
	return rule{
		broken:  func(l *commandLine) bool { return value(l) < least },
		message: "--%s %d: want at least %d",
		values:  func(l *commandLine) []any { return []any{flag, value(l), least} },
	}
}

// forBench returns the rules that flags come with --bench only.
func forBench(flags ...string) (out []rule) {
	for _, flag := range flags {
		out = append(out, rule{
			broken:  func(l *commandLine) bool { return l.given(flag) && !l.bench },
			message: "--%s needs --bench",
			values:  func(*commandLine) []any { return []any{flag} },
			hint:    "add --bench, or leave it out",
		})
	}
	return out
}

// forGenerating returns the rules that flags come without what does not generate.
func forGenerating(flags ...string) (out []rule) {
	for _, flag := range flags {
		out = append(out, rule{
			broken:  func(l *commandLine) bool { return l.given(flag) && (l.bench || l.dumpLogits != "") },
			message: "--%s cannot be combined with --bench or --dump-logits: they generate no text",
			values:  func(*commandLine) []any { return []any{flag} },
			hint:    "leave it out, or run them separately",
		})
	}
	return out
}

// forSampling returns the rules that flags come with a temperature, without which the likeliest token is taken. A
// temperature of 0 that is given may be a script's.
func forSampling(flags ...string) (out []rule) {
	for _, flag := range flags {
		out = append(out, rule{
			broken: func(l *commandLine) bool {
				return l.given(flag) && l.sampler.Temperature == 0 && !l.given("temperature")
			},
			message: "--%s needs --temperature: without it the likeliest token is taken, and none is drawn",
			values:  func(*commandLine) []any { return []any{flag} },
			hint:    "add --temperature 0.8 or another one, or leave it out",
		})
	}
	return out
}

// validate returns the first rule that the flags break, an error of class ClassUsage.
func (o *options) validate(changed func(string) bool) error {
	// The table is tried in order, so that the message for a command line with several mistakes does not change.
	l := &commandLine{o, changed}
	for i := range rules {
		r := &rules[i]
		if !r.broken(l) {
			continue
		}
		var values []any
		if r.values != nil {
			values = r.values(l)
		}
		broken := diag.New(diag.ClassUsage, r.message, values...)
		if r.hint != "" {
			broken = broken.WithHint("%s", r.hint)
		}
		return broken
	}
	if err := o.terms.Validate(); err != nil {
		return err
	}
	return o.sampler.Validate()
}
