// Package roofline knows the latency of an operator on a processor, with an interval: models fitted
// from a record of measurements, kept as a costs file.
//
// One family of operators on one processor (same kind, scheme and head sizes, cold or warm) has one
// calibrated roofline (Agent.xpu appendix A) with a constant term, over dimensions rounded up to the
// processor's step (HeteroInfer sec. 3.2). What the roofline leaves over at the sampled shapes is
// interpolated between them. So a sampled shape comes out as measured, a shape between samples
// follows them, and one beyond them the roofline.
//
// Fit (fit.go) makes Costs of a record, Costs.Op and its neighbours (predict.go) answer the solver, and quality.go
// judges predictions by measurements that were held out.
package roofline

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/source"
	"github.com/hetc/hetc/socs/timeline"
)

// Schema identifies the costs format.
const Schema = "hetc.costs/1"

// Prediction is an expected time in nanoseconds. Low and High enclose 95 % of the errors seen when
// measured shapes were predicted from the others; of a measured shape they are the interval of its typical time.
type Prediction struct {
	NS     int64         `json:"ns"`
	LowNS  int64         `json:"low_ns"`
	HighNS int64         `json:"high_ns"`
	Source source.Source `json:"source"`
}

// Costs are the fitted latency models of one SoC. They are read-only once made, apart from Exclude.
type Costs struct {
	Schema      string `json:"schema" yaml:"schema"`
	SoC         string `json:"soc" yaml:"soc"`
	SoCDigest   string `json:"soc_digest" yaml:"soc_digest"`
	Fingerprint string `json:"fingerprint,omitempty" yaml:"fingerprint,omitempty"`
	// no time in here comes from a device
	Simulated bool `json:"simulated,omitempty" yaml:"simulated,omitempty"`
	// some times were measured elsewhere and imported
	Imported bool `json:"imported,omitempty" yaml:"imported,omitempty"`
	// digest of the record they were fitted from
	Record     string       `json:"record" yaml:"record"`
	Processors []Processor  `json:"processors" yaml:"processors"` // ascending by name
	Families   []Family     `json:"families" yaml:"families"`     // ascending by key
	Handovers  []Handover   `json:"handovers,omitempty" yaml:"handovers,omitempty"`
	Copies     []Copy       `json:"copies,omitempty" yaml:"copies,omitempty"`
	Gated      []Gated      `json:"gated,omitempty" yaml:"gated,omitempty"` // ascending by key
	Sharing    []Sharing    `json:"sharing,omitempty" yaml:"sharing,omitempty"`
	Infeasible []Infeasible `json:"infeasible,omitempty" yaml:"infeasible,omitempty"`
	// CacheBytes is the size of the largest cache, 0 for none: what was written last and fits is not read from memory.
	CacheBytes int64 `json:"cache_bytes,omitempty" yaml:"cache_bytes,omitempty"`
	// End is the last line of a file. One that was cut off lacks it, and may be legal otherwise.
	End bool `json:"-" yaml:"end"`

	once   sync.Once
	index  index
	shared sync.Once
	memory timeline.Memory
}

// Processor has the numbers of a processor as a whole.
type Processor struct {
	Name string `json:"name" yaml:"name"`
	// of one graph, before any work
	LaunchNS     float64       `json:"launch_ns" yaml:"launch_ns"`
	BytesPerNS   float64       `json:"bytes_per_ns" yaml:"bytes_per_ns"`   // it reads alone: 1e9 byte/s
	LaunchSource source.Source `json:"launch_source" yaml:"launch_source"` // measured or described
	BytesSource  source.Source `json:"bytes_source" yaml:"bytes_source"`   // measured or described
	// loading a graph, per 1e6 bytes of weights
	LoadNSPerMB float64 `json:"load_ns_per_mb,omitempty" yaml:"load_ns_per_mb,omitempty"`
	// loading a graph, before any byte
	LoadNS float64 `json:"load_ns,omitempty" yaml:"load_ns,omitempty"`
}

