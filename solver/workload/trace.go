package workload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/strictjson"
	"github.com/hetc/hetc/internal/wholefile"
)

// Limits of a trace.
const (
	maxTraceBytes = 256 << 20
	maxTraceLine  = 1 << 16
)

// readTrace reads prompt lengths from a file with one request per line: "PROMPT" or "PROMPT OUTPUT" in tokens (a
// comma may stand between them), or a JSON object {"prompt": 120, "output": 40} each. Empty lines and lines that
// begin with # are skipped. Errors are of class ClassInput and name the line.
func readTrace(path string) (Prompts, error) {
	data, err := wholefile.Read(path, maxTraceBytes)
	if err != nil {
		return nil, diag.New(diag.ClassInput, "read trace %q: %w", path, err)
	}
	return parseTrace(path, data)
}

// request is one line of a trace, in tokens.
type request struct {
	prompt, output int
	answered       bool // output is given
}

// parseTrace is readTrace of bytes; name is shown in errors.
func parseTrace(name string, data []byte) (Prompts, error) {
	type sums struct{ count, answers, output float64 } // requests, those with an answer, tokens of these
	lengths := map[int]*sums{}
	in := bufio.NewScanner(bytes.NewReader(data))
	in.Buffer(nil, maxTraceLine)
	line := 0
	for in.Scan() {
		line++
		text := strings.TrimSpace(in.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		request, err := parseRequest(text)
		if err == nil && lengths[request.prompt] == nil && len(lengths) == maxPrompts {
			err = fmt.Errorf("more than %d different lengths", maxPrompts)
		}
		if err != nil {
			return nil, diag.New(diag.ClassInput, "%w", err).WithCode("workload.trace").At("%s:%d", name, line).
				WithHint(`want a line such as 120, 120 40 or {"prompt": 120, "output": 40}: tokens of the prompt and of the answer`)
		}
		sum := lengths[request.prompt]
		if sum == nil {
			sum = &sums{}
			lengths[request.prompt] = sum
		}
		sum.count++
		if request.answered {
			sum.answers, sum.output = sum.answers+1, sum.output+float64(request.output)
		}
	}
	if err := in.Err(); err != nil {
		return nil, diag.New(diag.ClassInput, "read trace %q after line %d: %w", name, line, err).
			WithCode("workload.trace")
	}
	if len(lengths) == 0 {
		return nil, diag.New(diag.ClassInput, "trace %q has no request", name).WithCode("workload.trace").
			WithHint("write one length in tokens per line")
	}
	var out Prompts
	for tokens, sum := range lengths {
		prompt := Prompt{Tokens: tokens, Share: sum.count}
		if sum.answers > 0 {
			prompt.Output = sum.output / sum.answers
		}
		out = append(out, prompt)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Tokens < out[j].Tokens })
	return out, nil
}

// parseRequest reads a line that is neither empty nor a comment.
func parseRequest(text string) (r request, err error) {
	if text[0] == '{' {
		r, err = parseObject(text)
	} else {
		r, err = parseNumbers(text)
	}
	if err == nil && (!within(r.prompt, 1, maxLength) || !within(r.output, 0, maxLength)) {
		err = fmt.Errorf("request of %d tokens with an answer of %d, want 1..%d and 0..%d",
			r.prompt, r.output, maxLength, maxLength)
	}
	return r, err
}

// parseObject reads {"prompt": 120, "output": 40}, or a line of hetserve --record, of whose prompt what was cached is
// not processed; other keys are ignored, as traces have more.
func parseObject(text string) (r request, err error) {
	var object struct {
		Prompt *int `json:"prompt"`
		Output *int `json:"output"`
		// of hetserve
		PromptTokens *int `json:"prompt_tokens"`
		CachedTokens int  `json:"cached_tokens"`
		OutputTokens *int `json:"output_tokens"`
	}
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		return r, fmt.Errorf("request is no JSON object of numbers: %v", err)
	}
	if err := strictjson.OnceEach([]byte(text)); err != nil {
		return r, err
	}
	if object.Prompt == nil && object.PromptTokens != nil {
		if !within(object.CachedTokens, 0, maxLength) {
			return r, fmt.Errorf("request with %d cached tokens, want 0..%d", object.CachedTokens, maxLength)
		}
		fresh := *object.PromptTokens - object.CachedTokens
		object.Prompt, object.Output = &fresh, object.OutputTokens
	}
	if object.Prompt == nil {
		return r, errors.New(`request has no "prompt"`)
	}
	r.prompt = *object.Prompt
	if object.Output != nil {
		r.output, r.answered = *object.Output, true
	}
	return r, nil
}

// parseNumbers reads "120" or "120 40".
func parseNumbers(text string) (r request, err error) {
	fields := strings.FieldsFunc(text, func(c rune) bool { return c == ' ' || c == '\t' || c == ',' })
	if !within(len(fields), 1, 2) {
		return r, fmt.Errorf("request has %d values, want 1 or 2", len(fields))
	}
	for i, field := range fields {
		tokens, err := strconv.Atoi(field)
		if err != nil {
			return r, fmt.Errorf("%q is no number of tokens", field)
		}
		if i == 0 {
			r.prompt = tokens
		} else {
			r.output, r.answered = tokens, true
		}
	}
	return r, nil
}
