// Package served knows how the times of program calls in a server stand among its metrics: hetserve shows them, hetc
// bench serving writes them, and hetc simulate reads them.
package served

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/runtime/serving"
)

// labels tell calls apart, as serving.CallKey does.
const (
	kindLabel  = "call"
	sizeLabel  = "size"
	afterLabel = "after"
)

// sums are the metrics of a kind of call.
var sums = []struct {
	name, help string
	unit       float64 // what makes one of the metric's unit
	of         func(times *serving.CallTimes) *int64
}{
	{"hetserve_calls_total", "Program calls.", 1, func(t *serving.CallTimes) *int64 { return &t.Calls }},
	{"hetserve_call_seconds_total",
		"Time of program calls, each from the end of the one before, or from its request's arrival after an idle time.",
		1e9, func(t *serving.CallTimes) *int64 { return &t.ServedNS }},
	{"hetserve_call_executed_seconds_total", "Time of program calls by the executor, which is a part of that.", 1e9,
		func(t *serving.CallTimes) *int64 { return &t.CallNS }},
	{"hetserve_call_planned_seconds_total", "Time of these program calls as the plan predicts it.", 1e9,
		func(t *serving.CallTimes) *int64 { return &t.PlannedNS }},
}

// descs describe sums.
var descs = describe()

func describe() (out []*prometheus.Desc) {
	for _, sum := range sums {
		out = append(out, prometheus.NewDesc(sum.name, sum.help, []string{kindLabel, sizeLabel, afterLabel}, nil))
	}
	return out
}

// Describe lists the metrics.
func Describe(out chan<- *prometheus.Desc) {
	for _, desc := range descs {
		out <- desc
	}
}

// Collect gives the metrics of these calls.
func Collect(times []serving.CallTimes, out chan<- prometheus.Metric) {
	for i := range times {
		of := &times[i]
		for j, sum := range sums {
			out <- prometheus.MustNewConstMetric(descs[j], prometheus.CounterValue, float64(*sum.of(of))/sum.unit,
				of.Kind.String(), strconv.Itoa(of.Size), of.After.String())
		}
	}
}

// collector shows calls that do not change.
type collector []serving.CallTimes

func (c collector) Describe(out chan<- *prometheus.Desc) { Describe(out) }

func (c collector) Collect(out chan<- prometheus.Metric) { Collect(c, out) }

// Write writes a file of these metrics alone.
func Write(path string, times []serving.CallTimes) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector(times))
	families, err := registry.Gather()
	if err != nil {
		return fmt.Errorf("write times of program calls: %w", err)
	}
	var text bytes.Buffer
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&text, family); err != nil {
			return fmt.Errorf("write times of program calls: %w", err)
		}
	}
	return wholefile.Write(path, text.Bytes())
}

// mostBytes of a file with metrics: hetserve's have some kilobytes.
const mostBytes = 1 << 24

// Read reads the times of program calls from a file with the text of a server's metrics, whatever else that holds.
func Read(path string) ([]serving.CallTimes, error) {
	text, err := wholefile.Read(path, mostBytes)
	if err != nil {
		return nil, fmt.Errorf("read times of program calls: %w", err)
	}
	times, err := parse(text)
	if err != nil {
		return nil, diag.New(diag.ClassInput, "times of program calls in %q: %w", path, err).
			WithHint("save /metrics of a hetserve that has answered requests, or what hetc bench serving --write-served writes")
	}
	return times, nil
}

// parse reads the text of metrics.
func parse(text []byte) ([]serving.CallTimes, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	byKey := map[serving.CallKey]*serving.CallTimes{}
	for _, sum := range sums {
		seen := map[serving.CallKey]bool{}
		for _, metric := range families[sum.name].GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			key, err := keyOf(labels)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", sum.name, err)
			}
			value := metric.GetCounter().GetValue() * sum.unit
			if metric.Counter == nil {
				value = metric.GetUntyped().GetValue() * sum.unit
			}
			if !(value >= 0 && value < math.MaxInt64/2) {
				return nil, fmt.Errorf("%s: %v of %v, want a number of at least 0", sum.name, value/sum.unit, labels)
			}
			// Of two servers, or of one at two times, it is not known which one is meant.
			if seen[key] {
				return nil, fmt.Errorf("%s of %v appears twice, want the metrics of one server", sum.name, labels)
			}
			seen[key] = true
			if byKey[key] == nil {
				byKey[key] = &serving.CallTimes{CallKey: key}
			}
			*sum.of(byKey[key]) = int64(math.Round(value))
		}
	}
	var out []serving.CallTimes
	for _, key := range slices.SortedFunc(maps.Keys(byKey), serving.CallKey.Compare) {
		times := byKey[key]
		if times.Calls == 0 || times.ServedNS == 0 {
			return nil, fmt.Errorf("%d calls of %q with %d ns, want at least one call that took time", times.Calls, key.Kind,
				times.ServedNS)
		}
		out = append(out, *times)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("got no %s, want at least one", sums[0].name)
	}
	return out, nil
}

// keyOf reads the labels of a metric.
func keyOf(labels map[string]string) (key serving.CallKey, err error) {
	if key.Kind, err = labelled(labels, kindLabel, serving.CallKind(serving.Kinds)); err != nil {
		return key, err
	}
	if key.Size, err = strconv.Atoi(labels[sizeLabel]); err != nil || key.Size < 0 {
		return key, fmt.Errorf("label %s is %q, want a whole number", sizeLabel, labels[sizeLabel])
	}
	key.After, err = labelled(labels, afterLabel, serving.After(serving.Afters))
	return key, err
}

// labelled is the one of the first count values whose word is the value of a label.
func labelled[T interface {
	~uint8
	fmt.Stringer
}](labels map[string]string, label string, count T) (T, error) {
	var words []string
	for value := range count {
		if value.String() == labels[label] {
			return value, nil
		}
		words = append(words, value.String())
	}
	return 0, fmt.Errorf("label %s is %q, want %s", label, labels[label], diag.OneOf(words))
}
