package planir

import (
	"fmt"
	"slices"
	"strings"
)

// GraphGroup is a set of weights in one layer and the graphs that are compiled with them, at several numbers of rows:
// the input of one run of a compiler. Its artifacts are blobs named LayerBlob(graph's Artifact, Layer). If Context is
// not empty, LayerBlob(Context, Layer) is the binary to which they refer.
type GraphGroup struct {
	Proc    string
	Context string
	Layer   int         // -1: its weights belong to no layer
	W       []WeightRef // whole packs, in the order of each graph's weights
	Graphs  []*Graph    // in the order of the program
}

// LayerBlob returns the name of an artifact or a binary that holds the weights of a layer: "graph/0007.003"; that of
// none (-1) has no suffix.
func LayerBlob(name string, layer int) string {
	if layer < 0 {
		return name
	}
	return fmt.Sprintf("%s.%03d", name, layer)
}

// GraphGroups lists what is compiled together: sets of weights in the order in which graphs first name them, and the
// layers of each, ascending. Graphs without weights are compiled one by one. The program must satisfy the rules.
func (p *Plan) GraphGroups() []GraphGroup {
	type set struct {
		GraphGroup
		layers []int
	}
	var order []*set
	sets := map[string]*set{}
	refs := p.artifactRefs()
	for i := range p.Program.Graphs {
		graph := &p.Program.Graphs[i]
		if proc := p.Proc(graph.Proc); proc == nil || !proc.WeightsInArtifacts {
			continue
		}
		read, used := refs[graph.Name]
		if !used {
			continue
		}
		// Graphs of one processor and binary that read the same weights are compiled together, so that the weights are
		// held once.
		key := graph.Proc + "\x00" + graph.Context + "\x00" + refsKey(read.refs)
		if len(read.refs) == 0 {
			key += graph.Name
		}
		s := sets[key]
		if s == nil {
			s = &set{GraphGroup: GraphGroup{Proc: graph.Proc, Context: graph.Context, W: read.refs}}
			sets[key], order = s, append(order, s)
		}
		s.Graphs = append(s.Graphs, graph)
		for _, layer := range read.layers {
			if !slices.Contains(s.layers, layer) {
				s.layers = append(s.layers, layer)
			}
		}
	}
	var out []GraphGroup
	for _, set := range order {
		slices.Sort(set.layers)
		for _, layer := range set.layers {
			group := set.GraphGroup
			group.Layer = layer
			out = append(out, group)
		}
	}
	return out
}

// graphReads is what the steps of a graph read, and in which layers (-1 alone: its weights belong to none).
type graphReads struct {
	refs   []WeightRef
	layers []int
}

// artifactRefs finds for every graph with its weights in its artifact what its steps read. By rule P016 all steps of
// a graph read the same packs, so that the first one tells which; the layers are those of all sections that run it.
func (p *Plan) artifactRefs() map[string]graphReads {
	layered := map[string]bool{}
	weights := map[string]bool{}
	for i := range p.Program.Weights {
		weights[p.Program.Weights[i].Name] = len(p.Program.Weights[i].Layers) > 0
	}
	for i := range p.Program.Packs {
		layered[p.Program.Packs[i].Name] = weights[p.Program.Packs[i].Weight]
	}
	out := map[string]graphReads{}
	for _, program := range p.Program.All() {
		for _, section := range program.Sections {
			for _, lane := range section.Lanes {
				if proc := p.Proc(lane.Proc); proc == nil || !proc.WeightsInArtifacts {
					continue
				}
				for k := range lane.Steps {
					st := &lane.Steps[k]
					read, again := out[st.Run]
					if !again {
						read.refs = st.W
					}
					if !slices.ContainsFunc(st.W, func(ref WeightRef) bool { return layered[ref.Pack] }) {
						read.layers = []int{-1}
					}
					for layer := section.First; layer < section.First+section.Layers &&
						!slices.Contains(read.layers, -1); layer++ {
						if !slices.Contains(read.layers, layer) {
							read.layers = append(read.layers, layer)
						}
					}
					out[st.Run] = read
				}
			}
		}
	}
	return out
}

// refsKey is equal for equal lists of references.
func refsKey(refs []WeightRef) string {
	var text strings.Builder
	for _, ref := range refs {
		text.WriteString(ref.String())
		text.WriteByte(0)
	}
	return text.String()
}
