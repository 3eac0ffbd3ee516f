package opencl

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/internal/clapi"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver/opencl/kernel"
)

// builders make the steps of each kind of operator.
var builders = map[op.Kind]func(*builder) error{
	op.Embed:     (*builder).embed,
	op.SelectRow: (*builder).selectRow,
	op.Norm: func(b *builder) error {
		return b.plain("norms", "norm", matrix(b.w[0]), number(b.op.N), float(b.op.Eps))
	},
	op.LayerNorm: func(b *builder) error {
		return b.plain("norms", "layer_norm", matrix(b.w[0]), matrix(b.w[1]), number(b.op.N), float(b.op.Eps))
	},
	op.QuantRows:    (*builder).quantRows,
	op.MatMul:       (*builder).matMul,
	op.Route:        (*builder).route,
	op.ExpertMatMul: (*builder).expertMatMul,
	op.QKNorm:       (*builder).qkNorm,
	op.Rope:         (*builder).rope,
	op.KVAppend:     (*builder).kvAppend,
	op.Attention:    (*builder).attention,
	op.Estimate:     (*builder).estimate,
	op.GLU: func(b *builder) error {
		return b.plain("rows", "glu", number(b.op.N), number(slices.Index(op.Acts, b.op.Act)), number(b.op.Interleave))
	},
	op.Activate: func(b *builder) error {
		return b.plain("rows", "activate", number(b.op.N), number(slices.Index(op.Acts, b.op.Act)))
	},
	op.Clip:    func(b *builder) error { return b.plain("rows", "clip", number(b.op.N), float(b.op.Cap)) },
	op.Softcap: func(b *builder) error { return b.plain("rows", "softcap", number(b.op.N), float(b.op.Cap)) },
	op.Gate:    func(b *builder) error { return b.plain("rows", "gate", number(b.op.N)) },
	op.Add:     func(b *builder) error { return b.plain("rows", "add", number(b.op.N)) },
	op.Combine: func(b *builder) error {
		fan := max(1, b.op.Fan)
		b.op.Fan = 1 // of the results
		return b.plain("rows", "combine", number(b.op.N), number(fan))
	},
	op.Copy: func(b *builder) error {
		from, to := b.e.operands[b.in[0]].value.Type, b.e.operands[b.out[0]].value.Type
		if from != to {
			return fmt.Errorf("copies %s to %s, want one type", from, to)
		}
		return b.plain("rows", fmt.Sprintf("copy%d", from.Bytes()), number(b.op.N), number(0))
	},
}

// plain adds one launch whose arguments begin with the inputs and outputs.
func (b *builder) plain(family, function string, args ...argument) error {
	if !(b.op.Eps >= 0 && b.op.Eps <= math.MaxFloat32) {
		return fmt.Errorf("eps = %v, want a number of at least 0", b.op.Eps)
	}
	made := b.step()
	return b.addLaunch(made, family, function, b.op.N, append(b.values(), args...)...)
}

// values returns the arguments of inputs and outputs.
func (b *builder) values() (list []argument) {
	for _, operand := range slices.Concat(b.in, b.out) {
		list = append(list, b.value(operand))
	}
	return list
}

// embed looks up the rows of a table, or the columns of a packed 8-bit weight.
func (b *builder) embed() error {
	function := "embed_" + string(b.op.Table)
	if b.op.Scheme != "" {
		function = "embed_q8c"
	}
	scale := b.op.Scale
	if scale == 0 {
		scale = 1
	}
	made := b.step()
	ids, table := b.in[0], b.op.K
	made.refused = func(e *executable, row int) error {
		return fmt.Errorf("token id%s is outside the table, want 0..%d", e.id(ids, row), table-1)
	}
	args := append(b.values(), matrix(b.w[0]))
	args = append(append(args, b.note(made)...), number(b.op.N), number(b.op.K), float(scale))
	return b.addLaunch(made, "rows", function, b.op.N, args...)
}

// hostRow returns the first numbers of a row of ids, for a message; nil where the host does not have them any more.
func (e *executable) hostRow(operand, row, count int) []int32 {
	ids := &e.operands[operand]
	if ids.buffer == nil || ids.buffer.host == nil {
		return nil
	}
	at := ids.at + 4*int64(row)*int64(ids.ld)
	end := at + 4*int64(count)
	if end > int64(len(ids.buffer.host)) {
		return nil
	}
	values, err := mem.View[int32](ids.buffer.host[at:end])
	if err != nil {
		return nil
	}
	return values
}

