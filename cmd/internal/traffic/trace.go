// Package traffic knows how a machine fares under many requests: it reads and draws traces of them, plays a trace with
// the scheduler on a virtual clock, by the times that a plan predicts, or on the machine itself, and reports what each
// class of requests got.
package traffic

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/strictjson"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/runtime/scheduler"
)

// Request is a line of a trace: when it arrives, and how much it asks for.
type Request struct {
	AtMS   float64 `json:"at_ms"` // from the beginning of the trace
	Class  string  `json:"class"` // reactive, proactive
	Prompt int     `json:"prompt_tokens"`
	Cached int     `json:"cached_tokens,omitempty"` // of the prompt, from an earlier turn
	Output int     `json:"output_tokens"`
	// what hetserve --record counts for solve, and simulate does not play: tokens that the text so far had a guess for,
	// and rightly
	Guessed int `json:"guessed_tokens,omitempty"`
	Right   int `json:"right_tokens,omitempty"`
}

// fresh returns how many tokens of the prompt are to be processed.
func (r *Request) fresh() int { return r.Prompt - r.Cached }

// class is that of the scheduler.
func (r *Request) class() scheduler.Class {
	if r.Class == scheduler.Reactive.String() {
		return scheduler.Reactive
	}
	return scheduler.Proactive
}

// tooMany bounds what a file may ask for.
const (
	tooMany  = 1_000_000
	mostSize = 1 << 28 // bytes of a file
	mostAtMS = 1e9     // eleven days
)

// Read reads a trace: JSON lines, in any order.
func Read(path string) ([]Request, error) {
	data, err := wholefile.Read(path, mostSize)
	if err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	return parse(path, data)
}

// parse reads the lines of a trace and sorts them by time.
func parse(name string, data []byte) (trace []Request, err error) {
	for number, line := range bytes.Split(data, []byte("\n")) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		request, err := parseLine(line)
		if err != nil {
			return nil, diag.New(diag.ClassInput, "%s:%d: %w", name, number+1, err).
				WithHint(`write {"at_ms": 120, "class": "reactive", "prompt_tokens": 200, "output_tokens": 40}`)
		}
		if trace = append(trace, request); len(trace) > tooMany {
			return nil, diag.New(diag.ClassInput, "%s: more than %d requests", name, tooMany)
		}
	}
	if len(trace) == 0 {
		return nil, diag.New(diag.ClassInput, "%s holds no request", name)
	}
	slices.SortStableFunc(trace, func(a, b Request) int { return cmp.Compare(a.AtMS, b.AtMS) })
	return trace, nil
}

// parseLine reads a line of a trace.
func parseLine(line []byte) (Request, error) {
	var read struct {
		Request
		AtMS *float64 `json:"at_ms"` // nil: the line does not say when, which is not the beginning
	}
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&read); err != nil {
		return Request{}, plainly(err)
	}
	if _, more := decoder.Token(); !errors.Is(more, io.EOF) {
		return Request{}, errors.New("more than one value")
	}
	if err := strictjson.OnceEach(line); err != nil {
		return Request{}, err
	}
	if read.AtMS == nil {
		return Request{}, errors.New("at_ms is missing: when the request arrives")
	}
	read.Request.AtMS = *read.AtMS
	return read.Request, read.Request.validate()
}

// plainly returns an error of encoding/json without names of Go's types.
func plainly(err error) error {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	want := "an object"
	switch wrong.Type.Kind() {
	case reflect.String:
		want = "a text"
	case reflect.Float64:
		want = "a number"
	case reflect.Int:
		want = "a whole number"
	}
	name := wrong.Field[strings.LastIndexByte(wrong.Field, '.')+1:]
	return fmt.Errorf("%s: want %s, got %s", cmp.Or(name, "the line"), want, wrong.Value)
}

