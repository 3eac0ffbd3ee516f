package workload

import (
	"math"
	"path/filepath"
	"sort"
	"strings"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
)

// Prompts is a distribution of prompt lengths. A file gives it as a list, or as one of
//
//	{trace: requests.jsonl}                        one request per line, the path relative to the file
//	{named: heteroinfer}                           what a paper measured with
//	{lognormal: {median: 200, sigma: 0.8, max: 2048}}
//
// and these are lists as soon as they are read: the digest of a workload covers what its trace says, not its name.
type Prompts []Prompt

// Prompt is one length of a histogram.
type Prompt struct {
	Tokens int     `json:"tokens" yaml:"tokens"`
	Share  float64 `json:"share" yaml:"share"` // relative frequency; shares need not add up to 1
	// Output is the mean length of an answer to it in tokens; 0: not known.
	Output float64 `json:"output,omitempty" yaml:"output,omitempty"`
}

// UnmarshalNode reads "{tokens: 256, share: 0.3}" or a plain length, which has share 1.
func (p *Prompt) UnmarshalNode(node *decode.Node) error {
	if node.IsMapping() {
		type plain Prompt
		q := plain{Share: 1}
		if err := node.Decode(&q); err != nil {
			return err
		}
		*p = Prompt(q)
		return nil
	}
	p.Share = 1
	return node.Decode(&p.Tokens)
}

// LogNormal are lengths whose logarithm is normally distributed, cut off at Max.
type LogNormal struct {
	Median float64 `json:"median" yaml:"median" decode:"required"` // tokens
	Sigma  float64 `json:"sigma" yaml:"sigma" decode:"required"`   // standard deviation of the logarithm
	Max    int     `json:"max" yaml:"max" decode:"required"`       // tokens
}

// UnmarshalNode reads a list, or a mapping that names a source.
func (p *Prompts) UnmarshalNode(node *decode.Node) error {
	if !node.IsMapping() {
		type plain []Prompt
		return node.Decode((*plain)(p))
	}
	var source struct {
		Trace     string     `yaml:"trace"`
		Named     string     `yaml:"named"`
		LogNormal *LogNormal `yaml:"lognormal"`
	}
	if err := node.Decode(&source); err != nil {
		return err
	}
	given := 0
	for _, x := range []bool{source.Trace != "", source.Named != "", source.LogNormal != nil} {
		if x {
			given++
		}
	}
	if given != 1 {
		return node.Errorf("prompts come from %d sources, want one of trace, named and lognormal "+
			"(or a list of lengths)",
			given)
	}
	var err error
	switch {
	case source.Trace != "":
		path := filepath.FromSlash(source.Trace)
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(node.File()), path)
		}
		*p, err = readTrace(path)
	case source.Named != "":
		*p, err = NamedPrompts(source.Named)
	default:
		*p, err = source.LogNormal.Prompts()
	}
	if err != nil {
		return node.Errorf("prompts: %w", err).WithHint("%s", strings.Join(diag.HintsOf(err), "; "))
	}
	return nil
}

// Prompts returns the distribution as a histogram of every length from 1 to Max: each has the probability between half
// a token less and half a token more. Shares are rounded to parts in a thousand million of all, so that they do not
// depend on the machine; lengths with less than half a part are left out.
func (l *LogNormal) Prompts() (Prompts, error) {
	if !within(l.Median, 1, maxLength) || !within(l.Sigma, 0, 10) || l.Sigma == 0 || !within(l.Max, 1, maxPrompts) {
		return nil, diag.New(diag.ClassInput,
			"log-normal lengths with median %v, sigma %v and max %d: want 1..%d, more than 0 (at most 10), and 1..%d",
			l.Median, l.Sigma, l.Max, maxLength, maxPrompts)
	}
	below := func(x float64) float64 {
		return math.Erfc((math.Log(l.Median)-math.Log(x))/(l.Sigma*math.Sqrt2)) / 2
	}
	first, all := below(0.5), below(float64(l.Max)+0.5)
	var out Prompts
	from := first
	for tokens := 1; tokens <= l.Max; tokens++ {
		to := below(float64(tokens) + 0.5)
		if share := math.Round((to - from) / (all - first) * 1e9); share > 0 {
			out = append(out, Prompt{Tokens: tokens, Share: share})
		}
		from = to
	}
	if len(out) == 0 {
		return nil, diag.New(diag.ClassInput,
			"log-normal lengths with median %v and sigma %v: none is at most %d tokens", l.Median, l.Sigma, l.Max)
	}
	return out, nil
}

