package op

import "slices"

// gluColumns is what the columns that gate and up alternate by must divide, so that every 16 columns of a gated unit
// need 32 whole columns of the product before it.
const gluColumns = 16

// GatedBy reports whether a product that o describes can end with the gated linear unit glu, so that both are computed
// some columns at a time: glu takes all of its results, row by row.
func (o *Op) GatedBy(glu *Op) bool {
	isProduct := o.Kind == MatMul && !o.Scheme.RoundsResults()
	isUnit := glu.Kind == GLU && glu.Fan <= 1 && glu.Interleave > 0 && gluColumns%glu.Interleave == 0
	return isProduct && isUnit && glu.M == o.M && 2*glu.N == o.N
}

// EndsWithGLU reports whether node i is a product whose results the gated linear unit behind it takes, and nobody else.
// They need not be held then.
func (g *Graph) EndsWithGLU(i int) bool {
	if i+1 >= len(g.Nodes) || !g.Nodes[i].Op.GatedBy(&g.Nodes[i+1].Op) {
		return false
	}
	result := g.Nodes[i].Out[0]
	isTemp := slices.ContainsFunc(g.Temps, func(temp Value) bool { return temp.Name == result })
	uses := 0
	for _, node := range g.Nodes {
		for _, name := range slices.Concat(node.In, node.Out) {
			if name == result {
				uses++
			}
		}
	}
	return isTemp && g.Nodes[i+1].In[0] == result && uses == 2
}
