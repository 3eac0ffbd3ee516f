package op

import "fmt"

// Value is an input, output or intermediate of a graph: [Rows,Cols] of Type. Dyn marks a row count
// that a call may lower (Rows is then the upper bound).
type Value struct {
	Name string `json:"name" yaml:"name"`
	Type Type   `json:"type" yaml:"type"`
	Rows int    `json:"rows" yaml:"rows"`
	Cols int    `json:"cols" yaml:"cols"`
}

// WeightSpec says what a packed weight holds: a [K,N] matrix (or a [1,N] vector) quantised as Scheme
// ("w32", "w16", "q8c", "q4c", "q4b32", "q4b128"; "f32"/"bf16"/"f16" for plain rows), laid out as Layout (see planir/pack).
// Experts > 0 means as many of them, one behind the other.
type WeightSpec struct {
	Name    string `json:"name" yaml:"name"`
	Experts int    `json:"experts,omitempty" yaml:"experts,omitempty"`
	K       int    `json:"k" yaml:"k"`
	N       int    `json:"n" yaml:"n"`
	Scheme  string `json:"scheme" yaml:"scheme"`
	Layout  string `json:"layout" yaml:"layout"`
}

// String describes what is held, without the name: "[2048,5632] q8c n32".
func (s WeightSpec) String() string {
	experts := ""
	if s.Experts > 0 {
		experts = fmt.Sprintf("%d experts ", s.Experts)
	}
	return fmt.Sprintf("%s[%d,%d] %s %s", experts, s.K, s.N, s.Scheme, s.Layout)
}

// Node is one operator applied to named values of its graph. In, W and Out are in the order of the
// kind's signature (see Kind and Signature).
type Node struct {
	Op  Op       `json:"op" yaml:"op"`
	In  []string `json:"in,omitempty" yaml:"in,omitempty"`
	W   []string `json:"w,omitempty" yaml:"w,omitempty"`
	Out []string `json:"out,omitempty" yaml:"out,omitempty"`
}

// Graph is a small static-shape piece of a model: what a compiler turns into an artifact and a
// driver executes in one call. Nodes are in execution order. State reports whether it uses the KV cache.
type Graph struct {
	Inputs  []Value      `json:"inputs,omitempty" yaml:"inputs,omitempty"`
	Weights []WeightSpec `json:"weights,omitempty" yaml:"weights,omitempty"`
	Outputs []Value      `json:"outputs,omitempty" yaml:"outputs,omitempty"`
	Temps   []Value      `json:"temps,omitempty" yaml:"temps,omitempty"` // internal to the graph
	Nodes   []Node       `json:"nodes,omitempty" yaml:"nodes,omitempty"`
}

// Signature describes the operands of one node in order: inputs, outputs as values (Name is the
// operand's role), weights as roles. An in-place operand appears as input and output with one name.
type Signature struct {
	In, Out []Value
	W       []string
	State   bool // reads or writes the KV cache
}

