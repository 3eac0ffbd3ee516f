package emit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
)

// reportSchema identifies the format of a report.
const reportSchema = "hetc.npu-report/1"

// Report says what is known of the graphs that hold their weights: what the compilers said, what was tried, and
// what was not. It holds no times.
type Report struct {
	Schema    string           `json:"schema"`
	Target    *planir.Target   `json:"target,omitempty"` // of the plan; nil: the plan's own processors
	Compilers []ReportCompiler `json:"compilers"`        // by processor, ascending
	Graphs    []ReportGraph    `json:"graphs"`           // by blob, ascending
	Binaries  []ReportItem     `json:"binaries,omitempty"`
	Bounds    string           `json:"bounds"`      // what the errors are of, and where their bounds come from
	Unchecked []string         `json:"not_checked"` // what was never tried
}

// ReportCompiler is what compiled for a processor.
type ReportCompiler struct {
	Proc    string            `json:"proc"`
	Driver  string            `json:"driver"`
	Version string            `json:"version"`
	Token   string            `json:"token"`             // the vendor's compatibility string
	Options map[string]string `json:"options,omitempty"` // of the target
}

// ReportItem is a blob of the bundle.
type ReportItem struct {
	Blob   string `json:"blob"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// ReportGraph is one compiled graph.
type ReportGraph struct {
	ReportItem
	Name   string           `json:"name"` // in the plan
	Proc   string           `json:"proc"`
	Layer  int              `json:"layer"` // -1: none
	Ops    []string         `json:"ops"`   // as records name them, shapes and schemes with them
	Rows   int              `json:"rows"`
	Binary string           `json:"binary,omitempty"` // the blob that it refers to
	Facts  map[string]int64 `json:"facts,omitempty"`  // what the compiler reported: spill_bytes, vtcm_bytes, nodes, ...
	// Twin is the SHA-256 of the graph in the bundle for the emulator, "" where that was not compiled.
	Twin string `json:"twin,omitempty"`
	// Tried is the blob whose sample was executed for all graphs of the same operators, shapes and schemes; Errors
	// are of this one.
	Tried  string        `json:"tried,omitempty"`
	Errors *ReportErrors `json:"errors,omitempty"`
}

// ReportErrors are relative errors of the compiled graph, as the emulator executed it, and their bounds.
type ReportErrors struct {
	Float32       float64 `json:"float32"` // against float32 on the values of the packed weights
	Float32Bound  float64 `json:"float32_bound"`
	Portable      float64 `json:"portable"` // against the uncompiled model in another engine
	PortableBound float64 `json:"portable_bound"`
}

// boundsText says what the errors of a report are, see agreement.go.
const boundsText = "relative errors in the Euclidean norm, of pseudo-random inputs within the calibrated ranges; " +
	"bounds are three times what the emulator of the oldest target differed by on single products, times their number"

// report describes the groups that were compiled, nil if there were none.
func (c *Content) report(options *Options) (*Report, error) {
	if len(c.facts) == 0 {
		return nil, nil
	}
	report := &Report{Schema: reportSchema, Target: c.plan.Target, Bounds: boundsText, Unchecked: c.untested(options)}
	twins := map[string]string{}
	if options.TwinReport != nil {
		var err error
		if twins, err = options.TwinReport.twinDigests(c.plan); err != nil {
			return nil, err
		}
	}
	for _, facts := range c.facts {
		if facts == nil { // all its graphs were refused
			continue
		}
		if err := report.addCompiler(c, facts); err != nil {
			return nil, err
		}
		if facts.shared != nil {
			report.Binaries = append(report.Binaries, facts.shared.item())
		}
		for i := range facts.graphs {
			entry, err := facts.entry(&facts.graphs[i], twins)
			if err != nil {
				return nil, err
			}
			report.Graphs = append(report.Graphs, entry)
		}
	}
	slices.SortFunc(report.Graphs, func(a, b ReportGraph) int { return strings.Compare(a.Blob, b.Blob) })
	slices.SortFunc(report.Binaries, func(a, b ReportItem) int { return strings.Compare(a.Blob, b.Blob) })
	return report, nil
}

// item returns the blob as reports list it.
func (b *blobFacts) item() ReportItem { return ReportItem{b.name, b.bytes, b.sha256} }

// entry describes one graph. twins are the digests that the twin's own bundle has, by blob; where the twin was compiled
// again, it must be the same.
func (f *groupFacts) entry(graph *graphFacts, twins map[string]string) (ReportGraph, error) {
	entry := ReportGraph{
		ReportItem: graph.item(), Name: graph.graph.Name, Proc: graph.graph.Proc, Layer: f.group.Layer,
		Rows: graph.graph.Graph.Rows(), Facts: graph.facts, Twin: graph.twin, Tried: graph.tried,
	}
	if f.shared != nil {
		entry.Binary = f.shared.name
	}
	if twin := twins[graph.name]; twin != "" {
		if entry.Twin != "" && entry.Twin != twin {
			return entry, diag.New(diag.ClassInput,
				"report: the twin of %q that was compiled now has digest %.12s, and in the bundle given %.12s",
				graph.name, entry.Twin, twin).
				WithHint("make the twin again with the same plan, model and libraries")
		}
		entry.Twin = twin
	}
	for _, node := range graph.graph.Graph.Nodes {
		entry.Ops = append(entry.Ops, node.Op.Key())
	}
	if trial := graph.trial; trial != nil {
		entry.Errors = &ReportErrors{round3(trial.float), trial.bound.float, round3(trial.portable),
			trial.bound.portable}
	}
	return entry, nil
}

// round3 leaves three significant digits. Further digits depend on the order of sums, which differs between machines.
func round3(exact float64) float64 {
	var rounded float64
	if _, err := fmt.Sscan(fmt.Sprintf("%.2e", exact), &rounded); err != nil {
		return exact
	}
	return rounded
}

// addCompiler adds what compiled for a processor, once. All groups of a processor must have been compiled by the same
// version, since the bundle states one compatibility string for it.
func (r *Report) addCompiler(content *Content, facts *groupFacts) error {
	i := slices.IndexFunc(r.Compilers, func(x ReportCompiler) bool { return x.Proc == facts.group.Proc })
	if i >= 0 {
		if known := r.Compilers[i]; known.Token != facts.token || known.Version != facts.compiler {
			return diag.New(diag.ClassRun,
				"report: graphs of processor %q were compiled by %q with token %q and by %q with token %q",
				known.Proc, known.Version, known.Token, facts.compiler, facts.token).
				WithHint("the compiler changed while it was used, or its cache holds what another one made: " +
					"emit again with an empty cache")
		}
		return nil
	}
	proc := content.plan.Proc(facts.group.Proc)
	r.Compilers = append(r.Compilers, ReportCompiler{Proc: proc.Name, Driver: proc.Driver, Version: facts.compiler,
		Token: facts.token, Options: proc.Options})
	slices.SortFunc(r.Compilers, func(a, b ReportCompiler) int { return strings.Compare(a.Proc, b.Proc) })
	return nil
}

// untested lists what was never tried, as sentences for the report. Graphs for an emulator need no device; graphs
// for a device were never loaded on one, since the emitting machine has none.
func (c *Content) untested(options *Options) []string {
	var out []string
	switch {
	case options.Target != nil && options.Target.Emulator:
		out = append(out,
			"this is a twin for the vendor's emulator: it says how the device should compute, and nothing of its time")
	default:
		out = append(out, "never loaded on a device")
		if slices.ContainsFunc(c.facts, func(f *groupFacts) bool { return f != nil && f.shared != nil }) {
			out = append(out, "binaries that several graphs share: the emulator does not load them; "+
				"what it executed is each graph compiled by itself, its twin")
		}
	}
	if options.Oracle == nil {
		return append(out, "no graph was executed")
	}
	return append(out, "graphs of operators, shapes and schemes of which another was executed, by themselves")
}

// twinDigests returns the digests of the artifacts in the twin's report, by blob. Its graphs must be those of plan p.
func (r *Report) twinDigests(p *planir.Plan) (map[string]string, error) {
	if r.Target == nil || !r.Target.Emulator {
		return nil, diag.New(diag.ClassInput,
			"report: the bundle given as twin is none: it was not made with --for-emulator")
	}
	names := map[string]string{}
	for i := range p.Program.Graphs {
		graph := &p.Program.Graphs[i]
		names[graph.Artifact] = textOf(graph)
	}
	out := map[string]string{}
	for _, graph := range r.Graphs {
		base, _, _ := strings.Cut(graph.Blob, ".")
		if names[base] != graph.Name+" "+strings.Join(graph.Ops, "; ") {
			return nil, diag.New(diag.ClassInput, "report: graph %q of the twin is %s, and this bundle's is %s",
				graph.Blob, graph.Name, names[base]).
				WithHint("make the twin from the same plan")
		}
		out[graph.Blob] = graph.SHA256
	}
	return out, nil
}

// textOf returns a graph as reports of the twin are compared: its name and its operators.
func textOf(g *planir.Graph) string {
	var ops []string
	for _, node := range g.Graph.Nodes {
		ops = append(ops, node.Op.Key())
	}
	return g.Name + " " + strings.Join(ops, "; ")
}

// components returns what the bundle's target must have.
func (r *Report) components() []bundle.Component {
	var out []bundle.Component
	for _, compiler := range r.Compilers {
		component := bundle.Component{Name: "driver/" + compiler.Driver, Token: compiler.Token}
		if !slices.Contains(out, component) {
			out = append(out, component)
		}
	}
	slices.SortFunc(out, func(a, b bundle.Component) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// encode returns the canonical form: fields in the order of the types, keys of maps sorted, no escapes for HTML, one
// line.
func (r *Report) encode() ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(r); err != nil {
		return nil, fmt.Errorf("encode report: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// DecodeReport reads a report in its canonical form. Its text is as the bundle has it.
func DecodeReport(text []byte) (*Report, error) {
	// It is shown on terminals: nothing but printable ASCII, as Emit writes it.
	if bytes.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) || bytes.Contains(text, []byte(`\u`)) {
		return nil, diag.New(diag.ClassInput, "decode report: other than printable ASCII characters")
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	report := &Report{}
	if err := decoder.Decode(report); err != nil {
		return nil, diag.New(diag.ClassInput, "decode report: %w", err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, diag.New(diag.ClassInput, "decode report: data after the document")
	}
	if report.Schema != reportSchema {
		return nil, diag.New(diag.ClassInput, "decode report: schema %q, want %q", report.Schema, reportSchema)
	}
	if again, err := report.encode(); err != nil || !bytes.Equal(again, text) {
		return nil, diag.New(diag.ClassInput, "decode report: not in canonical form")
	}
	return report, nil
}