// Family is the fitted model of operators that differ only in size. Fields have the meaning of those of op.Op.
type Family struct {
	Proc    string    `json:"proc" yaml:"proc"`
	Kind    op.Kind   `json:"kind" yaml:"kind"`
	Scheme  op.Scheme `json:"scheme,omitempty" yaml:"scheme,omitempty"`
	Table   op.Type   `json:"table,omitempty" yaml:"table,omitempty"`
	KV      op.Type   `json:"kv,omitempty" yaml:"kv,omitempty"`
	Group   int       `json:"group,omitempty" yaml:"group,omitempty"` // query heads per key/value head
	HeadDim int       `json:"head_dim,omitempty" yaml:"head_dim,omitempty"`
	Bias    bool      `json:"bias,omitempty" yaml:"bias,omitempty"`
	// exactly: a convolution's family has one number of rows
	Form    op.Form `json:"form,omitempty" yaml:"form,omitempty"`
	Act     string  `json:"act,omitempty" yaml:"act,omitempty"`
	Experts int     `json:"experts,omitempty" yaml:"experts,omitempty"`
	Fan     int     `json:"fan,omitempty" yaml:"fan,omitempty"`
	Spread  bool    `json:"spread,omitempty" yaml:"spread,omitempty"`
	// OutlierMatMul: channels beyond the scale, 0: as many as are usual
	Channels int     `json:"channels,omitempty" yaml:"channels,omitempty"`
	Router   string  `json:"router,omitempty" yaml:"router,omitempty"`
	Window   int     `json:"window,omitempty" yaml:"window,omitempty"`
	Block    int     `json:"block,omitempty" yaml:"block,omitempty"` // of sparse attention
	Density  float64 `json:"density,omitempty" yaml:"density,omitempty"`
	Capped   bool    `json:"capped,omitempty" yaml:"capped,omitempty"` // Attention: scores are bounded
	Batch    bool    `json:"batch,omitempty" yaml:"batch,omitempty"`   // Attention: rows are of a sequence each
	Joint    bool    `json:"joint,omitempty" yaml:"joint,omitempty"`
	Rotary   int     `json:"rotary,omitempty" yaml:"rotary,omitempty"` // Rope: elements of a head, 0: all
	Cold     bool    `json:"cold,omitempty" yaml:"cold,omitempty"`

	// T = SetupNS + ((W/OpsPerNS)^p + (Q/BytesPerNS)^p)^(1/p) for W operations and Q bytes of the operator with its
	// dimensions rounded up to Step (of several experts each one's rows). p = 1 adds compute and memory time, a large p
	// takes the larger (Agent.xpu Eq. 5).
	SetupNS    float64 `json:"setup_ns" yaml:"setup_ns"`
	OpsPerNS   float64 `json:"ops_per_ns" yaml:"ops_per_ns"`     // P_eff, Eq. 3
	BytesPerNS float64 `json:"bytes_per_ns" yaml:"bytes_per_ns"` // B_eff, Eq. 2
	Sharpness  float64 `json:"sharpness" yaml:"sharpness"`       // p
	Step       [3]int  `json:"step" yaml:"step,flow"`            // of M and the two size axes (K, N of a matmul)

	// ErrM and ErrShape are the 95 % quantiles of |log(predicted/measured)| over samples left out
	// of their curve, and over whole curves left out.
	ErrM     float64 `json:"err_m" yaml:"err_m"`
	ErrShape float64 `json:"err_shape" yaml:"err_shape"`

	Curves []Curve `json:"curves" yaml:"curves"` // ascending by (A, B)

	reads bool // some sample is bound by memory, so that the samples tell how fast it reads
}

// Curve is the samples of one weight shape (of one size of an operator without weights) over M.
type Curve struct {
	A int `json:"a" yaml:"a"` // K of a matrix or embedding, cached positions of an attention, else 0
	B int `json:"b" yaml:"b"` // N; key/value heads of what works on heads; experts of a route
	// OpsPerNS and BytesPerNS are the family's rates as this shape reaches them.
	OpsPerNS   float64    `json:"ops_per_ns" yaml:"ops_per_ns"`
	BytesPerNS float64    `json:"bytes_per_ns" yaml:"bytes_per_ns"`
	Points     [][4]int64 `json:"points" yaml:"points,flow"` // M, typical time, low and high in ns; ascending by M

	ready []knot // of all points
}

