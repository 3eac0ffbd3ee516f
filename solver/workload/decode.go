package workload

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
)

// absent is what a whole number has while a file is read that leaves it out; other numbers have NaN. A file that says
// 0 where that means nothing is thereby told from one that says nothing.
const absent = math.MinInt64

// decodeDocument reads a workload, gives what the file leaves out its default, and validates it.
func decodeDocument(doc *decode.Document) (*Workload, error) {
	work := Workload{OutputTokens: absent, Context: absent, Memory: absent}
	for _, number := range work.numbers() {
		*number.value = math.NaN()
	}
	work.Weights = Weights{math.NaN(), math.NaN()}
	if err := doc.Into(Schema, &work); err != nil {
		return nil, err
	}
	// Mistakes of both kinds are reported together, each with the line of its key.
	work.Schema = Schema
	list := work.settle()
	switch err := work.Validate().(type) {
	case nil:
	case *diag.Diagnostic:
		list = append(list, err)
	case diag.List:
		list = append(list, err...)
	default:
		return nil, err
	}
	for _, e := range list {
		e.Path = doc.At(keys(e.Path)...) + ": " + e.Path
	}
	if err := list.Err(); err != nil {
		return nil, err
	}
	return &work, nil
}

// number is a number of the file that is no whole one. Inside hetc 0 means that it was left out.
type number struct {
	path  string
	value *float64
	what  string // it is
	hint  string // what leaving it out means
}

// numbers lists those of which a file cannot mean 0.
func (w *Workload) numbers() (list []number) {
	for _, limit := range []struct {
		path  string
		value *float64
	}{
		{"density", &w.Density},
		{KeyEnergy, &w.Limits.EnergyMJ}, {KeyPrefill, &w.Limits.PrefillMS}, {KeyDecode, &w.Limits.DecodeMS},
		{KeyOpen, &w.Limits.OpenMS}, {"experts.max_drop", &w.Experts.MaxDrop},
	} {
		list = append(list, number{limit.path, limit.value, "limit", "no limit"})
	}
	const left = "those that a limit of quality permits to prune, else none"
	return append(list, number{"shadows.prune", &w.Shadows.Prune, "share", left},
		number{"shadows.slower", &w.Shadows.Slower, "share", left})
}

// settle gives what a file leaves out its zero value, and reports zeros that the file says where they mean nothing.
func (w *Workload) settle() diag.List {
	check := &checker{code: "workload.value"}
	count := func(path string, value int64, what string) int64 {
		check.want(value != 0, path, "%s", what)
		if value == absent {
			return 0
		}
		return value
	}
	w.OutputTokens = int(count("output_tokens", int64(w.OutputTokens),
		"is 0 tokens, want at least 1 (leave it out for the prompts' own; weights: {decode: 0} leaves decode out of "+
			"account)"))
	w.Context = int(count("context", int64(w.Context),
		"is 0 positions, want at least 1 (leave it out for the model's)"))
	w.Memory = unit.Bytes(count(KeyMemory, int64(w.Memory), "bound is 0 bytes, want more (leave it out for no bound)"))
	for _, number := range w.numbers() {
		check.want(*number.value != 0, number.path, "%s is 0, want more (leave it out for %s)", number.what,
			number.hint)
		if math.IsNaN(*number.value) {
			*number.value = 0
		}
	}
	switch prefill, decode := math.IsNaN(w.Weights.Prefill), math.IsNaN(w.Weights.Decode); {
	case prefill && decode:
		w.Weights = Weights{}
	case prefill:
		w.Weights.Prefill = 1
	case decode:
		w.Weights.Decode = 1
	default:
		check.want(w.Weights != Weights{}, "weights",
			"both are 0, want one above 0: nothing would count (leave them out for 1 and 1)")
	}
	return check.list
}

// keys returns the parts of a path such as "prompts[3].share".
func keys(path string) (out []any) {
	for part := range strings.SplitSeq(path, ".") {
		name, rest, _ := strings.Cut(part, "[")
		out = append(out, name)
		if i, err := strconv.Atoi(strings.TrimSuffix(rest, "]")); err == nil {
			out = append(out, i)
		}
	}
	return out
}

// atMost is how AtMost is written.
type atMost struct {
	Max int `json:"max" yaml:"max" decode:"required"`
}

// UnmarshalNode reads "[64, 256]" or "{max: 8}".
func (r *Rows) UnmarshalNode(node *decode.Node) error {
	if !node.IsMapping() {
		type plain []int
		return node.Decode((*plain)(r))
	}
	var limit atMost
	if err := node.Decode(&limit); err != nil {
		return err
	}
	if !within(limit.Max, 1, maxBuckets) {
		return node.Errorf("at most %d are to be chosen, want 1..%d", limit.Max, maxBuckets)
	}
	*r = AtMost(limit.Max)
	return nil
}

// MarshalJSON writes what UnmarshalNode reads.
func (r Rows) MarshalJSON() ([]byte, error) {
	if n := r.Max(); n > 0 {
		return json.Marshal(atMost{n})
	}
	return json.Marshal([]int(r))
}

// MarshalYAML writes what UnmarshalNode reads.
func (r Rows) MarshalYAML() (any, error) {
	if n := r.Max(); n > 0 {
		return atMost{n}, nil
	}
	return []int(r), nil
}

// UnmarshalNode reads "{prefill: 0.001, decode: 0.02}" or a plain number, which limits both phases.
func (k *KLLimit) UnmarshalNode(node *decode.Node) error {
	type plain KLLimit
	read := plain{math.NaN(), math.NaN()}
	if node.IsMapping() {
		if err := node.Decode(&read); err != nil {
			return err
		}
	} else {
		if err := node.Decode(&read.Prefill); err != nil {
			return err
		}
		read.Decode = read.Prefill
	}
	// Inside hetc 0 means no limit; a file that says 0 means that nothing may be lost.
	settled := func(limit float64) float64 {
		switch {
		case math.IsNaN(limit):
			return 0
		case limit == 0:
			return Lossless
		}
		return limit
	}
	*k = KLLimit{settled(read.Prefill), settled(read.Decode)}
	return nil
}
