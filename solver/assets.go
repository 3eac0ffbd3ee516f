package solver

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/problem"
)

// A candidate needs things that other candidates need too: graphs, columns of packed weights, buffers. Each is an asset
// of the joint problem, which counts once however many choices need it.
//
// Sizes that grow are divided: of a pack into the columns between two cuts, of a buffer into the rows between two
// levels. A candidate needs all parts up to its own size, and shares the smaller ones with others. Therefore all needs
// are scanned for cuts and levels before the first asset is made.

// need lists what a step of a candidate needs to be open on a processor.
type need struct {
	proc    string
	graph   string // key
	weights []lower.Use
	scratch int64    // temporary memory of its graph
	table   bool     // the weight is a table that rows are looked up in as they are stored
	joins   bool     // its step may be joined to its neighbours
	inside  bool     // and what they pass to each other may then have no buffer
	buffers []buffer // that its steps touch
}

// buffer is a buffer of the pool, with the least size that the candidate needs.
type buffer struct {
	name       string
	rows, cols int
	size       int  // of an element
	own        bool // of a share or partial sum: it is as large as those that use it need it
}

// needsOf lists what a node's candidate needs, step by step, as lowering will cut it.
func needsOf(st *price.Section, node int, candidate *price.Candidate) ([]need, error) {
	of := &st.Nodes[node]
	pieces, err := lower.Cut(st.Section, of, &candidate.Decision, st.Proc)
	if err != nil {
		return nil, diag.New(diag.ClassInternal, "BUG: a candidate of %q cannot be cut: %w", of.Name, err)
	}
	var steps []need
	for i := range pieces {
		piece := &pieces[i]
		proc := st.Proc(piece.Proc)
		step := need{proc: piece.Proc, table: piece.Op().Kind == op.Embed && piece.Op().Scheme == ""}
		step.weights, step.graph = lower.Needs(of, piece, proc)
		step.scratch = scratchOf(piece, proc)
		step.joins, step.inside = lower.Joins(of, piece.Ops, proc)
		for _, view := range slices.Concat(piece.In, piece.Out) {
			step.buffers = append(step.buffers, bufferOf(st, of, view))
		}
		steps = append(steps, step)
	}

	// Padding rows are written by the producer but never gathered: the buffer has all of them.
	most := map[string]int{}
	for _, step := range steps {
		for _, buf := range step.buffers {
			most[buf.name] = max(most[buf.name], buf.rows)
		}
	}
	for _, step := range steps {
		for i := range step.buffers {
			step.buffers[i].rows = most[step.buffers[i].name]
		}
	}
	return steps, nil
}

// bufferOf returns the buffer of a view, as large as a candidate of a node needs it. A buffer that is no value of the
// section holds a share or a partial sum of the node's result, in its type.
func bufferOf(st *price.Section, of *lower.Node, view planir.View) buffer {
	value, isValue := st.Values[view.Buffer]
	if isValue {
		return buffer{name: view.Buffer, rows: max(view.R1, value.Rows), cols: value.Cols, size: value.Type.Bytes()}
	}
	result := st.Values[of.Out[0]]
	return buffer{name: view.Buffer, rows: view.R1, cols: view.C1, size: result.Type.Bytes(), own: true}
}

// scratchOf returns the temporary memory of a piece's graph if nothing is joined to it.
func scratchOf(piece *lower.Piece, proc *planir.Proc) int64 {
	var most int64
	for _, operator := range piece.Ops {
		graph := op.Single(operator, "")
		most = max(most, proc.ScratchBytes(&graph))
	}
	return most
}

// candidateNeeds returns the needs of all candidates of an instance, by node and candidate. It computes them once and
// keeps them in the instance.
func (in *instance) candidateNeeds() ([][][]need, error) {
	if in.needs != nil {
		return in.needs, nil
	}
	all := make([][][]need, len(in.candidates))
	for node := range in.candidates {
		for i := range in.candidates[node] {
			steps, err := needsOf(in.section, node, &in.candidates[node][i])
			if err != nil {
				return nil, err
			}
			all[node] = append(all[node], steps)
		}
	}
	in.needs = all
	return all, nil
}