// named are the prompts of the papers, with where they stand. The papers print ranges without a distribution; here
// every length of a range counts the same.
var named = []struct {
	name, source string
	parts        []lengthRange
}{
	{"heteroinfer", "HeteroInfer Table 4: the three below, equally often",
		[]lengthRange{{54, 54, 374}, {296, 296, 340}, {1787, 1787, 5}}},
	{"heteroinfer-dialogue", "HeteroInfer Table 4: BELLE multi-turn dialogue, means", []lengthRange{{54, 54, 374}}},
	{"heteroinfer-qa", "HeteroInfer Table 4: GSM8K, means", []lengthRange{{296, 296, 340}}},
	{"heteroinfer-long", "HeteroInfer Table 4: LongBench TriviaQA, means", []lengthRange{{1787, 1787, 5}}},
	{"heteroinfer-dynamic", "HeteroInfer sec. 5.3.2: the lengths named in the text",
		[]lengthRange{{135, 135, 0}, {525, 525, 0}, {1000, 1000, 0}}},
	{"llmnpu", "llm.npu sec. 2.1: the three below, equally often",
		[]lengthRange{{505, 827, 3.5}, {1168, 1835, 7.9}, {488, 584, 44}}},
	{"llmnpu-ui", "llm.npu sec. 2.1: UI automation by an agent (DroidTask)", []lengthRange{{505, 827, 3.5}}},
	{"llmnpu-email", "llm.npu sec. 2.1: replying to mail (LongBench)", []lengthRange{{1168, 1835, 7.9}}},
	{"llmnpu-chat", "llm.npu sec. 2.1: summary of a chat (Persona-Chat)", []lengthRange{{488, 584, 44}}},
	{"npumoe", "NPUMoE sec. 5.1, 5.3 to 5.5: the lengths named in the text",
		[]lengthRange{{1024, 1024, 8}, {4096, 4096, 8}}},
}

// lengthRange is evenly spread lengths with the mean length of the answers.
type lengthRange struct {
	from, to int
	output   float64
}

// NamedPrompts returns the prompts of a paper: "llmnpu-ui".
func NamedPrompts(name string) (Prompts, error) {
	var names []string
	for _, source := range named {
		names = append(names, source.name)
		if source.name != name {
			continue
		}
		type sums struct{ share, output float64 }
		lengths := map[int]sums{}
		for _, part := range source.parts {
			count := float64(part.to - part.from + 1)
			for tokens := part.from; tokens <= part.to; tokens++ {
				sum := lengths[tokens]
				lengths[tokens] = sums{sum.share + 1/count, sum.output + part.output/count}
			}
		}
		var out Prompts
		for tokens, sum := range lengths {
			out = append(out, Prompt{Tokens: tokens, Share: sum.share, Output: sum.output / sum.share})
		}
		sort.Slice(out, func(i, j int) bool { return out[i].Tokens < out[j].Tokens })
		return out, nil
	}
	return nil, diag.New(diag.ClassInput, "no workload is named %q", name).WithHint("%s", diag.DidYouMean(name, names))
}

// answer returns the mean length of an answer by the prompts, 0 where none says.
func (p Prompts) answer() float64 {
	total, sum := 0.0, 0.0
	for _, prompt := range p {
		if prompt.Output > 0 {
			total, sum = total+prompt.Share, sum+float64(prompt.Share*prompt.Output)
		}
	}
	if total == 0 {
		return 0
	}
	return sum / total
}
