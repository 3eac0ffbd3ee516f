package traffic

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/runtime/serving"
)

// CallReport is what the program calls of one kind took, beside what the plan predicts of them.
type CallReport struct {
	Kind        string  `json:"kind"` // callKinds
	Size        int     `json:"size"` // rows of the program of a chunk; else sequences, or tokens of the draft
	Calls       int     `json:"calls"`
	MeasuredMS  float64 `json:"measured_ms"` // mean
	PredictedMS float64 `json:"predicted_ms"`
}

// kinds of calls, in the order of the report.
const (
	chunkCall = iota
	lastChunkCall
	decodeCall
	besideCall
	draftCall
	aroundCall
)

var callKinds = [...]string{"chunk", "last chunk", "decode", "decode beside a chunk", "verify a draft", "around calls"}

// callKey is what calls are told apart by.
type callKey struct{ kind, size int }

// callTimes are sums over calls, in ns.
type callTimes struct{ calls, measured, predicted int64 }

// tally adds up what program calls took.
type tally struct {
	plan  *planir.Plan
	times *serving.Times
	sums  map[callKey]callTimes
}

// newTally has no calls.
func newTally(plan *planir.Plan) *tally {
	return &tally{plan, serving.TimesOf(plan), map[callKey]callTimes{}}
}

// add takes notice of a call.
func (t *tally) add(call serving.Call) {
	var key callKey
	var predicted int64
	switch {
	case call.Tokens > 0:
		key = callKey{chunkCall, t.rows(call.Rest)}
		if call.Rest == call.Tokens {
			key.kind = lastChunkCall
		}
		_, predicted = t.times.Chunk(call.Rest)
	case call.Draft > 0:
		key = callKey{draftCall, call.Draft}
		if drafts := t.plan.Drafts; drafts != nil && call.Draft <= len(drafts.VerifyNS) {
			predicted = drafts.VerifyNS[call.Draft-1]
		}
	case call.Beside:
		key = callKey{besideCall, call.Sequences}
		side, _ := t.times.Beside(2, call.Sequences)
		predicted = side.DecodeNS
	default:
		key, predicted = callKey{decodeCall, call.Sequences}, t.times.Decode(call.Sequences)
	}
	sum := t.sums[key]
	t.sums[key] = callTimes{sum.calls + 1, sum.measured + call.NS, sum.predicted + predicted}
}

// rows is the size of the program for the next chunk of so many tokens.
func (t *tally) rows(rest int) int {
	if program := t.times.ChunkProgram(rest); program != nil {
		return program.Rows
	}
	return 0
}

// report are the means by kind and size. busyNS is how long the server worked: what it did around the calls, such as
// asking the scheduler, is a row of its own, which no plan predicts. Chunks beside decoding are not calls of their own,
// so that there is no such row with them.
func (t *tally) report(busyNS int64) (out []CallReport) {
	calls, measured, beside := int64(0), int64(0), false
	for key, sum := range t.sums {
		calls += sum.calls
		measured += sum.measured
		beside = beside || key.kind == besideCall
	}
	sums := maps.Clone(t.sums)
	if calls > 0 && !beside {
		sums[callKey{kind: aroundCall}] = callTimes{calls, max(0, busyNS-measured), 0}
	}
	keys := slices.SortedFunc(maps.Keys(sums), func(a, b callKey) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.size, b.size))
	})
	for _, key := range keys {
		sum := sums[key]
		mean := func(ns int64) float64 { return float64(ns) / float64(sum.calls) / 1e6 }
		out = append(out, CallReport{callKinds[key.kind], key.size, int(sum.calls), mean(sum.measured), mean(sum.predicted)})
	}
	return out
}

// ShowCalls prints what the program calls of measured reports took, all policies together.
func ShowCalls(ui *cli.Streams, reports []*Report) {
	type key struct {
		kind string
		size int
	}
	var order []key
	sums := map[key]CallReport{}
	for _, report := range reports {
		for _, row := range report.Calls {
			at := key{row.Kind, row.Size}
			sum, seen := sums[at]
			if !seen {
				order = append(order, at)
			}
			total := float64(sum.Calls + row.Calls)
			mean := func(old, now float64) float64 { return (old*float64(sum.Calls) + now*float64(row.Calls)) / total }
			sums[at] = CallReport{row.Kind, row.Size, sum.Calls + row.Calls, mean(sum.MeasuredMS, row.MeasuredMS),
				mean(sum.PredictedMS, row.PredictedMS)}
		}
	}
	slices.SortFunc(order, func(a, b key) int {
		rank := func(kind string) int { return slices.Index(callKinds[:], kind) }
		return cmp.Or(cmp.Compare(rank(a.kind), rank(b.kind)), cmp.Compare(a.size, b.size))
	})
	var rows [][]string
	for _, at := range order {
		row := sums[at]
		ratio := "-"
		if row.PredictedMS > 0 {
			ratio = fmt.Sprintf("%.2f", row.MeasuredMS/row.PredictedMS)
		}
		rows = append(rows, []string{row.Kind, fmt.Sprint(row.Size), fmt.Sprint(row.Calls),
			fmt.Sprintf("%.3f", row.MeasuredMS), fmt.Sprintf("%.3f", row.PredictedMS), ratio})
	}
	ui.Table([]string{"program call", ">size", ">calls", ">measured ms", ">predicted ms", ">measured / predicted"}, rows)
}
