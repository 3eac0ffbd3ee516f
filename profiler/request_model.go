package profiler

import (
	"slices"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/socs"
)

// addModel adds the operators of the graph, at row counts that a plan uses and at others between them.
func (b *builder) addModel(graph *models.Graph, rows, between []int) {
	for i := range graph.Sections {
		section := &graph.Sections[i]
		b.addGated(section, rows)
		for j := range section.Nodes {
			node := &section.Nodes[j]
			single := slices.ContainsFunc(section.Values, func(value models.Value) bool {
				return value.Rows1 && slices.Contains(node.Out, value.Name)
			})
			at, more := rows, between
			if single {
				at, more = []int{1}, nil
			}

			for _, operator := range node.Ops {
				if operator.Kind == op.SelectRow {
					at, more = rows, nil
				}
				b.template(operator, b.schemesOf(node), at, more)
				if node.Packed == "" {
					continue
				}

				// An embedding that shares its weight with the head may be read from the head's packed weight.
				for _, table := range b.tables() {
					operator.Scheme, operator.Table = table, ""
					b.template(operator, nil, at, more)
				}
			}
		}
	}
}

// addGated adds products together with the gated linear units that take their results, on processors that join them.
func (b *builder) addGated(section *models.Section, rows []int) {
	for i := range section.Nodes {
		product := &section.Nodes[i]
		for j := range section.Nodes {
			unit := &section.Nodes[j]
			if len(product.Ops) != 1 || len(unit.Ops) != 1 || !slices.Equal(unit.In, product.Out) {
				continue
			}
			for _, proc := range b.procs {
				for _, count := range rows {
					b.addGatedProduct(proc, product, unit.Ops[0], count)
				}
			}
		}
	}
}

// addGatedProduct adds a product that ends with a gated linear unit, in all schemes. It is measured in the same rounds
// as the product alone, of whose time it becomes a share.
func (b *builder) addGatedProduct(proc *socs.Processor, product *models.Node, unit op.Op, rows int) {
	operator := product.Ops[0]
	operator.M, unit.M = rows, rows
	eachScheme(operator, b.schemesOf(product), func(operator op.Op) {
		what, ok := b.measurement(proc, operator)
		if ok && proc.FusesGLU && proc.Executes(op.GLU) && operator.GatedBy(&unit) {
			what.GLU = &unit
			b.add(priorityBase, what)
		}
	})
}

// tables returns the schemes of an embedding that looks rows up in a weight of one of the schemes, each once.
func (b *builder) tables() (out []op.Scheme) {
	for _, scheme := range b.schemes {
		if table := scheme.Table(); table != "" && !slices.Contains(out, table) {
			out = append(out, table)
		}
	}
	return out
}

// halfEstimated is a share of query heads with estimated scores; the others attend without an estimate.
const halfEstimated = 0.5

// addSparse adds the parts of a sparse attention, in the shapes of the dense one.
func (b *builder) addSparse(graph *models.Graph, sparsity op.Sparsity) {
	graph = new(graph.Sparse(sparsity))
	for i := range graph.Sections {
		for j := range graph.Sections[i].Nodes {
			for _, operator := range graph.Sections[i].Nodes[j].Ops {
				if operator.Block > 0 {
					b.template(operator, nil, b.rows(), b.between())
				}
			}
		}
	}
}

// schemesOf returns the schemes in which a node's matrix is measured.
func (b *builder) schemesOf(node *models.Node) []op.Scheme {
	if node.Exact {
		return []op.Scheme{op.A32W32}
	}
	return b.schemes
}

// template adds an operator at every row count: a matrix in all schemes, an operator on the cache with all its types.
func (b *builder) template(operator op.Op, schemes []op.Scheme, rows, between []int) {
	if !operator.Kind.Has("kv") {
		b.atRows(operator, schemes, rows, between)
		return
	}
	for _, operator.KV = range b.caches {
		b.atRows(operator, schemes, rows, between)
	}
}

// atRows adds an operator with one type of cache at the row counts that a plan uses, and at those between them.
func (b *builder) atRows(operator op.Op, schemes []op.Scheme, rows, between []int) {
	for _, proc := range b.procs {
		for _, count := range rows {
			operator.M = count
			switch {
			case operator.HasScheme():
				b.addMatrix(proc, operator, schemes)
				b.addOutliers(proc, operator)
			case operator.Kind.Has("context"):
				b.addAttention(proc, operator)
			default:
				b.addGlue(proc, operator)
			}
		}

		for _, count := range between {
			operator.M = count
			b.addBetween(proc, operator, schemes)
		}
	}

	if operator.HasScheme() {
		b.addPairs(operator, schemes, rows)
	}
}

