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

// Sig returns the operand signature of o, as its kind has it (docs/operators.md lists them).
func (o Op) Sig() Signature {
	if r := rowOf[o.Kind]; r != nil {
		return r.sig(o)
	}
	return Signature{}
}

// floats is an operand of float32.
func floats(role string, rows, cols int) Value {
	return Value{Name: role, Type: F32, Rows: rows, Cols: cols}
}

// elementwise is the signature of x -> y, both [M*Fan,N], with weights in the given roles.
func elementwise(weights ...string) func(o Op) Signature {
	return func(o Op) Signature {
		return Signature{In: []Value{floats("x", o.Rows(), o.N)}, W: weights, Out: []Value{floats("y", o.Rows(), o.N)}}
	}
}

// fusedQKV is a row of query, key and value heads for each token.
func fusedQKV(o Op) Value { return floats("qkv", o.M, QKVColumns(o.Heads, o.KVHeads, o.HeadDim)) }

// inPlaceQKV is the signature of what changes fused QKV rows in place.
func inPlaceQKV(weights ...string) func(o Op) Signature {
	return func(o Op) Signature {
		return Signature{In: []Value{fusedQKV(o)}, W: weights, Out: []Value{fusedQKV(o)}}
	}
}

// activations are what enters a product: f32 rows of K, or u8 rows with their scales.
func activations(o Op, rows int) []Value {
	if o.Scheme.QuantisedRows() {
		return []Value{{"x", U8, rows, o.K}, floats("scale", rows, 1)}
	}
	return []Value{floats("x", rows, o.K)}
}

func matMulOperands(o Op) Signature {
	s := Signature{In: activations(o, o.M), W: []string{"weight"}, Out: []Value{floats("y", o.M, o.N)}}
	if o.Bias {
		s.W = append(s.W, "bias")
	}
	if o.Scheme.Grid() {
		s.W = append(s.W, "steps")
	}
	return s
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
	switch {
	case role == "weight":
		return WeightSpec{Name: role, Experts: o.Experts, K: o.K, N: o.N, Scheme: o.Scheme.Weight(), Layout: layout}
	case role == "table" && o.Scheme != "": // the packed weight of a tied head, whose columns are the rows
		return WeightSpec{Name: role, K: o.N, N: o.K, Scheme: o.Scheme.Weight(), Layout: layout}
	case role == "table":
		return WeightSpec{Name: role, K: o.K, N: o.N, Scheme: string(o.Table), Layout: RowsLayout}
	}
	r := rowOf[o.Kind]
	if r == nil || r.shape == nil {
		return WeightSpec{}
	}
	k, n := r.shape(o, role)
	return WeightSpec{Name: role, K: k, N: n, Scheme: string(F32), Layout: RowsLayout}
}

// gains are a factor or summand for each column.
func gains(o Op, _ string) (k, n int) { return 1, o.N }

// headGains are a factor for each element of a head, or of all heads together.
func headGains(o Op, role string) (k, n int) {
	switch {
	case !o.Joint:
		return 1, o.HeadDim
	case role == "qgain":
		return 1, o.Heads * o.HeadDim
	}
	return 1, o.KVHeads * o.HeadDim
}

// Layouts of packed weights.
const (
	RowsLayout  = "rows" // plain row-major [K,N]: embeddings, gains, frequency tables
	TilesLayout = "n32"  // hetc's own tiles of 32 columns (see planir/pack)
	OnnxLayout  = "onnx" // what ONNX operators take (see planir/pack)
)