// id returns a token's id for a message, where the host still has it.
func (e *executable) id(operand, row int) string {
	if ids := e.hostRow(operand, row, 1); ids != nil {
		return fmt.Sprintf(" %d", ids[0])
	}
	return ""
}

// ids returns the first id of a token that names no expert, for a message, where the host still has it.
func (e *executable) ids(operand, row, fan, experts int) string {
	for _, id := range e.hostRow(operand, row, fan) {
		if id < 0 || int(id) >= experts {
			return fmt.Sprintf(" %d", id)
		}
	}
	return ""
}

// selectRow copies the row that the call's scalars name; which one is checked before the call is enqueued.
func (b *builder) selectRow() error {
	made := b.step()
	made.selects = true
	variantArgs := append(b.values(), number(b.op.N), dynamic(argSelected))
	return b.addLaunch(made, "rows", "copy4", b.op.N, variantArgs...)
}

var (
	errNotFinite = errors.New("holds NaN or an infinity, which 8-bit rows cannot represent")
	errNotOnGrid = errors.New("holds NaN or an infinity, which no step represents")
	errNotHalf   = errors.New("an activation, a weight or a result is NaN or too large for f16")
)

// quantRows rounds each row to 8 bits, with a scale of its own or the smallest static one that covers it.
func (b *builder) quantRows() error {
	made := b.step()
	made.refused = func(*executable, int) error { return errNotFinite }
	function, args := "quant_rows", b.values()
	if b.op.Static {
		function = "quant_static"
		scales, err := mem.View[float32](b.w[0].Bytes)
		if err != nil {
			return err
		}
		for _, scale := range scales[:max(1, b.op.Scales)] {
			if !(scale > 0 && scale <= math.MaxFloat32) {
				return fmt.Errorf("the static scale is %v, want a positive number", scale)
			}
		}
		args = append(args, matrix(b.w[0]))
	}
	args = append(append(args, b.note(made)...), number(b.op.N))
	if b.op.Static {
		args = append(args, number(max(1, b.op.Scales)))
	}
	return b.addLaunch(made, "norms", function, b.op.N, args...)
}

// maxDotK bounds K of 8-bit products, so that their sums are exact in int32.
const maxDotK = math.MaxInt32 / (127 * 128)

// tileBytes returns the bytes of a tile of the product's weight, after checking that the kernels can count in it.
func (b *builder) tileBytes() (int64, error) {
	operator := &b.op
	if operator.Scheme.QuantisedRows() && operator.K > maxDotK {
		return 0, fmt.Errorf("k = %d of scheme %q, want at most %d", operator.K, operator.Scheme, maxDotK)
	}
	bytes, err := pack.TileBytes(operator.Scheme.Weight(), operator.K)
	if err != nil {
		return 0, err
	}
	if bytes > math.MaxInt32 {
		return 0, fmt.Errorf("k = %d of scheme %q: a tile has %d bytes, want at most %d", operator.K, operator.Scheme,
			bytes, math.MaxInt32)
	}
	return bytes, nil
}

// expertMatMul multiplies each row by the weight of the expert that it is sent to.
func (b *builder) expertMatMul() error {
	operator, family := &b.op, kernel.Experts(b.op.Scheme)
	tileBytes, err := b.tileBytes()
	if err != nil {
		return err
	}
	stride := b.w[0].Stride
	if stride > math.MaxInt32 || stride%4 != 0 {
		return fmt.Errorf("experts lie %d bytes apart, want whole words and at most %d", stride, math.MaxInt32)
	}
	variant, err := b.e.choose(family, "")
	if err != nil {
		return err
	}
	made := b.step()
	ids, experts, sent := b.in[len(b.in)-1], operator.Experts, 0
	made.refused = func(e *executable, row int) error {
		return fmt.Errorf("expert id%s is none, want 0..%d", e.ids(ids, row, max(1, operator.Fan), experts), experts-1)
	}
	perToken := 1
	if operator.Spread {
		perToken = max(1, operator.Fan)
	}
	if operator.Sent > 0 {
		sent = 1
	}
	args := append(b.values(), matrix(b.w[0]), matrix(b.w[0]), number(0))
	args = append(append(args, b.note(made)...), number(operator.K), number(operator.N), number(int(tileBytes)),
		dynamic(argFirst), dynamic(argRows), number(experts), number(max(1, operator.Fan)), number(perToken),
		number(sent),
		number(int(stride)))
	if err := b.launchVariant(made, family, variant, variant.Rows, "matmul", operator.N, args); err != nil {
		return err
	}
	b.add(made)
	return nil
}