// Gated is how long products of one weight shape take with the gated linear unit that they end with: shares of the sum
// of both times less a launch, as a graph of several operators takes otherwise.
type Gated struct {
	Proc   string    `json:"proc" yaml:"proc"`
	Scheme op.Scheme `json:"scheme" yaml:"scheme"`
	Bias   bool      `json:"bias,omitempty" yaml:"bias,omitempty"`
	Act    string    `json:"act,omitempty" yaml:"act,omitempty"`
	K      int       `json:"k" yaml:"k"`
	N      int       `json:"n" yaml:"n"`
	Rows   []int     `json:"rows" yaml:"rows,flow"`     // ascending
	Shares []float64 `json:"shares" yaml:"shares,flow"` // at each of Rows, 0..1
}

// Handover is the time from setting a flag on one processor to seeing it on another.
type Handover struct {
	From   string        `json:"from" yaml:"from"`
	To     string        `json:"to" yaml:"to"`
	NS     int64         `json:"ns" yaml:"ns"`
	LowNS  int64         `json:"low_ns" yaml:"low_ns"`
	HighNS int64         `json:"high_ns" yaml:"high_ns"`
	Source source.Source `json:"source" yaml:"source"` // measured or described
}

// Copy is the time of copies between two processors at some sizes.
type Copy struct {
	From   string        `json:"from" yaml:"from"`
	To     string        `json:"to" yaml:"to"`
	Points [][2]int64    `json:"points" yaml:"points,flow"` // bytes, ns; ascending
	Source source.Source `json:"source" yaml:"source"`      // measured or described
}

// Sharing says how much a set of processors slows down when they run together.
type Sharing struct {
	Procs      []string      `json:"procs" yaml:"procs,flow"`                // ascending
	BytesPerNS float64       `json:"bytes_per_ns" yaml:"bytes_per_ns"`       // most they read together
	Source     source.Source `json:"source" yaml:"source"`                   // measured or described
	Compute    []float64     `json:"compute" yaml:"compute,flow"`            // slowdown of compute of each, >= 1
	Pairs      []Pair        `json:"pairs,omitempty" yaml:"pairs,omitempty"` // measured slowdowns
	Alike      []Alike       `json:"alike,omitempty" yaml:"alike,omitempty"` // what the others leave unexplained
}

// Pair is one measured slowdown: operator Key on Proc while the others of the set ran Beside.
type Pair struct {
	Proc   string  `json:"proc" yaml:"proc"`
	Key    string  `json:"key" yaml:"key"`
	Beside string  `json:"beside" yaml:"beside"`
	Factor float64 `json:"factor" yaml:"factor"`
	// Overlap is the part of it that counts while both work: set-ups, in which neither touches memory, are taken out.
	Overlap float64 `json:"overlap,omitempty" yaml:"overlap,omitempty"`
}

// Alike is a further slowdown of operators on Proc, beyond that by the joint rate and Compute, while the other
// processor of the set works on a part of the same operator. It is the median over pairs of that kind, scheme and
// number of rows.
type Alike struct {
	Proc   string  `json:"proc" yaml:"proc"`
	Kind   op.Kind `json:"kind" yaml:"kind"`
	Scheme string  `json:"scheme,omitempty" yaml:"scheme,omitempty"`
	Rows   int     `json:"rows" yaml:"rows"`
	Factor float64 `json:"factor" yaml:"factor"`
}

// Infeasible is an operator that a processor's compiler refused. It is never predicted from others.
type Infeasible struct {
	Proc   string `json:"proc" yaml:"proc"`
	Key    string `json:"key" yaml:"key"`
	Reason string `json:"reason,omitempty" yaml:"reason,omitempty"`
}

