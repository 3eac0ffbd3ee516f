package workload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"math"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
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
	Share  float64 `json:"share" yaml:"share"`                       // relative frequency; shares need not add up to 1
	Output float64 `json:"output,omitempty" yaml:"output,omitempty"` // mean length of an answer to it in tokens, 0: not said
}

// UnmarshalNode reads "{tokens: 256, share: 0.3}" or a plain length, which has share 1.
func (p *Prompt) UnmarshalNode(n *decode.Node) error {
	if n.IsMapping() {
		type plain Prompt
		q := plain{Share: 1}
		if err := n.Decode(&q); err != nil {
			return err
		}
		*p = Prompt(q)
		return nil
	}
	p.Share = 1
	return n.Decode(&p.Tokens)
}

// LogNormal are lengths whose logarithm is normally distributed, cut off at Max.
type LogNormal struct {
	Median float64 `json:"median" yaml:"median" decode:"required"` // tokens
	Sigma  float64 `json:"sigma" yaml:"sigma" decode:"required"`   // standard deviation of the logarithm
	Max    int     `json:"max" yaml:"max" decode:"required"`       // tokens
}

// UnmarshalNode reads a list, or a mapping that names a source.
func (p *Prompts) UnmarshalNode(n *decode.Node) error {
	if !n.IsMapping() {
		type plain []Prompt
		return n.Decode((*plain)(p))
	}
	var source struct {
		Trace     string     `yaml:"trace"`
		Named     string     `yaml:"named"`
		LogNormal *LogNormal `yaml:"lognormal"`
	}
	if err := n.Decode(&source); err != nil {
		return err
	}
	given := 0
	for _, x := range []bool{source.Trace != "", source.Named != "", source.LogNormal != nil} {
		if x {
			given++
		}
	}
	if given != 1 {
		return n.Errorf("prompts come from %d sources, want one of trace, named and lognormal (or a list of lengths)", given)
	}
	var err error
	switch {
	case source.Trace != "":
		path := filepath.FromSlash(source.Trace)
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(n.File()), path)
		}
		*p, err = ReadTrace(path)
	case source.Named != "":
		*p, err = NamedPrompts(source.Named)
	default:
		*p, err = source.LogNormal.Prompts()
	}
	if err != nil {
		return n.Errorf("prompts: %w", err).WithHint("%s", strings.Join(diag.HintsOf(err), "; "))
	}
	return nil
}

// Limits of a trace.
const (
	maxTraceBytes = 256 << 20
	maxTraceLine  = 1 << 16
)

// ReadTrace reads prompt lengths from a file with one request per line: "PROMPT" or "PROMPT OUTPUT" in tokens (a comma
// between them may be), or a JSON object {"prompt": 120, "output": 40} each. Empty lines and lines that begin with # are
// skipped. Errors are of class ClassInput and name the line.
func ReadTrace(path string) (Prompts, error) {
	data, err := wholefile.Read(path, maxTraceBytes)
	if err != nil {
		return nil, diag.New(diag.ClassInput, "read trace %q: %w", path, err)
	}
	return ParseTrace(path, data)
}

// ParseTrace is ReadTrace of bytes; name is shown in errors.
func ParseTrace(name string, data []byte) (Prompts, error) {
	type sums struct{ count, answers, output float64 }
	lengths := map[int]*sums{}
	in := bufio.NewScanner(bytes.NewReader(data))
	in.Buffer(nil, maxTraceLine)
	number := 0
	for in.Scan() {
		number++
		fail := func(format string, args ...any) error {
			return diag.New(diag.ClassInput, format, args...).WithCode("workload.trace").At("%s:%d", name, number).
				WithHint(`want a line such as 120, 120 40 or {"prompt": 120, "output": 40}: tokens of the prompt and of the answer`)
		}
		text := strings.TrimSpace(in.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		var prompt, output int
		answered := false
		if text[0] == '{' {
			var x struct {
				Prompt *int `json:"prompt"`
				Output *int `json:"output"`
			}
			if err := json.Unmarshal([]byte(text), &x); err != nil {
				return nil, fail("request is no JSON object of numbers: %v", err)
			}
			if x.Prompt == nil {
				return nil, fail(`request has no "prompt"`)
			}
			if prompt = *x.Prompt; x.Output != nil {
				output, answered = *x.Output, true
			}
		} else {
			fields := strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == '\t' || r == ',' })
			if len(fields) < 1 || len(fields) > 2 {
				return nil, fail("request has %d values, want 1 or 2", len(fields))
			}
			for i, f := range fields {
				x, err := strconv.Atoi(f)
				if err != nil {
					return nil, fail("%q is no number of tokens", f)
				}
				if i == 0 {
					prompt = x
				} else {
					output, answered = x, true
				}
			}
		}
		if prompt < 1 || prompt > maxLength || output < 0 || output > maxLength {
			return nil, fail("request of %d tokens with an answer of %d, want 1..%d and 0..%d", prompt, output, maxLength, maxLength)
		}
		s := lengths[prompt]
		if s == nil {
			if len(lengths) == maxPrompts {
				return nil, fail("more than %d different lengths", maxPrompts)
			}
			s = &sums{}
			lengths[prompt] = s
		}
		s.count++
		if answered {
			s.answers, s.output = s.answers+1, s.output+float64(output)
		}
	}
	if err := in.Err(); err != nil {
		return nil, diag.New(diag.ClassInput, "read trace %q after line %d: %w", name, number, err).WithCode("workload.trace")
	}
	if len(lengths) == 0 {
		return nil, diag.New(diag.ClassInput, "trace %q has no request", name).WithCode("workload.trace").WithHint("write one length in tokens per line")
	}
	var out Prompts
	for tokens, s := range lengths {
		p := Prompt{Tokens: tokens, Share: s.count}
		if s.answers > 0 {
			p.Output = s.output / s.answers
		}
		out = append(out, p)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Tokens < out[j].Tokens })
	return out, nil
}