// Sig returns the operand signature of o.
//
//	Embed         in ids                        w table          out y
//	SelectRow     in x                                           out y
//	Norm          in x                          w gain           out y
//	LayerNorm     in x                          w gain, bias     out y
//	QuantRows     in x                          [w scale]        out y, scale
//	MatMul        in x [, scale]                w weight [, bias] [, steps] out y
//	ExpertMatMul  in x [, scale], ids           w weight         out y
//	Route         in logits                                      out ids, weights
//	Combine       in x, weights                                  out y
//	QKNorm        in qkv                        w qgain, kgain   out qkv (in place)
//	Rope          in qkv                        w invfreq        out qkv (in place)
//	KVAppend      in qkv                                                  state
//	Attention     in qkv                                         out y    state
//	GLU           in x                                           out y
//	Activate, Softcap, Clip  in x                                out y (may alias x)
//	Gate          in x, gate                                     out y (may alias x)
//	Add           in a, b                                        out y (may alias a or b)
//	Copy          in x                                           out y
func (o Op) Sig() Signature {
	v := func(name string, t Type, rows, cols int) Value {
		return Value{Name: name, Type: t, Rows: rows, Cols: cols}
	}
	rows := o.Rows()
	same := func(w ...string) Signature {
		return Signature{In: []Value{v("x", F32, rows, o.N)}, W: w, Out: []Value{v("y", F32, rows, o.N)}}
	}
	activations := func(rows int) []Value {
		if o.Scheme.QuantisedRows() {
			return []Value{v("x", U8, rows, o.K), v("scale", F32, rows, 1)}
		}
		return []Value{v("x", F32, rows, o.K)}
	}
	qkv := v("qkv", F32, o.M, QKVColumns(o.Heads, o.KVHeads, o.HeadDim))
	switch o.Kind {
	case Embed:
		return Signature{In: []Value{v("ids", I32, o.M, 1)}, W: []string{"table"}, Out: []Value{v("y", F32, o.M, o.N)}}
	case SelectRow:
		return Signature{In: []Value{v("x", F32, o.M, o.N)}, Out: []Value{v("y", F32, 1, o.N)}}
	case Norm:
		return same("gain")
	case LayerNorm:
		return same("gain", "bias")
	case QuantRows:
		s := Signature{In: []Value{v("x", F32, rows, o.N)}, Out: []Value{v("y", U8, rows, o.N), v("scale", F32, rows, 1)}}
		if o.Static {
			s.W = []string{"scale"}
		}
		return s
	case MatMul:
		s := Signature{In: activations(o.M), W: []string{"weight"}, Out: []Value{v("y", F32, o.M, o.N)}}
		if o.Bias {
			s.W = append(s.W, "bias")
		}
		if o.Scheme.Grid() {
			s.W = append(s.W, "steps")
		}
		return s
	case ExpertMatMul:
		return Signature{In: append(activations(o.inputRows()), v("ids", I32, o.M, o.Fan)), W: []string{"weight"}, Out: []Value{v("y", F32, rows, o.N)}}
	case Route:
		return Signature{In: []Value{v("logits", F32, o.M, o.Experts)}, Out: []Value{v("ids", I32, o.M, o.Fan), v("weights", F32, o.M, o.Fan)}}
	case Combine:
		return Signature{In: []Value{v("x", F32, rows, o.N), v("weights", F32, o.M, o.Fan)}, Out: []Value{v("y", F32, o.M, o.N)}}
	case QKNorm:
		return Signature{In: []Value{qkv}, W: []string{"qgain", "kgain"}, Out: []Value{qkv}}
	case Rope:
		return Signature{In: []Value{qkv}, W: []string{"invfreq"}, Out: []Value{qkv}}
	case KVAppend:
		return Signature{In: []Value{qkv}, State: true}
	case Attention:
		return Signature{In: []Value{qkv}, Out: []Value{v("y", F32, o.M, o.Heads*o.HeadDim)}, State: true}
	case GLU:
		return Signature{In: []Value{v("x", F32, rows, 2*o.N)}, Out: []Value{v("y", F32, rows, o.N)}}
	case Activate, Softcap, Clip, Copy:
		return same()
	case Gate:
		return Signature{In: []Value{v("x", F32, o.M, o.N), v("gate", F32, o.M, 1)}, Out: []Value{v("y", F32, o.M, o.N)}}
	case Add:
		return Signature{In: []Value{v("a", F32, o.M, o.N), v("b", F32, o.M, o.N)}, Out: []Value{v("y", F32, o.M, o.N)}}
	}
	return Signature{}
}

// State reports whether any node uses the KV cache.
func (g *Graph) State() bool {
	for _, n := range g.Nodes {
		if n.Op.Sig().State {
			return true
		}
	}
	return false
}

// Rows is the largest M (tokens) of the graph's nodes.
func (g *Graph) Rows() int {
	m := 0
	for _, n := range g.Nodes {
		m = max(m, n.Op.M)
	}
	return m
}