// validate refuses what no machine can do.
func (r *Request) validate() error {
	switch {
	case !(r.AtMS >= 0 && r.AtMS <= mostAtMS):
		return fmt.Errorf("at_ms is %v, want 0 to %g", r.AtMS, mostAtMS)
	case r.Class != scheduler.Reactive.String() && r.Class != scheduler.Proactive.String():
		return fmt.Errorf("class is %q, want reactive or proactive", r.Class)
	case r.Prompt < 1 || r.Output < 1:
		return fmt.Errorf("%d tokens of prompt and %d of output, want at least 1", r.Prompt, r.Output)
	case r.Cached < 0 || r.Cached >= r.Prompt:
		return fmt.Errorf("%d of %d tokens of the prompt are cached, want at least 0 and fewer than all", r.Cached, r.Prompt)
	case r.Right < 0 || r.Guessed < r.Right:
		return fmt.Errorf("%d of %d guessed tokens are right, want at least 0 and at most all", r.Right, r.Guessed)
	}
	return nil
}

// Text returns a trace as a file holds it.
func Text(trace []Request) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	for i := range trace {
		if err := encoder.Encode(&trace[i]); err != nil {
			return nil, fmt.Errorf("write trace: %w", err)
		}
	}
	return out.Bytes(), nil
}

// Range is a range of whole numbers, "64:256" or "64".
type Range struct{ Low, High int }

// ParseRange reads the value of a flag.
func ParseRange(flag, text string) (out Range, err error) {
	low, high, ok := strings.Cut(text, ":")
	if !ok {
		high = low
	}
	for at, word := range map[*int]string{&out.Low: low, &out.High: high} {
		if n, e := fmt.Sscanf(word+"\n", "%d\n", at); n != 1 || e != nil {
			err = fmt.Errorf("%q is no number", word)
		}
	}
	if err != nil || out.Low < 1 || out.High < out.Low {
		return out, diag.New(diag.ClassUsage, "--%s %q: want a number of tokens, or a range such as 64:256", flag, text)
	}
	return out, nil
}

// Pattern is what a trace is drawn from: requests of both classes arrive independently, each as a Poisson process, as
// in the evaluation of Agent.xpu (sec. 6.1); lengths are uniform.
type Pattern struct {
	Seconds             float64
	Reactive, Proactive float64 // requests a minute
	Prompt, Output      Range   // tokens
	Seed                uint64
}

// Draw makes a trace. The same pattern gives the same trace.
func (p *Pattern) Draw() ([]Request, error) {
	const mostPerMinute = 1e5
	switch {
	case !(p.Seconds > 0 && p.Seconds*1e3 <= mostAtMS):
		return nil, diag.New(diag.ClassUsage, "a trace of %v s: want more than 0 and at most %g", p.Seconds, mostAtMS/1e3)
	case !(p.Reactive >= 0 && p.Reactive <= mostPerMinute) || !(p.Proactive >= 0 && p.Proactive <= mostPerMinute) ||
		p.Reactive+p.Proactive == 0:
		return nil, diag.New(diag.ClassUsage, "%v reactive and %v proactive requests a minute: want 0 to %g, and not both 0",
			p.Reactive, p.Proactive, mostPerMinute)
	case p.Seconds/60*(p.Reactive+p.Proactive) > tooMany:
		return nil, diag.New(diag.ClassUsage, "a trace of %.0f requests: want at most %d",
			p.Seconds/60*(p.Reactive+p.Proactive), tooMany)
	}
	var trace []Request
	for class, perMinute := range map[scheduler.Class]float64{
		scheduler.Reactive: p.Reactive, scheduler.Proactive: p.Proactive} {
		if perMinute == 0 {
			continue
		}
		random := rand.New(rand.NewPCG(p.Seed, uint64(class)))
		uniform := func(r Range) int { return r.Low + random.IntN(r.High-r.Low+1) }
		for at := random.ExpFloat64(); at*60/perMinute < p.Seconds; at += random.ExpFloat64() {
			trace = append(trace, Request{AtMS: math.Round(at*60e6/perMinute) / 1e3, Class: class.String(),
				Prompt: uniform(p.Prompt), Output: uniform(p.Output)})
		}
	}
	if len(trace) == 0 {
		return nil, diag.New(diag.ClassUsage, "no request arrives within %v s: draw for longer, or more a minute", p.Seconds)
	}
	slices.SortStableFunc(trace, func(a, b Request) int {
		return cmp.Or(cmp.Compare(a.AtMS, b.AtMS), cmp.Compare(a.Class, b.Class))
	})
	return trace, nil
}
