package op

import (
	"fmt"
	"slices"
)

// Value is an input, output or intermediate of a graph: [Rows,Cols] of Type. On a processor with dynamic rows a call
// may have fewer.
type Value struct {
	Name string `json:"name" yaml:"name"`
	Type Type   `json:"type" yaml:"type"`
	Rows int    `json:"rows" yaml:"rows"`
	Cols int    `json:"cols" yaml:"cols"`
}

// WeightSpec says what a packed weight holds: a [K,N] matrix (or a [1,N] vector) quantised as Scheme ("w32", "w16",
// "q8c", "q6c", "q4c", "q4b32", "q4b128"; "f32"/"bf16"/"f16" for plain rows), laid out as Layout (see planir/pack).
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
	if kind := rowOf[o.Kind]; kind != nil {
		return kind.signature(o)
	}
	return Signature{}
}

// f32Operand returns an operand of float32.
func f32Operand(role string, rows, cols int) Value {
	return Value{Name: role, Type: F32, Rows: rows, Cols: cols}
}

// elementwise returns the signature of x -> y, both [M*Fan,N], with weights in the given roles.
func elementwise(weights ...string) func(operator Op) Signature {
	return func(operator Op) Signature {
		return Signature{In: []Value{f32Operand("x", operator.Rows(), operator.N)}, W: weights,
			Out: []Value{f32Operand("y", operator.Rows(), operator.N)}}
	}
}

// fusedQKV returns a row of query, key and value heads for each token.
func fusedQKV(operator Op) Value {
	return f32Operand("qkv", operator.M, QKVColumns(operator.Heads, operator.KVHeads, operator.HeadDim))
}

// inPlaceQKV returns the signature of what changes fused QKV rows in place.
func inPlaceQKV(weights ...string) func(operator Op) Signature {
	return func(operator Op) Signature {
		return Signature{In: []Value{fusedQKV(operator)}, W: weights, Out: []Value{fusedQKV(operator)}}
	}
}

// activations returns what enters a product: f32 rows of K, or u8 rows with their scales.
func activations(operator Op, rows int) []Value {
	if operator.Scheme.QuantisedRows() {
		return []Value{{"x", U8, rows, operator.K}, f32Operand("scale", rows, 1)}
	}
	return []Value{f32Operand("x", rows, operator.K)}
}

// groupRole begins the role of an operand that holds the rows of a group, and no other role of the same kinds.
const groupRole = "g"

// groupRows returns the operands that hold the rows of groups.
func groupRows(operator Op) (out []Value) {
	for i, group := range operator.Groups.List() {
		out = append(out, f32Operand(fmt.Sprintf(groupRole+"%d", i), group.Slots*group.Rows, operator.N))
	}
	return out
}

// matMulOperands has the operands that scheme and bias call for: scales behind quantised rows, steps behind the
// weight of a grid.
func matMulOperands(operator Op) Signature {
	signature := Signature{In: activations(operator, operator.M), W: []string{"weight"},
		Out: []Value{f32Operand("y", operator.M, operator.N)}}
	if operator.Bias {
		signature.W = append(signature.W, "bias")
	}
	if operator.Scheme.Grid() {
		signature.W = append(signature.W, "steps")
	}
	return signature
}

// Slot is where a value of a graph lies: in what is bound to it, or in memory of the executable's own.
type Slot struct {
	Value
	Input  int // index of its binding among the inputs, -1
	Output int // index of its binding among the outputs, -1; an input that is changed in place has both
}

// Bound reports whether the value is an input or an output.
func (s *Slot) Bound() bool { return s.Input >= 0 || s.Output >= 0 }

// Slots lists the values: inputs, outputs that are no inputs, temporary ones. In a valid graph no name is there twice.
func (g *Graph) Slots() []Slot {
	slots := make([]Slot, 0, len(g.Inputs)+len(g.Outputs)+len(g.Temps))
	for i, input := range g.Inputs {
		slots = append(slots, Slot{input, i, -1})
	}
	for i, output := range g.Outputs {
		same := slices.IndexFunc(slots, func(s Slot) bool { return s.Value == output && s.Output < 0 })
		if same >= 0 {
			slots[same].Output = i
			continue
		}
		slots = append(slots, Slot{output, -1, i})
	}
	for _, temp := range g.Temps {
		slots = append(slots, Slot{temp, -1, -1})
	}
	return slots
}

