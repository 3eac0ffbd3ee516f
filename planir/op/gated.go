package op

import "slices"

// gluColumns is a multiple of the columns by which gate and up alternate, so that every 16 columns of a gated linear unit
// need 32 whole columns of the product before it.
const gluColumns = 16

// GatedBy reports whether o is a product that can end with glu: a gated linear unit that takes all of its results, row by
// row. Then both can be computed some columns at a time.
func (o *Op) GatedBy(glu *Op) bool {
	isProduct := o.Kind == MatMul && !o.Scheme.RoundsResults()
	isUnit := glu.Kind == GLU && glu.Fan <= 1 && glu.Interleave > 0 && gluColumns%glu.Interleave == 0
	return isProduct && isUnit && glu.M == o.M && 2*glu.N == o.N
}

// Gated returns the graph of a product, as Single makes it, that ends with the gated linear unit glu.
func Gated(product, glu Op, layout string) Graph {
	graph := Single(product, layout)
	result, unit := graph.Outputs[0], glu.Sig().Out[0]
	result.Name = "product"
	graph.Temps, graph.Outputs = []Value{result}, []Value{unit}
	graph.Nodes[0].Out = []string{result.Name}
	graph.Nodes = append(graph.Nodes, Node{Op: glu, In: []string{result.Name}, Out: []string{unit.Name}})
	return graph
}

// EndsWithGLU reports whether node i is a product whose results the gated linear unit behind it takes, and nobody else.
// They need not be held then. A unit that overwrites what the product reads has to wait for all of it.
func (g *Graph) EndsWithGLU(i int) bool {
	if i+1 >= len(g.Nodes) || !g.Nodes[i].Op.GatedBy(&g.Nodes[i+1].Op) {
		return false
	}
	product, unit := &g.Nodes[i], &g.Nodes[i+1]
	result := product.Out[0]
	overwrites := slices.Contains(product.In, unit.Out[0])
	isTemp := slices.ContainsFunc(g.Temps, func(temp Value) bool { return temp.Name == result })
	uses := 0
	for _, node := range g.Nodes {
		for _, name := range slices.Concat(node.In, node.Out) {
			if name == result {
				uses++
			}
		}
	}
	return isTemp && unit.In[0] == result && uses == 2 && !overwrites
}