// assets collects the assets that choices of a joint problem share.
type assets struct {
	s       *request
	list    []problem.Asset
	index   map[string]int // of the list, by name
	layers  map[string]int // of each weight
	experts map[string]int // of each weight
	procs   map[string]*socs.Processor

	cuts  map[string][]int       // boundaries of the columns that a pack is read in, by its key
	whole map[string]planir.Pack // by key, without columns
	sizes map[sizeKey]int64      // of ranges of packs

	rows   map[string]int   // the most of each buffer
	levels map[string][]int // numbers of rows of a buffer of its own

	regions map[string]int // by processor: those whose bytes, graphs or opening times are bounded
	memory  bool           // what a process holds is bounded or minimised
	pool    bool           // its buffers, scratch and steps count, too: it is minimised
	least   bool           // for leastBytes: no packs, and no asset that a range ends within
}

// sizeKey is a range of a pack's columns, with the unit to which each layer of it is rounded up.
type sizeKey struct {
	pack     string
	from, to int
	unit     int64
}

// newAssets returns an empty collection.
func (s *request) newAssets() *assets {
	shared := &assets{
		s: s, index: map[string]int{}, layers: s.layersPerWeight(), experts: map[string]int{},
		procs: map[string]*socs.Processor{},
		cuts:  map[string][]int{}, whole: map[string]planir.Pack{}, sizes: map[sizeKey]int64{},
		rows: map[string]int{}, levels: map[string][]int{}, regions: map[string]int{},
	}

	for _, w := range s.graph.Weights {
		shared.experts[w.Name] = w.Experts
	}
	for i := range s.Procs {
		shared.procs[s.Procs[i].Name] = s.in.SoC.Processor(s.Procs[i].Name)
	}
	return shared
}

// expertsOf returns how many experts of a weight its pack holds, 0 for a weight without.
func (a *assets) expertsOf(use *lower.Use) int {
	if use.Slotted {
		return planir.MostSlotted(a.s.in.tiers)
	}
	return a.experts[use.Weight]
}

// packKey names the pack to which a range of a weight belongs on a processor, by the region that its owner reads.
func packKey(use *lower.Use) string {
	key := fmt.Sprintf("%s/%s.%s k%d-%d", use.Weight, use.Scheme, use.Layout, use.K0, use.K1)
	if use.Owner != "" {
		key += fmt.Sprintf(" %s n%d-%d", use.Owner, use.N0, use.N1)
	}
	if use.Slotted {
		key += " slots"
	}
	return key
}

// scan notes where a need divides packs, and how large it makes buffers.
func (a *assets) scan(step *need) {
	for i := range step.weights {
		use := &step.weights[i]
		key := packKey(use)
		if _, ok := a.whole[key]; !ok {
			a.whole[key] = planir.Pack{Weight: use.Weight, Experts: a.expertsOf(use), K0: use.K0, K1: use.K1,
				Scheme: use.Scheme, Layout: use.Layout}
		}
		for _, cut := range []int{use.N0, use.N1} {
			if at, found := slices.BinarySearch(a.cuts[key], cut); !found {
				a.cuts[key] = slices.Insert(a.cuts[key], at, cut)
			}
		}
	}

	for _, buf := range step.buffers {
		a.rows[buf.name] = max(a.rows[buf.name], buf.rows)
		a.noteSize(buf.name, buf.rows)
	}
	if a.pool {
		a.noteSize("scratch "+step.proc, int(step.scratch))
	}
}

// scanAll scans all needs of an instance.
func (a *assets) scanAll(needs [][][]need) {
	for _, candidates := range needs {
		for _, steps := range candidates {
			for i := range steps {
				a.scan(&steps[i])
			}
		}
	}
}

// noteSize notes one of the sizes that a buffer or a pack may have.
func (a *assets) noteSize(name string, size int) {
	if at, found := slices.BinarySearch(a.levels[name], size); !found {
		a.levels[name] = slices.Insert(a.levels[name], at, size)
	}
}

// bytes returns the bytes of columns of a pack, in all layers and experts. unit is 1 as check.Load counts, and a page
// as planir.MemoryOf does. A range of several parts takes at least as much as all of them together.
func (a *assets) bytes(key string, from, to int, unit int64) (int64, error) {
	id := sizeKey{key, from, to, unit}
	if bytes, ok := a.sizes[id]; ok {
		return bytes, nil
	}
	whole := a.whole[key]
	upTo := func(cols int) (int64, error) {
		if cols <= 0 {
			return 0, nil
		}
		part := whole
		part.N1 = cols
		bytes, err := pack.Bytes(part.Spec())
		return op.RoundUp(bytes, unit), err
	}

	// Columns 0..to less columns 0..from: what layouts add once for a pack belongs to its beginning.
	first := a.cuts[key][0]
	low, err := upTo(from - first)
	if err != nil {
		return 0, err
	}
	high, err := upTo(to - first)
	if err != nil {
		return 0, err
	}
	bytes := int64(max(1, a.layers[whole.Weight])) * max(0, high-low)
	a.sizes[id] = bytes
	return bytes, nil
}

