package bench

import (
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/engines"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/internal/wholefile"
)

// EnginesOptions are the flags of hetc bench engines.
type EnginesOptions struct {
	Models  []string
	Formats []string // of llama.cpp
	Peers   []string // keys of the engines to compare with, all of which must be there; none: all that are installed

	Prompts []int // lengths, tokens
	Depths  []int // tokens in the cache before decoding
	Gen     int   // tokens to decode
	Cores   []int // that all engines are bound to

	Rounds, Reps int     // processes for each engine and task, and repetitions in each process
	Seed         uint64  // of the order of processes
	MaxOthers    float64 // cores that other processes may keep busy meanwhile; 0: that is not checked
	Finalists    float64 // factor to the fastest form within which others go on after the first round; 0: all do

	Workload, Plan, SoC          string
	Memory                       string // bound of a second plan: a size, or the format whose peak memory it is
	Text, QualityModel           string // to measure the quality of the forms
	Work                         string // folder that keeps the files of all steps
	Out, Markdown                string
	Budget, ProfileBudget, Limit string // times

	Given func(flag string) bool // whether the command line has the flag; nil: it has none
}

// validate checks all flags first, because measuring takes an hour.
func (o *EnginesOptions) validate() (*enginesBench, error) {
	bench := &enginesBench{EnginesOptions: o}

	// Later checks rely on lists that are not empty, which checkNumbers makes sure of.
	checks := []func() error{
		o.checkNumbers, o.checkFormats, o.checkPeers, o.checkPrompts, o.checkCores, o.checkCombinations,
		o.checkEffects, bench.readMemory, bench.readTimes, o.checkFiles,
	}
	for _, check := range checks {
		if err := check(); err != nil {
			return nil, err
		}
	}

	self, err := os.Executable()
	if err != nil {
		return nil, diag.New(diag.ClassUnavailable, "bench engines: find the file of this program: %w", err)
	}
	bench.self = self
	return bench, nil
}

// usage returns an error of the command line.
func usage(format string, args ...any) *diag.Diagnostic {
	return diag.New(diag.ClassUsage, format, args...)
}

// checkNumbers refuses numbers out of range, and empty lists.
func (o *EnginesOptions) checkNumbers() error {
	const mostTokens, mostRounds = 1 << 20, 1000
	counts := []struct {
		name      string
		got, most int
	}{{"gen", o.Gen, mostTokens}, {"rounds", o.Rounds, mostRounds}, {"reps", o.Reps, mostRounds}}
	for _, bound := range counts {
		if bound.got < 1 || bound.got > bound.most {
			return usage("--%s %d: want 1 to %d", bound.name, bound.got, bound.most)
		}
	}

	const mostCores = 1 << 16
	if !(o.MaxOthers >= 0 && o.MaxOthers <= mostCores) {
		return usage("--max-others %v: want a number of cores, 0 or more", o.MaxOthers)
	}

	if err := o.checkFinalists(); err != nil {
		return err
	}

	for _, list := range []struct {
		name   string
		tokens []int
	}{{"prompt-len", o.Prompts}, {"depth", o.Depths}} {
		for _, tokens := range list.tokens {
			if tokens < 1 || tokens > mostTokens {
				return usage("--%s %d: want 1 to %d", list.name, tokens, mostTokens)
			}
		}
	}
	return nil
}

// checkFinalists refuses factors by which no form, or every one, would go on, and a choice that comes too late.
func (o *EnginesOptions) checkFinalists() error {
	const most = 1000
	factor := o.Finalists
	switch {
	case factor == 0:
		return nil
	case !(factor >= 1 && factor <= most):
		return usage("--finalists %v: want a factor from 1 to %d, or 0 to measure all forms in all rounds", factor, most).
			WithHint("a form goes on that took at most so many times as long as the fastest one, such as 1.5 times")
	case o.Rounds == 1:
		return usage("--finalists %v needs more than one round: it chooses the forms that go on after the first", factor).
			WithHint("give --rounds 2 or more, or leave --finalists out")
	}
	return nil
}

// checkFormats refuses words that cannot be a format of llama.cpp.
func (o *EnginesOptions) checkFormats() error {
	if err := noRepeats("formats", o.Formats); err != nil {
		return err
	}
	for _, format := range o.Formats {
		if strings.ContainsAny(format, "/\\.- ") || format == "" {
			return usage("--formats %q: not a format of llama.cpp", format).WithHint("such as Q4_0, Q8_0 or Q4_K_M")
		}
	}
	return nil
}