// addBetween adds an operator at a row count between those that a plan uses.
func (b *builder) addBetween(proc *socs.Processor, operator op.Op, schemes []op.Scheme) {
	if operator.HasScheme() {
		eachScheme(operator, schemes, func(operator op.Op) {
			b.addOp(priorityBetween, proc, operator)
			b.addForms(priorityBetween, proc, operator, false, true)
		})
		return
	}

	// The time is nearly linear in M, so that two points suffice to find where the line bends.
	if operator.M != 16 && operator.M != 96 {
		return
	}

	operator.Context = 0
	if operator.Kind.Has("context") {
		operator.Context = operator.M
	}
	b.addOp(priorityBetween, proc, operator)
}

// eachScheme visits an operator in every scheme.
func eachScheme(operator op.Op, schemes []op.Scheme, visit func(op.Op)) {
	for _, scheme := range schemes {
		operator.Scheme = scheme
		visit(operator)
	}
}

// addMatrix adds a weight at one row count that a plan uses: whole, and the operators that come with
// it. At M = 1 and at the largest bucket it also adds parts: along N down to one tile, and along K
// where the weight is one matrix.
func (b *builder) addMatrix(proc *socs.Processor, operator op.Op, schemes []op.Scheme) {
	eachScheme(operator, schemes, func(operator op.Op) {
		b.addOp(priorityBase, proc, operator)
		b.addForms(priorityShards, proc, operator, true, true)
		fan := 0 // rows of the result per token
		if operator.Fan > 1 {
			fan = operator.Fan
		}
		if operator.Scheme.QuantisedRows() {
			quant := op.Op{Kind: op.QuantRows, M: operator.M, N: operator.K, Fan: fan}
			if operator.Spread {
				quant.Fan = 0
			}
			b.addOp(priorityGlue, proc, quant)
		}

		// Parts are gathered by a copy where outputs cannot be strided.
		half := part(operator.N, 1, 2, proc.Tile.N)
		b.addOp(priorityGlue, proc, op.Op{Kind: op.Copy, M: operator.M, N: half, Fan: fan})
		often := operator.M == 1 || operator.M == b.largest()
		shard := func(operator op.Op) {
			if often {
				b.addOp(priorityShards, proc, operator)
			}
			b.addForms(priorityShards, proc, operator, false, often)
		}

		// The last part is one tile, because the time of few columns does not follow from that of many.
		for _, quarter := range []int{2, 1, 3, 0} {
			quarterOf := operator
			quarterOf.N = part(operator.N, quarter, 4, proc.Tile.N)
			shard(quarterOf)
		}

		// Results on a grid have no partial sums.
		if operator.Kind != op.MatMul || operator.Scheme.Grid() {
			return
		}

		partial := operator
		partial.K = part(operator.K, 1, 2, proc.Tile.K)
		shard(partial)
		if operator.Bias {
			// The first part adds the bias, the others do not.
			operator.Bias, partial.Bias = false, false
			shard(operator)
			shard(partial)
		}
	})
}

// addOutliers adds the operators that follow a product with shadow outliers: the product of the values beyond its
// scale, whole and in halves, also with few channels, and the addition.
func (b *builder) addOutliers(proc *socs.Processor, operator op.Op) {
	if !b.shadow || operator.Kind != op.MatMul {
		return
	}

	for _, cols := range []int{operator.N, part(operator.N, 1, 2, proc.Tile.N)} {
		b.addOp(priorityGlue, proc, op.Op{Kind: op.OutlierMatMul, M: operator.M, K: operator.K, N: cols,
			Scheme: op.A32W16})
		b.addOp(priorityGlue, proc, op.Op{Kind: op.Add, M: operator.M, N: cols})
	}

	if operator.K > op.FewChannels {
		b.addOp(priorityGlue, proc, op.Op{Kind: op.OutlierMatMul, M: operator.M, K: operator.K, N: operator.N,
			Scheme: op.A32W16, Channels: op.FewChannels})
	}
}

// addForms adds a product in the other forms that the processor has.
//
// A convolution is added as its squarest image; with all, every factorisation of the rows (llm.npu sec. 4) follows at
// low priority. Without others only images are added, because the time of an image does not follow from those of other
// row counts. A form that only static schemes have is measured in one of them.
func (b *builder) addForms(priority int, proc *socs.Processor, operator op.Op, all, others bool) {
	if operator.Kind != op.MatMul {
		return
	}
	var asked []op.Form
	for _, scheme := range operator.Scheme.Alike() {
		if scheme != operator.Scheme && !slices.Contains(b.static, scheme) {
			continue
		}

		for _, form := range op.FormsOf(operator.M, proc.Forms[scheme]) {
			if slices.Contains(asked, form) {
				continue
			}
			at := priority
			if form.Class() != op.Conv {
				if !others {
					continue
				}
			} else if form != op.Squarest(operator.M) {
				if !all {
					continue
				}
				at = priorityBetween
			}

			formed := operator
			formed.Scheme, formed.Form = scheme, form
			b.addOp(at, proc, formed)
			asked = append(asked, form)
		}
	}
}