// key returns a text that names the family in errors and by which families are sorted.
func (f *Family) key() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s %s", f.Proc, f.Kind)
	for _, word := range []string{string(f.Scheme), string(f.Form), string(f.Table), string(f.KV), f.Act, f.Router} {
		if word != "" {
			out.WriteString(" " + word)
		}
	}
	for _, number := range []struct {
		name  string
		value int
	}{{"dim", f.HeadDim}, {"group", f.Group}, {"rotary", f.Rotary}, {"window", f.Window}, {"experts", f.Experts},
		{"fan", f.Fan}, {"channels", f.Channels}} {
		if number.value > 0 {
			fmt.Fprintf(&out, " %s=%d", number.name, number.value)
		}
	}
	if f.Block > 0 {
		fmt.Fprintf(&out, " block=%d", f.Block)
	}
	if f.Density > 0 {
		fmt.Fprintf(&out, " density=%v", f.Density)
	}
	for _, word := range []struct {
		name string
		set  bool
	}{{"bias", f.Bias}, {"spread", f.Spread}, {"capped", f.Capped}, {"batch", f.Batch}, {"joint", f.Joint},
		{"cold", f.Cold}} {
		if word.set {
			out.WriteString(" " + word.name)
		}
	}
	return out.String()
}

// index finds things by key.
type index struct {
	families   map[string]*Family    // by Family.Key
	processors map[string]*Processor // by name
	infeasible map[string]string     // reasons, by processor and Op.Key
	forms      map[formed][]op.Form  // in the order of the families
}

// formed collects the forms of one product.
type formed struct {
	proc   string
	scheme op.Scheme
	bias   bool
}

// look returns the index of the costs. It makes the index at the first call.
func (c *Costs) look() *index {
	c.once.Do(func() {
		c.index = index{families: map[string]*Family{}, processors: map[string]*Processor{},
			infeasible: map[string]string{}, forms: map[formed][]op.Form{}}
		for i := range c.Families {
			family := &c.Families[i]
			family.prepare()
			c.index.families[family.key()] = family
			if at := (formed{family.Proc, family.Scheme, family.Bias}); family.Form != "" &&
				!slices.Contains(c.index.forms[at], family.Form) {
				c.index.forms[at] = append(c.index.forms[at], family.Form)
			}
		}
		for i := range c.Processors {
			c.index.processors[c.Processors[i].Name] = &c.Processors[i]
		}
		for _, refused := range c.Infeasible {
			c.index.infeasible[refused.Proc+" "+refused.Key] = refused.Reason
		}
	})
	return &c.index
}

// Open reads a costs file and checks every number in it.
func Open(path string) (*Costs, error) {
	var costs Costs
	if err := decode.File(path, Schema, &costs); err != nil {
		return nil, err
	}
	return costs.checked(path)
}

// Parse reads costs from the bytes of a file; name is shown in errors.
func Parse(name string, data []byte) (*Costs, error) {
	var costs Costs
	if err := decode.Bytes(name, data, Schema, &costs); err != nil {
		return nil, err
	}
	return costs.checked(name)
}

// checked completes costs that were read, or returns an error if they are not complete and legal.
func (c *Costs) checked(name string) (*Costs, error) {
	c.Schema = Schema
	if !c.End {
		return nil, diag.New(diag.ClassInput, "costs lack their last line, \"end: true\": the file was cut off").
			WithCode("costs.end").At("%s", name).WithHint("make it again with `hetc fit`")
	}
	if err := c.validate(); err != nil {
		return nil, diag.New(diag.ClassInput, "%w", err).WithCode("costs.value").At("%s", name).
			WithHint("make it again with `hetc fit`")
	}
	return c, nil
}

// less orders curves by (A, B).
func less(a, b Curve) bool { return a.A < b.A || a.A == b.A && a.B < b.B }

// Digest returns the identity of the costs: hex SHA-256 of their canonical JSON.
func (c *Costs) Digest() (string, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(c); err != nil {
		return "", fmt.Errorf("digest of costs: %w", err)
	}
	sum := sha256.Sum256(bytes.TrimSuffix(buf.Bytes(), []byte("\n")))
	return hex.EncodeToString(sum[:]), nil
}

// Write stores the costs as YAML at path, replacing the file as a whole or not at all.
func Write(path string, costs *Costs) error {
	if err := costs.validate(); err != nil {
		return fmt.Errorf("write costs: %w", err)
	}
	costs.End = true
	text, err := decode.YAML(costs)
	if err != nil {
		return fmt.Errorf("write costs: %w", err)
	}
	return wholefile.Write(path, text)
}