// route chooses the experts of each row by its logits.
func (b *builder) route() error {
	made := b.step()
	made.fan = 1 // a row for each token
	made.refused = func(*executable, int) error {
		return errors.New("a router logit is NaN or an infinity, which leaves no order of the experts")
	}
	args := append(b.values(), b.note(made)...)
	args = append(args, number(b.op.Experts), number(b.op.Fan), number(slices.Index(op.Routers, b.op.Router)),
		float(float64(float32(2*b.op.Jitter))))
	return b.addLaunch(made, "rows", "route", 1, args...)
}

// matMul adds a product. If its scheme rounds activations to 16 bits, a step before it does so.
func (b *builder) matMul() error {
	operator := &b.op
	family := kernel.Product(operator.Scheme)
	tileBytes, err := b.tileBytes()
	if err != nil {
		return err
	}
	rounds, bad, steps := operator.Scheme.RoundsResults(), errNotHalf, weight{}
	if operator.Scheme.Grid() {
		bad, steps = errNotOnGrid, b.w[len(b.w)-1]
		if err := checkSteps(steps.Bytes, operator.N); err != nil {
			return err
		}
	}
	if rounds {
		if err := b.rounded(bad, steps); err != nil {
			return err
		}
	}
	made := b.step()
	made.refused = func(*executable, int) error { return bad }
	bias, biased := b.w[0], 0
	if operator.Bias {
		bias, biased = b.w[1], 1
	}
	variant, err := b.e.choose(family, operator.Form.Kernel())
	if err != nil {
		return err
	}
	values := matrix(b.w[0])
	if variant.Image {
		if values.buffer, err = b.image(b.w[0]); err != nil {
			return err
		}
	}
	args := append(b.values(), values, matrix(bias), number(biased))
	args = append(append(args, b.notes(made, rounds)...), number(operator.K), number(operator.N),
		number(int(tileBytes)), dynamic(argFirst), dynamic(argRows))
	if operator.Scheme.Grid() {
		args = append(args, matrix(steps))
	}
	if err := b.launchVariant(made, family, variant, variant.Rows, "matmul", operator.N, args); err != nil {
		return err
	}
	if variant.Few > 0 {
		if err := b.launchVariant(made, family, variant, 1, "matmul", operator.N, args); err != nil {
			return err
		}
	}
	b.add(made)
	return nil
}

// image makes an image of a weight's words, which is closed with the executable.
func (b *builder) image(w weight) (*clapi.Buffer, error) {
	words := int64(len(w.Bytes)) / 4
	if longest := int64(b.e.p.device.features.ImageWords); words > longest {
		return nil, fmt.Errorf("the weight has %d words, and images on this device at most %d", words, longest)
	}
	made, err := b.e.p.device.context.NewImage(w.device, words)
	if err == nil {
		b.e.weights = append(b.e.weights, made)
	}
	return made, err
}

// checkSteps wants one positive step for all activations, and one for all results, each in all columns.
func checkSteps(data []byte, columns int) error {
	steps, err := mem.View[float32](data)
	if err != nil {
		return err
	}

	for i, width := range steps {
		if !(width > 0 && width <= math.MaxFloat32) || width != steps[i/columns*columns] {
			return fmt.Errorf("step %d of column %d is %v, want one positive number for all columns", i/columns,
				i%columns,
				width)
		}
	}
	return nil
}

// rounded makes the step that rounds the activations of the node, to f16 or to the first of steps, and puts its results
// in their place. bad is the error about a row that has no such numbers.
func (b *builder) rounded(bad error, steps weight) error {
	e := b.e
	at, err := e.scratch(4 * int64(b.op.M) * int64(b.op.K))
	if err != nil {
		return err
	}
	rounded := operand{value: op.Value{Name: "rounded", Type: op.F32, Rows: b.op.M, Cols: b.op.K}, input: -1, out: -1,
		temp: at, ld: b.op.K}
	e.operands = append(e.operands, rounded)
	made := b.step()
	made.refused = func(*executable, int) error { return bad }
	args := []argument{b.value(b.in[0]), b.value(len(e.operands) - 1)}
	args = append(append(args, b.note(made)...), number(b.op.K))
	function := "halve"
	if b.op.Scheme.Grid() {
		function, args = "on_grid", append(args, matrix(steps))
	}
	if err := b.launch(made, "norms", function, b.op.K, args...); err != nil {
		return err
	}
	b.add(made)
	b.in[0] = len(e.operands) - 1
	return nil
}