// checkPrompts refuses a length that is listed twice.
func (o *EnginesOptions) checkPrompts() error {
	if err := noRepeats("prompt-len", o.Prompts); err != nil {
		return err
	}
	return noRepeats("depth", o.Depths)
}

// checkCores refuses cores that this process may not use. Without --cores it takes all.
func (o *EnginesOptions) checkCores() error {
	if err := noRepeats("cores", o.Cores); err != nil {
		return err
	}
	usable, err := engines.Cores()
	if err != nil {
		return err
	}

	for _, core := range o.Cores {
		if !slices.Contains(usable, core) {
			return usage("--cores %d: this process may use %v", core, usable).WithHint("name some of those")
		}
	}

	if len(o.Cores) == 0 {
		o.Cores = usable
	}
	return nil
}

// checkCombinations refuses flags that exclude or need each other.
func (o *EnginesOptions) checkCombinations() error {
	switch {
	case o.Plan != "" && o.Workload != "":
		return usage("--plan and --workload exclude each other").WithHint("a plan has been made for a workload")
	case (o.Plan == "") != (o.SoC == ""):
		return usage("--plan and --soc belong together").WithHint("without both a plan is made")
	case o.Plan != "" && len(o.Models) != 1:
		return usage("--plan is for one model, got %d", len(o.Models))
	case o.Plan != "" && o.Memory != "":
		return usage("--max-memory makes a second plan, which --plan cannot").
			WithHint("leave --plan out, or measure the plan of hetc solve --max-memory in a run of its own")
	case o.QualityModel != "" && o.Text == "":
		return usage("--quality-model needs --text")
	}
	return nil
}

// checkEffects refuses flags that change nothing beside the others.
func (o *EnginesOptions) checkEffects() error {
	given := func(flag string) bool { return o.Given != nil && o.Given(flag) }
	switch {
	case given("profile-budget") && o.Plan != "":
		return usage("--profile-budget is the time to measure operators for a plan, and --plan gives one").
			WithHint("leave one of them out")
	case given("formats") && len(o.Peers) > 0 && !slices.Contains(o.Peers, engines.LlamaCppName):
		return usage("--formats are those of llama.cpp, and --peers %s leaves it out", strings.Join(o.Peers, ",")).
			WithHint("leave --formats out, or add llama.cpp to --peers")
	case o.Budget != "" && o.Rounds == 1:
		return usage("--budget bounds the rounds after the first one, and --rounds 1 has none").
			WithHint("leave --budget out, or give more rounds")
	}
	return noRepeats("model", o.Models)
}

// readMemory parses --max-memory: a size, or a format whose peak memory is the bound.
func (b *enginesBench) readMemory() error {
	if b.Memory == "" {
		return nil
	}
	if slices.Contains(b.Formats, b.Memory) {
		b.maxFormat = b.Memory
		return nil
	}
	bytes, err := unit.ParseBytes(b.Memory)
	if err != nil || bytes <= 0 {
		return usage("--max-memory %q: want a size such as 700MiB, or one of the formats %s", b.Memory,
			strings.Join(b.Formats, ", "))
	}
	b.maxBytes = int64(bytes)
	return nil
}

// readTimes reads the flags that bound times.
func (b *enginesBench) readTimes() (err error) {
	for _, limit := range []struct {
		name, text string
		to         *time.Duration
	}{{"budget", b.Budget, &b.match}, {"profile-budget", b.ProfileBudget, &b.profile},
		{"timeout", b.Limit, &b.timeout}} {
		if *limit.to, err = cli.ParseTime(limit.name, limit.text); err != nil {
			return err
		}
	}
	return nil
}

// checkFiles refuses a text that cannot be read and outputs that cannot be written.
func (o *EnginesOptions) checkFiles() error {
	if o.Text != "" {
		file, err := wholefile.Open(o.Text)
		if err != nil {
			return err
		}
		file.Close()
	}

	for _, path := range []string{o.Out, o.Markdown} {
		if path == "" {
			continue
		}
		if err := wholefile.Writable(path); err != nil {
			return err
		}
	}
	return nil
}

// noRepeats refuses a list that names something twice.
func noRepeats[T comparable](flag string, list []T) error {
	seen := map[T]bool{}
	for _, item := range list {
		if seen[item] {
			return usage("--%s names %v twice", flag, item)
		}
		seen[item] = true
	}
	return nil
}