// Validate checks that every node is valid, that its operands exist with the shapes and types of
// its signature, that each value is written before it is read, and that nothing is unused.
func (g *Graph) Validate() error {
	if len(g.Nodes) == 0 {
		return fmt.Errorf("graph has no nodes")
	}
	values := map[string]Value{}
	written := map[string]bool{}
	used := map[string]bool{}
	declare := func(vs []Value, in bool) error {
		for _, v := range vs {
			if v.Type.Bytes() == 0 || v.Rows < 1 || v.Cols < 1 || v.Rows > maxDim || v.Cols > maxDim {
				return fmt.Errorf("value %q: bad type or shape %s [%d,%d]", v.Name, v.Type, v.Rows, v.Cols)
			}
			if old, dup := values[v.Name]; dup && (old != v || !in) {
				if old != v {
					return fmt.Errorf("value %q declared twice", v.Name)
				}
			}
			values[v.Name] = v
			if in {
				written[v.Name] = true
			}
		}
		return nil
	}
	if err := declare(g.Inputs, true); err != nil {
		return err
	}
	if err := declare(g.Outputs, false); err != nil {
		return err
	}
	if err := declare(g.Temps, false); err != nil {
		return err
	}
	weights := map[string]WeightSpec{}
	for _, w := range g.Weights {
		if _, dup := weights[w.Name]; dup {
			return fmt.Errorf("weight %q declared twice", w.Name)
		}
		weights[w.Name] = w
	}
	for i, n := range g.Nodes {
		at := func(format string, args ...any) error {
			return fmt.Errorf("node %d (%s): %s", i, n.Op.Kind, fmt.Sprintf(format, args...))
		}
		if err := n.Op.Validate(); err != nil {
			return at("%v", err)
		}
		sig := n.Op.Sig()
		if len(n.In) != len(sig.In) || len(n.W) != len(sig.W) || len(n.Out) != len(sig.Out) {
			return at("got %d inputs, %d weights, %d outputs, want %d, %d, %d",
				len(n.In), len(n.W), len(n.Out), len(sig.In), len(sig.W), len(sig.Out))
		}
		match := func(name string, want Value) error {
			v, ok := values[name]
			if !ok {
				return at("unknown value %q", name)
			}
			if v.Type != want.Type || v.Rows != want.Rows || v.Cols != want.Cols {
				if n.Op.Kind != Copy || v.Rows != want.Rows || v.Cols != want.Cols {
					return at("operand %s is %q %s [%d,%d], want %s [%d,%d]", want.Name, name, v.Type, v.Rows, v.Cols, want.Type, want.Rows, want.Cols)
				}
			}
			return nil
		}
		for j, name := range n.In {
			if err := match(name, sig.In[j]); err != nil {
				return err
			}
			if !written[name] {
				return at("value %q is read before it is written", name)
			}
			used[name] = true
		}
		for _, name := range n.W {
			if _, ok := weights[name]; !ok {
				return at("unknown weight %q", name)
			}
			used["w:"+name] = true
		}
		for j, name := range n.Out {
			if err := match(name, sig.Out[j]); err != nil {
				return err
			}
			written[name] = true
		}
	}
	for _, v := range g.Inputs {
		if !used[v.Name] {
			return fmt.Errorf("input %q is never read", v.Name)
		}
	}
	for _, v := range g.Outputs {
		if !written[v.Name] {
			return fmt.Errorf("output %q is never written", v.Name)
		}
	}
	for _, w := range g.Weights {
		if !used["w:"+w.Name] {
			return fmt.Errorf("weight %q is never used", w.Name)
		}
	}
	return nil
}

// Single returns the graph of one operator whose values are named after their roles, with its weight
// in the given layout (ignored where the operator has none). Profiling requests are such graphs.
func Single(o Op, layout string) Graph {
	sig := o.Sig()
	g := Graph{Inputs: sig.In, Outputs: sig.Out}
	n := Node{Op: o}
	for _, v := range sig.In {
		n.In = append(n.In, v.Name)
	}
	for _, v := range sig.Out {
		n.Out = append(n.Out, v.Name)
	}
	for _, w := range sig.W {
		g.Weights = append(g.Weights, o.WeightSpec(w, layout))
		n.W = append(n.W, w)
	}
	g.Nodes = []Node{n}
	return g
}

// WeightSpec describes the weight operand of o in a role ("weight", "gain", see Sig); layout applies to the
// matrix of an operator with a Scheme, the others are plain rows.
func (o Op) WeightSpec(role, layout string) WeightSpec {
	vector := func(k, n int) WeightSpec {
		return WeightSpec{Name: role, K: k, N: n, Scheme: string(F32), Layout: RowsLayout}
	}
	switch o.Kind {
	case MatMul, ExpertMatMul:
		switch role {
		case "bias":
			return vector(1, o.N)
		case "steps":
			return vector(2, o.N)
		}
		w := WeightSpec{Name: role, K: o.K, N: o.N, Scheme: o.Scheme.Weight(), Layout: layout}
		if o.Kind == ExpertMatMul {
			w.Experts = o.Experts
		}
		return w
	case Embed:
		if o.Scheme != "" {
			return WeightSpec{Name: role, K: o.N, N: o.K, Scheme: o.Scheme.Weight(), Layout: layout}
		}
		return WeightSpec{Name: role, K: o.K, N: o.N, Scheme: string(o.Table), Layout: RowsLayout}
	case QuantRows:
		return vector(1, max(1, o.Scales))
	case Norm, LayerNorm:
		return vector(1, o.N)
	case QKNorm:
		switch {
		case !o.Joint:
			return vector(1, o.HeadDim)
		case role == "qgain":
			return vector(1, o.Heads*o.HeadDim)
		}
		return vector(1, o.KVHeads*o.HeadDim)
	case Rope:
		if o.LongFrom > 0 && o.NTK == 0 {
			return vector(2, o.Rotary()/2)
		}
		return vector(1, o.Rotary()/2)
	}
	return WeightSpec{}
}

// Layouts of packed weights.
const (
	RowsLayout  = "rows" // plain row-major [K,N]: embeddings, gains, frequency tables
	TilesLayout = "n32"  // hetc's own tiles of 32 columns (see planir/pack)
	OnnxLayout  = "onnx" // what ONNX operators take (see planir/pack)
)