// State reports whether any node uses the KV cache.
func (g *Graph) State() bool {
	for _, node := range g.Nodes {
		if node.Op.Sig().State {
			return true
		}
	}
	return false
}

// Rows returns the largest M (tokens) of the graph's nodes.
func (g *Graph) Rows() int {
	most := 0
	for _, node := range g.Nodes {
		most = max(most, node.Op.M)
	}
	return most
}

// Validate checks that every node is valid, that its operands exist with the shapes and types of
// its signature, that each value is written before it is read, and that nothing is unused.
func (g *Graph) Validate() error {
	if len(g.Nodes) == 0 {
		return fmt.Errorf("graph has no nodes")
	}
	check := graphChecker{
		values: map[string]Value{}, written: map[string]bool{}, read: map[string]bool{}, weights: map[string]bool{},
	}
	for _, slot := range g.Slots() {
		if err := check.declare(slot.Value); err != nil {
			return err
		}
	}
	for _, input := range g.Inputs {
		check.written[input.Name] = true
	}
	for _, weight := range g.Weights {
		if _, again := check.weights[weight.Name]; again {
			return fmt.Errorf("weight %q declared twice", weight.Name)
		}
		check.weights[weight.Name] = false
	}
	for i := range g.Nodes {
		if err := check.node(&g.Nodes[i]); err != nil {
			return fmt.Errorf("node %d (%s): %w", i, g.Nodes[i].Op.Kind, err)
		}
	}
	for _, input := range g.Inputs {
		if !check.read[input.Name] {
			return fmt.Errorf("input %q is never read", input.Name)
		}
	}
	for _, output := range g.Outputs {
		if !check.written[output.Name] {
			return fmt.Errorf("output %q is never written", output.Name)
		}
	}
	for _, weight := range g.Weights {
		if !check.weights[weight.Name] {
			return fmt.Errorf("weight %q is never used", weight.Name)
		}
	}
	return nil
}

// graphChecker is the state of validating a graph, node by node.
type graphChecker struct {
	values        map[string]Value
	written, read map[string]bool
	weights       map[string]bool // whether a node uses it
}

// declare adds a value of a slot of its own.
func (c *graphChecker) declare(value Value) error {
	if value.Type.Bytes() == 0 || value.Rows < 1 || value.Cols < 1 || value.Rows > maxDim || value.Cols > maxDim {
		return fmt.Errorf("value %q: bad type or shape %s [%d,%d]", value.Name, value.Type, value.Rows, value.Cols)
	}
	if _, again := c.values[value.Name]; again {
		return fmt.Errorf("value %q declared twice", value.Name)
	}
	c.values[value.Name] = value
	return nil
}

// node checks a node and what it reads, then counts what it writes.
func (c *graphChecker) node(node *Node) error {
	if err := node.Op.Validate(); err != nil {
		return err
	}
	sig := node.Op.Sig()
	if len(node.In) != len(sig.In) || len(node.W) != len(sig.W) || len(node.Out) != len(sig.Out) {
		return fmt.Errorf("got %d inputs, %d weights, %d outputs, want %d, %d, %d",
			len(node.In), len(node.W), len(node.Out), len(sig.In), len(sig.W), len(sig.Out))
	}
	for i, name := range node.In {
		if err := c.operand(node, name, sig.In[i]); err != nil {
			return err
		}
		if !c.written[name] {
			return fmt.Errorf("value %q is read before it is written", name)
		}
		c.read[name] = true
	}
	for _, name := range node.W {
		if _, ok := c.weights[name]; !ok {
			return fmt.Errorf("unknown weight %q", name)
		}
		c.weights[name] = true
	}
	for i, name := range node.Out {
		if err := c.operand(node, name, sig.Out[i]); err != nil {
			return err
		}
		c.written[name] = true
	}
	return nil
}

// operand compares a value with what the signature wants; copies take every type.
func (c *graphChecker) operand(node *Node, name string, want Value) error {
	value, ok := c.values[name]
	if !ok {
		return fmt.Errorf("unknown value %q", name)
	}
	typed := value.Type == want.Type || node.Op.Kind == Copy
	if !typed || value.Rows != want.Rows || value.Cols != want.Cols {
		return fmt.Errorf("operand %s is %q %s [%d,%d], want %s [%d,%d]", want.Name, name, value.Type, value.Rows,
			value.Cols, want.Type, want.Rows, want.Cols)
	}
	return nil
}

