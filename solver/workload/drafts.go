package workload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"math"
	"path/filepath"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/strictjson"
	"github.com/hetc/hetc/internal/wholefile"
)

// defaultDraft is the most tokens of a draft where a workload does not say, maxDraft the most that it may say
// (planir.MaxDraft).
const (
	defaultDraft = 8
	maxDraft     = 64
)

// Drafts says how often tokens that are guessed from the text so far are right. A file gives the share, or a trace in
// which hetserve --record has counted it:
//
//	{acceptance: 0.7, max: 8}
//	{trace: requests.jsonl}      the path relative to the file
type Drafts struct {
	// Acceptance is the share of guessed tokens that are right, of those whose predecessors in the draft were.
	Acceptance float64 `json:"acceptance" yaml:"acceptance"`
	// Max is the most tokens to guess at a time.
	Max int `json:"max" yaml:"max"`
}

// UnmarshalNode reads either form.
func (d *Drafts) UnmarshalNode(node *decode.Node) error {
	source := struct {
		Acceptance float64 `yaml:"acceptance"`
		Trace      string  `yaml:"trace"`
		Max        int     `yaml:"max"`
	}{Acceptance: math.NaN(), Max: defaultDraft}
	if err := node.Decode(&source); err != nil {
		return err
	}
	if (source.Trace == "") == math.IsNaN(source.Acceptance) {
		return node.Errorf("want either the acceptance of drafts, or a trace that has counted it").
			WithHint("write drafts: {acceptance: 0.7}, or drafts: {trace: FILE} with a file of hetserve --record")
	}
	d.Acceptance, d.Max = source.Acceptance, source.Max
	if source.Trace == "" {
		return nil
	}
	path := filepath.FromSlash(source.Trace)
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(node.File()), path)
	}
	var err error
	d.Acceptance, err = readAcceptance(path)
	return err
}

// validate checks ranges.
func (d *Drafts) validate(check *checker) {
	if d == nil {
		return
	}
	check.want(d.Acceptance >= 0 && d.Acceptance < 1, "drafts.acceptance", "is %v, want at least 0 and less than 1",
		d.Acceptance)
	check.want(within(d.Max, 1, maxDraft), "drafts.max", "is %d tokens, want 1..%d (leave drafts out for none)",
		d.Max, maxDraft)
}

// readAcceptance returns the share of the guesses in a trace that were right, in whole thousandths and less than 1.
func readAcceptance(path string) (float64, error) {
	data, err := wholefile.Read(path, maxTraceBytes)
	if err != nil {
		return 0, diag.New(diag.ClassInput, "read trace %q: %w", path, err)
	}
	return parseAcceptance(path, data)
}

// parseAcceptance is readAcceptance of bytes; name is shown in errors.
func parseAcceptance(name string, data []byte) (float64, error) {
	in := bufio.NewScanner(bytes.NewReader(data))
	in.Buffer(nil, maxTraceLine)
	var guessed, right float64
	line := 0
	for in.Scan() {
		line++
		text := bytes.TrimSpace(in.Bytes())
		if len(text) == 0 || text[0] != '{' {
			continue // lengths alone
		}
		var counted struct {
			Guessed int `json:"guessed_tokens"`
			Right   int `json:"right_tokens"`
		}
		err := json.Unmarshal(text, &counted)
		if err == nil {
			err = strictjson.OnceEach(text)
		}
		if err == nil && (counted.Right < 0 || counted.Guessed < counted.Right) {
			err = diag.New(diag.ClassInput, "%d of %d guessed tokens are right", counted.Right, counted.Guessed)
		}
		if err != nil {
			return 0, diag.New(diag.ClassInput, "%w", err).WithCode("workload.trace").At("%s:%d", name, line)
		}
		guessed, right = guessed+float64(counted.Guessed), right+float64(counted.Right)
	}
	if err := in.Err(); err != nil {
		return 0, diag.New(diag.ClassInput, "read trace %q after line %d: %w", name, line, err).
			WithCode("workload.trace")
	}
	if guessed == 0 {
		return 0, diag.New(diag.ClassInput, "trace %q counts no guessed tokens", name).WithCode("workload.trace").
			WithHint("give a trace of hetserve --record, or the share: drafts: {acceptance: 0.7}")
	}
	return math.Floor(1000*right/(guessed+1)) / 1000, nil
}