// Prompts is the distribution as a histogram of every length from 1 to Max: each has the probability between half a token less and
// half a token more. Shares are rounded to parts in a thousand million of all, so that they do not depend on the machine; lengths with
// less than half a part are left out.
func (l *LogNormal) Prompts() (Prompts, error) {
	if !(l.Median >= 1 && l.Median <= maxLength) || !(l.Sigma > 0 && l.Sigma <= 10) || l.Max < 1 || l.Max > maxPrompts {
		return nil, diag.New(diag.ClassInput, "log-normal lengths with median %v, sigma %v and max %d: want 1..%d, more than 0 (at most 10), and 1..%d", l.Median, l.Sigma, l.Max, maxLength, maxPrompts)
	}
	below := func(x float64) float64 {
		return math.Erfc((math.Log(l.Median)-math.Log(x))/(l.Sigma*math.Sqrt2)) / 2
	}
	first, all := below(0.5), below(float64(l.Max)+0.5)
	var out Prompts
	for n, from := 1, first; n <= l.Max; n++ {
		to := below(float64(n) + 0.5)
		if share := math.Round((to - from) / (all - first) * 1e9); share > 0 {
			out = append(out, Prompt{Tokens: n, Share: share})
		}
		from = to
	}
	if len(out) == 0 {
		return nil, diag.New(diag.ClassInput, "log-normal lengths with median %v and sigma %v: none is at most %d tokens", l.Median, l.Sigma, l.Max)
	}
	return out, nil
}

// named are the prompts of the papers, with where they stand. Ranges are printed without a distribution: every length in
// them counts the same here.
var named = []struct {
	name, source string
	parts        []lengthRange
}{
	{"heteroinfer", "HeteroInfer Table 4: the three below, equally often", []lengthRange{{54, 54, 374}, {296, 296, 340}, {1787, 1787, 5}}},
	{"heteroinfer-dialogue", "HeteroInfer Table 4: BELLE multi-turn dialogue, means", []lengthRange{{54, 54, 374}}},
	{"heteroinfer-qa", "HeteroInfer Table 4: GSM8K, means", []lengthRange{{296, 296, 340}}},
	{"heteroinfer-long", "HeteroInfer Table 4: LongBench TriviaQA, means", []lengthRange{{1787, 1787, 5}}},
	{"heteroinfer-dynamic", "HeteroInfer sec. 5.3.2: the lengths named in the text", []lengthRange{{135, 135, 0}, {525, 525, 0}, {1000, 1000, 0}}},
	{"llmnpu", "llm.npu sec. 2.1: the three below, equally often", []lengthRange{{505, 827, 3.5}, {1168, 1835, 7.9}, {488, 584, 44}}},
	{"llmnpu-ui", "llm.npu sec. 2.1: UI automation by an agent (DroidTask)", []lengthRange{{505, 827, 3.5}}},
	{"llmnpu-email", "llm.npu sec. 2.1: replying to mail (LongBench)", []lengthRange{{1168, 1835, 7.9}}},
	{"llmnpu-chat", "llm.npu sec. 2.1: summary of a chat (Persona-Chat)", []lengthRange{{488, 584, 44}}},
	{"npumoe", "NPUMoE sec. 5.1, 5.3 to 5.5: the lengths named in the text", []lengthRange{{1024, 1024, 8}, {4096, 4096, 8}}},
}

// lengthRange is evenly spread lengths with the mean length of the answers.
type lengthRange struct {
	from, to int
	output   float64
}

// NamedPrompts are the prompts of a paper: "llmnpu-ui".
func NamedPrompts(name string) (Prompts, error) {
	var names []string
	for _, x := range named {
		names = append(names, x.name)
		if x.name != name {
			continue
		}
		type sums struct{ share, output float64 }
		lengths := map[int]sums{}
		for _, r := range x.parts {
			n := float64(r.to - r.from + 1)
			for t := r.from; t <= r.to; t++ {
				s := lengths[t]
				lengths[t] = sums{s.share + 1/n, s.output + r.output/n}
			}
		}
		var out Prompts
		for t, s := range lengths {
			out = append(out, Prompt{Tokens: t, Share: s.share, Output: s.output / s.share})
		}
		sort.Slice(out, func(i, j int) bool { return out[i].Tokens < out[j].Tokens })
		return out, nil
	}
	return nil, diag.New(diag.ClassInput, "no workload is named %q", name).WithHint("%s", diag.DidYouMean(name, names))
}

// answer is the mean length of an answer by the prompts, 0 where none says.
func (p Prompts) answer() float64 {
	total, sum := 0.0, 0.0
	for _, x := range p {
		if x.Output > 0 {
			total, sum = total+x.Share, sum+float64(x.Share*x.Output)
		}
	}
	if total == 0 {
		return 0
	}
	return sum / total
}
