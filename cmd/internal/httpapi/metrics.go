package httpapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hetc/hetc/cmd/internal/served"
	"github.com/hetc/hetc/runtime/scheduler"
	"github.com/hetc/hetc/runtime/serving"
)

// metrics are what /metrics shows: requests as this package counts them, and the engine's own counts.
type metrics struct {
	responses *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	first     *prometheus.HistogramVec
	token     *prometheus.HistogramVec
	handler   http.Handler
}

// newMetrics registers them in a registry of their own: nothing of the process is shown.
func newMetrics(engine Engine) *metrics {
	m := &metrics{
		responses: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "hetserve_http_responses_total",
			Help: "Responses by path and status; status 0 is a client that left."}, []string{"path", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "hetserve_http_request_seconds",
			Help:    "Time from a request's head to the end of its response.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 10)}, []string{"path"}),
		first: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "hetserve_first_token_seconds",
			Help:    "Time from a request's submission until its first token was there, whenever its client reads it.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 18)}, []string{"class"}),
		token: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "hetserve_token_seconds",
			Help:    "Time from a token of an answer to the next one; next to 0 for tokens of one draft.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 18)}, []string{"class"}),
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.responses, m.duration, m.first, m.token, engineCollector{engine})
	m.handler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	return m
}

// answered counts a response.
func (m *metrics) answered(pattern string, status int, took time.Duration) {
	if pattern == "" {
		pattern = "other"
	}
	m.responses.WithLabelValues(pattern, strconv.Itoa(status)).Inc()
	m.duration.WithLabelValues(pattern).Observe(took.Seconds())
}

// generated counts a token that came after so many ns from the request's submission. before is when the one before it
// came; -1: it is the first.
func (m *metrics) generated(class scheduler.Class, after, before int64) {
	if before < 0 {
		m.first.WithLabelValues(classes[class]).Observe(float64(after) / 1e9)
	} else {
		m.token.WithLabelValues(classes[class]).Observe(float64(after-before) / 1e9)
	}
}

// engineCollector shows an engine's counts as they are when they are asked for.
type engineCollector struct{ engine Engine }

// metric is a count of the engine.
type metric struct {
	desc    *prometheus.Desc
	kind    prometheus.ValueType
	byClass func(m *serving.Metrics) [2]float64
	value   func(m *serving.Metrics) float64 // where byClass is nil
}

// perClass describes a count of each class.
func perClass(name, help string, kind prometheus.ValueType, of func(m *serving.Metrics) [2]float64) metric {
	desc := prometheus.NewDesc("hetserve_"+name, help, []string{"class"}, nil)
	return metric{desc: desc, kind: kind, byClass: of}
}

// total describes a count of everything, divided by what makes one of its unit.
func total(name, help string, unit float64, of func(m *serving.Metrics) int64) metric {
	return metric{desc: prometheus.NewDesc("hetserve_"+name, help, nil, nil), kind: prometheus.CounterValue,
		value: func(m *serving.Metrics) float64 { return float64(of(m)) / unit }}
}

// pair converts counts of both classes.
func pair[N int | int64](counts [2]N) [2]float64 {
	return [2]float64{float64(counts[0]), float64(counts[1])}
}

// engineMetrics are all of them.
var engineMetrics = []metric{
	perClass("requests_waiting", "Requests in the queue.", prometheus.GaugeValue,
		func(m *serving.Metrics) [2]float64 { return pair(m.Waiting) }),
	perClass("requests_running", "Requests that have a slot.", prometheus.GaugeValue,
		func(m *serving.Metrics) [2]float64 { return pair(m.Running) }),
	perClass("requests_total", "Requests that were accepted.", prometheus.CounterValue,
		func(m *serving.Metrics) [2]float64 { return pair(m.Requests) }),
	perClass("requests_refused_total", "Requests that found the queue full.", prometheus.CounterValue,
		func(m *serving.Metrics) [2]float64 { return pair(m.Refused) }),
	perClass("requests_cancelled_total", "Requests that were cancelled.", prometheus.CounterValue,
		func(m *serving.Metrics) [2]float64 { return pair(m.Cancelled) }),
	total("prompt_tokens_total", "Tokens of prompts.", 1, func(m *serving.Metrics) int64 { return m.PromptTokens }),
	total("prompt_tokens_reused_total", "Tokens of prompts that were in the cache.", 1,
		func(m *serving.Metrics) int64 { return m.ReusedTokens }),
	total("generated_tokens_total", "Tokens of answers.", 1,
		func(m *serving.Metrics) int64 { return m.GeneratedTokens }),
	total("draft_tokens_total", "Tokens that were guessed.", 1,
		func(m *serving.Metrics) int64 { return m.DraftTokens }),
	total("draft_tokens_right_total", "Tokens that were guessed rightly.", 1,
		func(m *serving.Metrics) int64 { return m.RightTokens }),
	total("prefill_chunks_total", "Chunks of prompts that were executed.", 1,
		func(m *serving.Metrics) int64 { return m.Chunks }),
	total("decode_iterations_total", "Executions that decoded a token of each of some requests.", 1,
		func(m *serving.Metrics) int64 { return m.Iterations }),
	total("preemptions_total", "Prompts that had to wait, half processed, for another request's.", 1,
		func(m *serving.Metrics) int64 { return m.Preemptions }),
	total("chunks_beside_total", "Chunks that one processor executed while another one decoded.", 1,
		func(m *serving.Metrics) int64 { return m.Beside }),
	total("busy_seconds_total", "Time in program calls.", 1e9, func(m *serving.Metrics) int64 { return m.BusyNS }),
}

// classes are the labels, in the order of scheduler.Class.
var classes = [2]string{scheduler.Proactive: "proactive", scheduler.Reactive: "reactive"}

// Describe lists the metrics.
func (c engineCollector) Describe(out chan<- *prometheus.Desc) {
	for i := range engineMetrics {
		out <- engineMetrics[i].desc
	}
	served.Describe(out)
}

// Collect reads all of them at one time.
func (c engineCollector) Collect(out chan<- prometheus.Metric) {
	now := c.engine.Metrics()
	for i := range engineMetrics {
		m := &engineMetrics[i]
		if m.byClass == nil {
			out <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(&now))
			continue
		}
		for class, count := range m.byClass(&now) {
			out <- prometheus.MustNewConstMetric(m.desc, m.kind, count, classes[class])
		}
	}
	served.Collect(now.Calls, out)
}