// qkNorm normalises head by head, or jointly all query heads and all key heads.
func (b *builder) qkNorm() error {
	if !(b.op.Eps >= 0 && b.op.Eps <= math.MaxFloat32) {
		return fmt.Errorf("eps = %v, want a number of at least 0", b.op.Eps)
	}
	made, group := b.step(), b.op.Heads/b.op.KVHeads
	args := append(b.values(), matrix(b.w[0]), matrix(b.w[1]), number(group), number(b.op.HeadDim), float(b.op.Eps))
	if !b.op.Joint {
		return b.addLaunch(made, "heads f32", "qk_norm", b.op.KVHeads*(group+2), args...)
	}
	args = append(args, number(b.op.KVHeads))
	if err := b.launch(made, "heads f32", "qk_norm_joint", 1, args...); err != nil {
		return err
	}
	made.launches[0].variant.Grid = kernel.ByRows // an item is a whole row
	b.add(made)
	return nil
}

// rotation is frequencies that depend on the length of the sequence, which the host computes for each call.
type rotation struct {
	op          op.Op
	frequencies []float32
	at, words   int // of the call's notes
}

// fill computes the frequencies of a call: of each row of a batch, or of all rows (see op.Op).
func (r *rotation) fill(e *executable, words []int32, rows int) {
	half := len(r.frequencies)
	if !r.op.Batch {
		rows = 1
	}

	for row := range rows {
		seq, growth := e.Seq(row), 1.0
		if seq > r.op.LongFrom {
			growth = r.op.NTK*float64(seq)/float64(r.op.LongFrom) - (r.op.NTK - 1)
		}
		for i, frequency := range r.frequencies {
			if growth != 1 {
				frequency = float32(float64(frequency) * math.Pow(growth, -float64(i)/float64(half-1)))
			}
			words[row*half+i] = int32(math.Float32bits(frequency))
		}
	}
}

// rope rotates query and key heads by their position.
func (b *builder) rope() error {
	e, operator := b.e, &b.op
	if e.longFrom > 0 && operator.LongFrom > 0 && e.longFrom != operator.LongFrom {
		return fmt.Errorf("rotations change beyond %d positions here and beyond %d elsewhere, want one of them",
			operator.LongFrom, e.longFrom)
	}
	e.longFrom = max(e.longFrom, operator.LongFrom)
	made, group, half := b.step(), operator.Heads/operator.KVHeads, operator.Rotary()/2
	own, each := number(0), 0
	if operator.NTK != 0 && operator.LongFrom > 0 {
		frequencies, err := mem.View[float32](b.w[0].Bytes)
		if err != nil {
			return err
		}
		made.rotation = &rotation{op: *operator, frequencies: frequencies[:half], words: half}
		if operator.Batch {
			made.rotation.words, each = half*operator.M, half
		}
		own = argument{kind: argRotation, turn: made.rotation}
	}
	amplitude, longer := operator.Amplitude, operator.LongAmplitude
	if operator.NTK != 0 {
		longer = amplitude
	}
	if operator.LongFrom == 0 {
		longer, each = amplitude, -1 // another node's limit does not concern it
	}

	for _, factor := range []*float64{&amplitude, &longer} {
		if *factor == 0 {
			*factor = 1
		}
	}
	args := append(b.values(), matrix(b.w[0]), dynamic(argNotes), dynamic(argPlaces), own, number(each), number(group),
		number(operator.HeadDim), number(half), float(amplitude), float(longer))
	return b.addLaunch(made, "heads f32", "rope", operator.KVHeads*(group+2), args...)
}

// kvAppend stores the key and the value of each row and head at the row's position in the cache of its sequence.
func (b *builder) kvAppend() error {
	made, operator := b.step(), &b.op
	b.e.appends = true
	made.refused = func(*executable, int) error {
		return fmt.Errorf("key or value is NaN or too large for the %s cache", operator.KV)
	}
	args := append(b.values(), side(0), side(1))
	args = append(append(args, b.notes(made, operator.KV != op.F32)...), dynamic(argPlaces),
		number(operator.Heads/operator.KVHeads), number(operator.HeadDim), dynamic(argContext), dynamic(argSequence))
	return b.addLaunch(made, "heads "+string(operator.KV), "kv_append", operator.KVHeads, args...)
}

