package onnx

import "fmt"

// Builder writes the graph of a model node by node of another graph: what belongs to node i of that one is named "n<i>"
// or "n<i>.<suffix>", and equal constants are one initializer "k<j>".
type Builder struct {
	Model  *Model
	Node   int    // the other graph's node that is being written
	Part   string // of the node, where it consists of several that are alike; "": the whole
	consts map[string]string
}

// Add appends a node that belongs to the current one: the one that does its work has no suffix.
func (b *Builder) Add(suffix, domain, kind string, in, out []string, attrs ...Attr) {
	node := Node{Name: b.Name(suffix), Op: kind, Domain: domain, In: in, Out: out, Attrs: attrs}
	b.Model.Graph.Nodes = append(b.Model.Graph.Nodes, node)
}

// Name returns what something of the current node is called.
func (b *Builder) Name(suffix string) string {
	name := fmt.Sprintf("n%d", b.Node)
	for _, part := range []string{b.Part, suffix} {
		if part != "" {
			name += "." + part
		}
	}
	return name
}

// Do is Add for one result, which is a tensor of that name within the graph.
func (b *Builder) Do(suffix, domain, kind string, in []string, attrs ...Attr) string {
	out := b.Name(suffix + ":")
	b.Add(suffix, domain, kind, in, []string{out}, attrs...)
	return out
}

// Constant returns the tensor of a constant, one for all that are equal.
func (b *Builder) Constant(tensor Tensor) string {
	key := fmt.Sprintf("%d%v%x", tensor.Type, tensor.Dims, tensor.Raw)
	name, ok := b.consts[key]
	if !ok {
		if b.consts == nil {
			b.consts = map[string]string{}
		}
		name = fmt.Sprintf("k%d", len(b.consts))
		b.consts[key] = name
		tensor.Name = name
		b.Model.Graph.Initializers = append(b.Model.Graph.Initializers, tensor)
	}
	return name
}

// Float returns the constant of one number.
func (b *Builder) Float(value float32) string { return b.Constant(Float32s("", nil, value)) }

// Ints returns the constant of a list of numbers.
func (b *Builder) Ints(values ...int64) string { return b.Constant(Int64s("", values...)) }