// expertRows are the row counts at which single experts are measured.
var expertRows = []int{1, 16, 32, 64, 128, 256, 512, 1024}

// addExperts adds single experts where the SoC has a processor of static shapes: on such processors,
// and on the control processor, which executes the rows beyond their capacities (solver.PoseTiers).
func (b *builder) addExperts(model *models.Model) {
	static := func(proc *socs.Processor) bool { return proc.StaticShapes }
	if model.Experts == 0 || !slices.ContainsFunc(b.procs, static) {
		return
	}

	for _, proc := range b.procs {
		if !proc.StaticShapes && proc.Name != b.soc.Control {
			continue
		}

		for _, rows := range expertRows {
			for _, operator := range model.ExpertOps(rows) {
				if operator.Kind != op.MatMul {
					b.addOp(priorityShards, proc, operator)
					continue
				}

				for _, scheme := range b.schemes {
					operator.Scheme = scheme
					b.addOp(priorityShards, proc, operator)
					b.addForms(priorityShards, proc, operator, false, true)
					if scheme.QuantisedRows() {
						b.addOp(priorityShards, proc, scheme.QuantRows(rows, operator.K, 1))
					}
				}
			}
		}
	}
}

// Half returns the half of columns that processors are measured with side by side: a multiple of their
// tile.
func Half(columns, tile int) int { return part(columns, 1, 2, tile) }

// part returns num/den of whole, rounded down to a multiple of tile: at least one tile, at most whole.
func part(whole, num, den, tile int) int {
	tile = max(tile, 1)
	size := whole * num / den / tile * tile
	return min(max(size, tile), whole)
}

// addAttention adds attention of M rows over contexts that grow by a factor of 4, with all heads and
// with half of the key/value heads.
func (b *builder) addAttention(proc *socs.Processor, operator op.Op) {
	contexts := []int{operator.M}
	most := b.context
	if operator.Window > 0 && operator.Window < most {
		// Beyond the window one point suffices, to see whether the time stays the same.
		most = operator.Window
	}
	for context := 64; context < most; context *= 4 {
		contexts = append(contexts, context)
	}
	contexts = append(contexts, most, b.context)
	for _, context := range contexts {
		if context < operator.M {
			continue
		}
		operator.Context = context
		b.addOp(priorityGlue, proc, operator)
		for part := operator; part.KVHeads > 1; {
			part.KVHeads /= 2
			part.Heads = operator.Heads / operator.KVHeads * part.KVHeads
			b.addOp(priorityShards, proc, part)
			// Only sparse attention has launches of fewer heads than half.
			if operator.Block == 0 {
				break
			}
		}
	}
}

// addGlue adds an operator between the matrices, whole and halved in the way plans divide it.
func (b *builder) addGlue(proc *socs.Processor, operator op.Op) {
	b.addOp(priorityGlue, proc, operator)
	half := operator
	switch {
	case operator.Kind == op.Add:
		// An addition only reads and writes, so that half of the columns take half of the time.
		return
	case operator.Kind.ByColumns():
		half.N = part(operator.N, 1, 2, operator.ColumnUnit(proc.Tile.N))
	case operator.Kind.Has("kv_heads"):
		if operator.KVHeads < 2 || operator.Joint {
			return
		}
		half.KVHeads = operator.KVHeads / 2
		half.Heads = operator.Heads / operator.KVHeads * half.KVHeads
	default:
		return
	}

	b.addOp(priorityShards, proc, half)
}

// addPairs adds both halves of a weight on two processors at the same time: at M = 1, where they
// compete for memory, and at the largest row count.
func (b *builder) addPairs(operator op.Op, schemes []op.Scheme, rows []int) {
	at := []int{1}
	if last := rows[len(rows)-1]; last != 1 {
		at = append(at, last)
	}

	for _, proc := range b.procs {
		for _, other := range b.procs {
			if proc == other || b.soc.Concurrent(proc.Name, other.Name) != nil {
				continue
			}
			eachScheme(operator, schemes, func(operator op.Op) {
				for _, count := range at {
					operator.M = count
					mine, theirs := operator, operator
					mine.N, theirs.N = Half(operator.N, proc.Tile.N), Half(operator.N, other.Tile.N)
					own, ok1 := b.measurement(proc, mine)
					company, ok2 := b.measurement(other, theirs)
					if ok1 && ok2 {
						own.Concurrent = []record.Partner{{Proc: other.Name, Op: company.Op, Layout: company.Layout,
							Cold: company.Cold}}
						b.add(priorityShards, own)
					}
				}
			})
		}
	}
}