// Single returns the graph of one operator whose values are named after their roles, with its weight
// in the given layout (ignored where the operator has none). Profiling requests are such graphs.
func Single(operator Op, layout string) Graph {
	sig := operator.Sig()
	graph := Graph{Inputs: sig.In, Outputs: sig.Out}
	node := Node{Op: operator}
	for _, value := range sig.In {
		node.In = append(node.In, value.Name)
	}
	for _, value := range sig.Out {
		node.Out = append(node.Out, value.Name)
	}
	for _, role := range sig.W {
		graph.Weights = append(graph.Weights, operator.WeightSpec(role, layout))
		node.W = append(node.W, role)
	}
	graph.Nodes = []Node{node}
	return graph
}

// ReadsRows reports whether single rows of weight number i are all that the graph reads of it, and which ones is known
// when it is executed (OutlierMatMul). A graph that is not there reads nothing.
func (g *Graph) ReadsRows(i int) bool {
	return g.readsOnly(i, func(o *Op) bool { return o.Kind == OutlierMatMul })
}

// ReadsTable reports whether weight number i is a table of which the graph reads nothing but the rows of its token ids.
func (g *Graph) ReadsTable(i int) bool {
	return g.readsOnly(i, func(o *Op) bool { return o.Kind == Embed && o.Scheme == "" })
}

// readsOnly reports whether weight number i is read, as their first one, by such operators and no others.
func (g *Graph) readsOnly(i int, such func(*Op) bool) bool {
	if g == nil || i < 0 || i >= len(g.Weights) {
		return false
	}
	name, rows := g.Weights[i].Name, false
	for j := range g.Nodes {
		node := &g.Nodes[j]
		for k, weight := range node.W {
			if weight != name {
				continue
			}
			if !such(&node.Op) || k != 0 {
				return false
			}
			rows = true
		}
	}
	return rows
}

// WeightSpec describes the weight operand of o in a role ("weight", "gain", see Sig); layout applies to the
// matrix of an operator with a Scheme, the others are plain rows.
func (o Op) WeightSpec(role, layout string) WeightSpec {
	switch {
	case o.Kind == GroupMatMul:
		return WeightSpec{Name: role, K: o.K, N: o.N, Scheme: o.Scheme.Weight(), Layout: layout}
	case o.Kind == OutlierMatMul && role == "weight": // rows of which few are read, each in one piece
		return WeightSpec{Name: role, K: o.K, N: o.N, Scheme: string(BF16), Layout: RowsLayout}
	case role == "weight":
		return WeightSpec{Name: role, Experts: o.Experts, K: o.K, N: o.N, Scheme: o.Scheme.Weight(), Layout: layout}
	case role == "table" && o.Scheme != "": // the packed weight of a tied head, whose columns are the rows
		return WeightSpec{Name: role, K: o.N, N: o.K, Scheme: o.Scheme.Weight(), Layout: layout}
	case role == "table":
		return WeightSpec{Name: role, K: o.K, N: o.N, Scheme: string(o.Table), Layout: RowsLayout}
	}
	kind := rowOf[o.Kind]
	if kind == nil || kind.shape == nil {
		return WeightSpec{}
	}
	k, n := kind.shape(o, role)
	return WeightSpec{Name: role, K: k, N: n, Scheme: string(F32), Layout: RowsLayout}
}

// gains returns a factor or summand for each column.
func gains(operator Op, _ string) (k, n int) { return 1, operator.N }

// headGains returns a factor for each element of a head, or of all heads together.
func headGains(operator Op, role string) (k, n int) {
	switch {
	case !operator.Joint:
		return 1, operator.HeadDim
	case role == "qgain":
		return 1, operator.Heads * operator.HeadDim
	}
	return 1, operator.KVHeads * operator.HeadDim
}

// Layouts of packed weights.
const (
	RowsLayout  = "rows" // plain row-major [K,N]: embeddings, gains, frequency tables
	TilesLayout = "n32"  // hetc's own tiles of 32 columns (see planir/pack)
	OnnxLayout  = "onnx" // what ONNX operators take (see planir/pack)
)
