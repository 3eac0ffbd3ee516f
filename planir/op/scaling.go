package op

// scaling says what the time of a kind depends on: on three numbers that its latency curves run over, and on the
// fields that tell one curve from another.
type scaling struct {
	pattern []string // fields of Op that tell curves apart
	grouped bool     // by heads: so does the number of query heads per key head
	extent  func(o Op) (rows, along, across int)
	at      func(o *Op, along, across int) // sets along and across in a pattern
}

// byProduct is for [M,K] x [K,N].
func byProduct(pattern ...string) scaling {
	return scaling{
		pattern: pattern,
		extent:  func(operator Op) (rows, along, across int) { return operator.M, operator.K, operator.N },
		at:      func(operator *Op, along, across int) { operator.K, operator.N = along, across },
	}
}

// byRows is for [M*Fan,N]: rows of a token's experts are rows like others.
func byRows(pattern ...string) scaling {
	return scaling{
		pattern: pattern,
		extent:  func(operator Op) (rows, along, across int) { return operator.Rows(), 0, operator.N },
		at:      func(operator *Op, _, across int) { operator.N = across },
	}
}

// byRowsOfAnyCap is for bounds: what the bound is does not change the time.
var byRowsOfAnyCap = scaling{
	extent: func(o Op) (rows, along, across int) { return o.Rows(), 0, o.N },
	at:     func(o *Op, _, across int) { o.N, o.Cap = across, 1 },
}

// byHeads is for the heads of a fused QKV row. Heads of a pattern are those of one key head.
func byHeads(pattern ...string) scaling {
	return scaling{
		pattern: append(pattern, "head_dim"), grouped: true,
		extent: func(operator Op) (rows, along, across int) { return operator.M, 0, operator.KVHeads },
		at:     func(operator *Op, _, across int) { operator.KVHeads, operator.Heads = across, across*operator.Heads },
	}
}

// attentionScaling is that by heads, along the cached positions.
var attentionScaling = scaling{
	pattern: []string{"head_dim", "kv", "window", "cap", "batch"}, grouped: true,
	extent: func(o Op) (rows, along, across int) { return o.M, max(o.Context, o.M), o.KVHeads },
	at: func(o *Op, along, across int) {
		o.KVHeads, o.Heads, o.Context = across, across*o.Heads, along
	},
}

// Extent is the position of an operator on the latency curves of its pattern: its rows, the length that it reduces
// over (K of a product, the cached positions of an attention, else 0), and its width (columns, key heads or experts).
func (o Op) Extent() (rows, along, across int) {
	if kind := rowOf[o.Kind]; kind != nil {
		return kind.scaling.extent(o)
	}
	return o.M, 0, o.N
}

// Pattern is what operators with common latency curves share: the operator with those fields alone that tell curves
// apart. Heads of a pattern are the query heads for each key head. Scaled makes an operator of it.
func (o Op) Pattern() Op {
	pattern := Op{Kind: o.Kind}
	kind := rowOf[o.Kind]
	if kind == nil {
		return pattern
	}
	for _, name := range kind.scaling.pattern {
		fields[name].copy(&pattern, &o)
	}
	if pattern.RotaryDim == o.HeadDim {
		pattern.RotaryDim = 0 // its default, written out
	}
	if pattern.Cap > 0 {
		pattern.Cap = 1 // how large it is does not change the time
	}
	if kind.scaling.grouped {
		pattern.Heads = o.Heads / max(1, o.KVHeads)
	}
	return pattern
}

// Scaled is the operator of a pattern at an extent.
func (o Op) Scaled(rows, along, across int) Op {
	o.M = rows
	if kind := rowOf[o.Kind]; kind != nil {
		kind.scaling.at(&o, along, across)
	}
	return o
}