// intern returns the number of an asset. An asset whose name is not known yet gets a new number.
func (a *assets) intern(asset problem.Asset) int {
	i, ok := a.index[asset.Name]
	if !ok {
		i = len(a.list)
		a.index[asset.Name] = i
		a.list = append(a.list, asset)
	}
	return i
}

// ofStep appends the assets of a step to out: its part of what the process holds, and of what its processor loads. Only
// quantities that some limit or the measure counts are assets.
func (a *assets) ofStep(step *need, out []int) ([]int, error) {
	if a.pool {
		out = a.heldAssets(step, out)
	}
	region, bounded := a.regions[step.proc]
	if bounded {
		out = a.loadedAssets(step, region, out)
	}

	for i := range step.weights {
		var err error
		if out, err = a.packAssets(step, &step.weights[i], out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// heldAssets lists the buffers and the scratch of a step, and its library.
func (a *assets) heldAssets(step *need, out []int) []int {
	if !step.inside {
		for i := range step.buffers {
			out = a.bufferParts("pool", &step.buffers[i], a.regions[""], planir.BufferBytes, out)
		}
	}
	scratch := buffer{name: "scratch " + step.proc, rows: int(step.scratch), cols: 1, size: 1}
	out = a.bufferParts("held", &scratch, a.regions[""], unrounded, out)
	if once := a.procs[step.proc].KernelMemory().LibraryBytes; once > 0 {
		out = append(out, a.intern(problem.Asset{Name: "library", Region: a.regions[""], Bytes: once}))
	}
	return out
}

// loadedAssets lists the graph of a step and its buffers in the region of its processor.
func (a *assets) loadedAssets(step *need, region int, out []int) []int {
	graph := problem.Asset{Name: "graph " + step.graph, Region: region, Graphs: 1, OpenNS: openNS(a.procs[step.proc])}
	out = append(out, a.intern(graph))
	for i := range step.buffers {
		buf := &step.buffers[i]
		if buf.own {
			out = a.bufferParts(step.proc+" buffer", buf, region, unrounded, out)
			continue
		}
		bytes := int64(a.rows[buf.name]) * int64(buf.cols) * int64(buf.size)
		name := step.proc + " buffer " + buf.name
		out = append(out, a.intern(problem.Asset{Name: name, Region: region, Bytes: bytes}))
	}
	return out
}

// bufferParts lists the parts of a buffer up to its rows. Uses of a buffer at several sizes share the smaller parts.
func (a *assets) bufferParts(prefix string, buf *buffer, region int, rounded func(bytes int64) int64, out []int) []int {
	from := int64(0)
	for _, level := range a.levels[buf.name] {
		if level > buf.rows {
			break
		}
		to := rounded(int64(level) * int64(buf.cols) * int64(buf.size))
		name := fmt.Sprintf("%s %s to row %d", prefix, buf.name, level)
		out = append(out, a.intern(problem.Asset{Name: name, Region: region, Bytes: to - from}))
		from = to
	}
	return out
}

// unrounded rounds nothing: a processor's own buffers are counted by the byte.
func unrounded(bytes int64) int64 { return bytes }

// packAssets lists the parts of a weight that a step reads: in the region of its processor, in the process, and in the
// form into which the processor's library packs them again.
func (a *assets) packAssets(step *need, use *lower.Use, out []int) ([]int, error) {
	proc := a.procs[step.proc]
	cuts, each := a.cuts[packKey(use)], ""
	if proc.WeightBytes == socs.WeightsPerGraph {
		// Every graph then holds its own weights: assets of different graphs have different names.
		each = " in " + step.graph
	}

	var err error
	region, bounded := a.regions[step.proc]
	if bounded {
		if out, err = a.rangeAssets(step.proc, each, region, use, cuts, 1, out); err != nil {
			return nil, err
		}
	}
	if !a.memory {
		return out, nil
	}

	counted := bounded && use.Owner != "" && each == "" // by the region: its processor alone reads the pack
	if !a.least && !step.table && !counted {
		out, err = a.rangeAssets("memory", "", a.regions[""], use, coarsened(cuts), planir.PageBytes, out)
		if err != nil {
			return nil, err
		}
	}
	if proc.Prepacks && use.Layout != op.RowsLayout {
		return a.rangeAssets("prepacked", "", a.regions[""], use, coarsened(cuts), planir.PageBytes, out)
	}
	return out, nil
}

// rangeAssets lists an asset for every part of a range between two of the cuts.
func (a *assets) rangeAssets(prefix, suffix string, region int, use *lower.Use, cuts []int, unit int64,
	out []int) ([]int, error) {
	key := packKey(use)
	from, found := slices.BinarySearch(cuts, use.N0)
	if !found && !a.least {
		from--
	}

	for ; from < len(cuts)-1; from++ {
		endsWithin := cuts[from] < use.N1 && !a.least
		if cuts[from+1] > use.N1 && !endsWithin {
			break
		}

		bytes, err := a.bytes(key, cuts[from], cuts[from+1], unit)
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("%s %s n%d-%d%s", prefix, key, cuts[from], cuts[from+1], suffix)
		out = append(out, a.intern(problem.Asset{Name: name, Region: region, Bytes: bytes}))
	}
	return out, nil
}

// Which steps lowering joins depends on the choices of neighbours, which no asset can say. So a step counts only
// where no choice joins it: two nodes that may be joined count as one step, whether they are or not.

// joiningProcs returns, for each node, the processors that may join its first step to the only step of the node before.
func joiningProcs(needs [][][]need) []map[string]bool {
	out := []map[string]bool{{}}
	for _, list := range needs {
		ends := map[string]bool{}
		for _, steps := range list {
			if len(steps) == 1 && steps[0].joins {
				ends[steps[0].proc] = true
			}
		}
		out = append(out, ends)
	}
	return out
}

// ofCandidate lists the assets of a candidate's steps, except steps that may be joined to another step that counts.
// These are the first step, which may be joined to the only step of the node before it (ends lists the processors), and
// the last of several, a sum, which may be joined to the first step of the next node.
func (a *assets) ofCandidate(needs []need, ends map[string]bool, name string, repeat int, out []int) []int {
	for i := range needs {
		step := &needs[i]
		isFirst, isSum := i == 0, i > 0 && i == len(needs)-1
		joinsNode := isFirst && ends[step.proc]
		joinsStep := !isFirst && needs[i-1].joins && needs[i-1].proc == step.proc
		if step.joins && (joinsNode || joinsStep || isSum) {
			continue
		}

		kernels := a.procs[step.proc].KernelMemory()
		text := fmt.Sprintf("step %d of %s", i, name)
		if kernels.LibraryBytes > 0 {
			text += " in a library"
		}
		bytes := int64(repeat) * kernels.StepBytes
		out = append(out, a.intern(problem.Asset{Name: text, Region: a.regions[""], Bytes: bytes}))
	}
	return out
}

// maxAtoms is how many parts of one packed copy are distinguished in what a process holds.
const maxAtoms = 8

// coarsened returns a selection of cuts. A range then counts up to the next of them, because a copy is packed whole
// between the ends of its uses.
func coarsened(cuts []int) []int {
	if len(cuts) <= maxAtoms+1 {
		return cuts
	}
	out := make([]int, maxAtoms+1)
	for i := range out {
		out[i] = cuts[i*(len(cuts)-1)/maxAtoms]
	}
	return out
}

// attachAssets gives the choices of an instance's chain the assets that they need.
func (in *instance) attachAssets(chain *problem.Chain, assets *assets, program string) error {
	items := slices.Clone(chain.Items)
	ends := joiningProcs(in.needs)
	for node := range items {
		item := &items[node]
		item.Choices = slices.Clone(item.Choices)
		for choice := range item.Choices {
			var err error
			var list []int
			steps := in.needs[node][in.choiceOfNode(node, choice)]
			for i := range steps {
				if list, err = assets.ofStep(&steps[i], list); err != nil {
					return err
				}
			}
			if assets.pool {
				list = assets.ofCandidate(steps, ends[node], item.Name+"@"+program, in.section.Repeat, list)
			}

			slices.Sort(list)
			item.Choices[choice].Assets = slices.Compact(list)
		}
	}
	chain.Items = items
	return nil
}