// attention is causal attention of rows on the cache. Where rows are few and positions many, several items share a head
// of a row, and a second kernel joins their sums.
func (b *builder) attention() error {
	made, operator := b.step(), &b.op
	families := kernel.FamiliesOf(operator)
	family := families[len(families)-1]
	variant, err := b.e.choose(family, "")
	if err != nil {
		return err
	}
	scale := operator.Scale
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(operator.HeadDim))
	}
	made.split, made.heads = variant.Items, operator.Heads

	// Rows times heads times parts are at most as many as the items that it is split into.
	at, err := b.e.scratch(4 * int64(max(1, made.split)) * int64(operator.HeadDim+2))
	if err != nil {
		return err
	}
	scratch := argument{kind: argScratch, offset: at}
	args := append(b.values(), side(0), side(1), dynamic(argNotes), dynamic(argPlaces),
		number(operator.Heads/operator.KVHeads), dynamic(argContext), dynamic(argSequence), float(scale),
		float(operator.Cap), number(operator.Window), dynamic(argParts), scratch)
	if err := b.launch(made, family, "attention", operator.Heads, args...); err != nil {
		return err
	}
	join := []argument{b.value(b.out[0]), dynamic(argParts), scratch}
	if err := b.launch(made, family, "attention_join", operator.Heads, join...); err != nil {
		return err
	}
	made.launches[len(made.launches)-1].join = true
	b.add(made)
	return nil
}

// estimate rounds queries and keys with the scales of the call's buckets, and pools their products. Everything but the
// result is in the arena.
func (b *builder) estimate() error {
	exe, operator, made := b.e, &b.op, b.step()
	weight, err := mem.View[float32](b.w[0].Bytes)
	if err != nil {
		return err
	}
	for head := range operator.Heads {
		if _, err := op.SparseHeadOf(weight, head); err != nil {
			return err
		}
	}
	if exe.longest == 0 || operator.Context < exe.longest {
		exe.longest = operator.Context
	}
	made.refused = func(*executable, int) error {
		return errors.New("a query or a cached key is NaN or infinite, which 8 bits cannot represent")
	}
	families := kernel.FamiliesOf(operator)
	family := families[len(families)-1]
	columns := op.RoundUp(operator.HeadDim, 4)
	keyBytes := columns
	if operator.KV == op.Q8 {
		keyBytes += 4 // the scale of each key
	}
	var parts []argument // scales, codes of queries and of keys, tops
	for _, bytes := range []int64{4 * int64(operator.Heads+operator.KVHeads),
		int64(operator.M) * int64(operator.Heads) * int64(columns),
		int64(operator.KVHeads) * int64(operator.Context) * int64(keyBytes),
		4 * int64(operator.M) * int64(operator.Heads)} {
		at, err := exe.scratch(bytes)
		if err != nil {
			return err
		}
		parts = append(parts, argument{kind: argScratch, offset: at})
	}
	scales, queries, keys, tops := parts[0], parts[1], parts[2], parts[3]
	group, input := number(operator.Heads/operator.KVHeads), b.value(b.in[0])
	width, block, window := number(operator.Context), number(operator.Block), number(operator.Window)
	notes, refuses := dynamic(argNotes), b.note(made)
	places, rows, context, sequence := dynamic(argPlaces), dynamic(argRows), dynamic(argContext), dynamic(argSequence)
	for _, launch := range []struct {
		function string
		columns  int
		args     []argument
	}{
		{"estimate_scales", operator.KVHeads, []argument{input, matrix(b.w[0]), side(0), notes, places, rows,
			number(operator.KVHeads), group, context, sequence, block, window, number(operator.Buckets), scales}},
		{"estimate_queries", operator.Heads, slices.Concat([]argument{input}, refuses,
			[]argument{group, scales, queries})},
		{"estimate_keys", operator.KVHeads, slices.Concat([]argument{side(0)}, refuses, []argument{places, rows,
			number(operator.Heads), context, sequence, width, block, window, scales, keys})},
		{"estimate_tops", operator.Heads,
			[]argument{notes, places, rows, group, width, block, window, queries, keys, tops}},
		{"estimate", operator.Heads, []argument{b.value(b.out[0]), notes, places, rows, group, width, block, window,
			scales,
			queries, keys, tops}},
	} {
		if err := b.launch(made, family, launch.function, launch.columns, launch.args...); err != nil {
			return err
		}
	}
	b.add(made)
	return nil
}
