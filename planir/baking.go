package planir

import (
	"fmt"
	"slices"
	"strings"
)

// Baking is a set of weights in one layer and the graphs that are compiled with them, at several numbers of rows: what a
// compiler is given at once. Its artifacts are blobs named LayerBlob(graph's Artifact, Layer), and where Context is not
// empty there is the binary they refer to, LayerBlob(Context, Layer).
type Baking struct {
	Proc    string
	Context string
	Layer   int         // -1: its weights belong to no layer
	W       []WeightRef // whole packs, in the order of each graph's weights
	Graphs  []*Graph    // in the order of the program
}

// LayerBlob is the name of an artifact or a binary that holds the weights of a layer: "graph/0007.003"; that of none
// (-1) has no suffix.
func LayerBlob(name string, layer int) string {
	if layer < 0 {
		return name
	}
	return fmt.Sprintf("%s.%03d", name, layer)
}

// Bakings lists what is baked: sets of weights in the order in which graphs first name them, and of each its layers,
// ascending. Graphs without weights are baked one by one. The program must satisfy the rules.
func (p *Plan) Bakings() []Baking {
	type set struct {
		Baking
		layers []int
	}
	var order []*set
	sets := map[string]*set{}
	refs := p.bakedRefs()
	for i := range p.Program.Graphs {
		g := &p.Program.Graphs[i]
		if q := p.Proc(g.Proc); q == nil || !q.Bakes {
			continue
		}
		w, used := refs[g.Name]
		if !used {
			continue
		}
		key := g.Proc + "\x00" + g.Context + "\x00" + refsKey(w.refs)
		if len(w.refs) == 0 {
			key += g.Name
		}
		s := sets[key]
		if s == nil {
			s = &set{Baking: Baking{Proc: g.Proc, Context: g.Context, W: w.refs}}
			sets[key], order = s, append(order, s)
		}
		s.Graphs = append(s.Graphs, g)
		for _, l := range w.layers {
			if !slices.Contains(s.layers, l) {
				s.layers = append(s.layers, l)
			}
		}
	}
	var out []Baking
	for _, s := range order {
		slices.Sort(s.layers)
		for _, l := range s.layers {
			b := s.Baking
			b.Layer = l
			out = append(out, b)
		}
	}
	return out
}

// baked is what the steps of a graph read, and in which layers (-1 alone: its weights belong to none).
type baked struct {
	refs   []WeightRef
	layers []int
}

// bakedRefs finds for every graph of a baking processor what its steps read.
func (p *Plan) bakedRefs() map[string]baked {
	layered := map[string]bool{}
	weights := map[string]bool{}
	for i := range p.Program.Weights {
		weights[p.Program.Weights[i].Name] = len(p.Program.Weights[i].Layers) > 0
	}
	for i := range p.Program.Packs {
		layered[p.Program.Packs[i].Name] = weights[p.Program.Packs[i].Weight]
	}
	out := map[string]baked{}
	for i := range p.Program.Programs {
		for _, s := range p.Program.Programs[i].Sections {
			for _, l := range s.Lanes {
				if q := p.Proc(l.Proc); q == nil || !q.Bakes {
					continue
				}
				for k := range l.Steps {
					st := &l.Steps[k]
					b, again := out[st.Run]
					if !again {
						b.refs = st.W
					}
					if !slices.ContainsFunc(st.W, func(r WeightRef) bool { return layered[r.Pack] }) {
						b.layers = []int{-1}
					}
					for x := s.First; x < s.First+s.Layers && !slices.Contains(b.layers, -1); x++ {
						if !slices.Contains(b.layers, x) {
							b.layers = append(b.layers, x)
						}
					}
					out[st.Run] = b
				}
			}
		}
	}
	return out
}

// ArtifactOf names the blob of a graph for a layer of a section that runs it.
func (b *Baking) ArtifactOf(g *Graph) string { return LayerBlob(g.Artifact, b.Layer) }

func refsKey(refs []WeightRef) string {
	var b strings.Builder
	for _, r := range refs {
		b.WriteString(r.String())
		b.WriteByte(0)
	}
	return b.String()
}
