package op

// scaling says what the time of a kind depends on: on three numbers that its latency curves run over, and on what
// tells one curve from another.
type scaling struct {
	// pattern has the fields of an operator that tell curves apart, and no others. Heads of a pattern are the query
	// heads of one key head.
	pattern func(o Op) Op
	extent  func(o Op) (rows, along, across int)
	at      func(pattern Op, along, across int) Op // the pattern with its size
}

// byProduct is for [M,K] x [K,N].
func byProduct(pattern func(o Op) Op) scaling {
	return scaling{
		pattern: pattern,
		extent:  func(o Op) (rows, along, across int) { return o.M, o.K, o.N },
		at: func(o Op, along, across int) Op {
			o.K, o.N = along, across
			return o
		},
	}
}

// byExpertProduct is byProduct for the rows that are expected to be sent to an expert.
var byExpertProduct = scaling{
	pattern: func(o Op) Op { return Op{Scheme: o.Scheme, Experts: o.Experts, Fan: o.Fan, Spread: o.Spread} },
	extent:  func(o Op) (rows, along, across int) { return o.asSent().M, o.K, o.N },
	at: func(o Op, along, across int) Op {
		o.K, o.N = along, across
		return o
	},
}

// byGroups is for rows that move to and from the slots of experts: each of the M*Fan rows moves once, whatever the
// groups are.
var byGroups = scaling{
	pattern: func(o Op) Op { return Op{Fan: o.Fan, Experts: o.Experts} },
	extent:  func(o Op) (rows, along, across int) { return o.M, 0, o.N },
	at: func(o Op, _, across int) Op { // one slot for each expert of a token, with room for all rows
		o.N, o.Groups, o.Sent = across, GroupsOf([]Group{{o.Fan, o.M}}), 1
		return o
	},
}

// byRows is for [M*Fan,N]: rows of a token's experts are rows like others, and nothing else tells curves apart.
var byRows = scaling{pattern: func(Op) Op { return Op{} }, extent: rowsOfN, at: withN}

// byTokens is for what has rows of several experts for each token.
var byTokens = scaling{
	pattern: func(o Op) Op { return Op{Fan: o.Fan} },
	extent:  func(o Op) (rows, along, across int) { return o.M, 0, o.N },
	at:      withN,
}

// byAct is byRows for activation functions.
var byAct = scaling{pattern: actPattern, extent: rowsOfN, at: withN}

// byGLU is byAct; how gate and up are interleaved does not change the time.
var byGLU = scaling{pattern: actPattern, extent: rowsOfN, at: func(o Op, _, across int) Op {
	o.N, o.Interleave = across, across
	return o
}}

// byRowsOfAnyCap is byRows for bounds: what the bound is does not change the time.
var byRowsOfAnyCap = scaling{pattern: func(Op) Op { return Op{} }, extent: rowsOfN, at: func(o Op, _, across int) Op {
	o.N, o.Cap = across, 1
	return o
}}

// byExperts is for the choice among experts.
var byExperts = scaling{
	pattern: func(o Op) Op { return Op{Router: o.Router, Fan: o.Fan} },
	extent:  func(o Op) (rows, along, across int) { return o.M, 0, o.Experts },
	at: func(o Op, _, across int) Op {
		o.Experts = across
		return o
	},
}

// byHeads is for the query and key heads of a fused QKV row.
func byHeads(pattern func(o Op) Op) scaling {
	return scaling{
		pattern: func(o Op) Op {
			made := pattern(o)
			made.HeadDim, made.Heads = o.HeadDim, o.Heads/max(1, o.KVHeads)
			return made
		},
		extent: func(o Op) (rows, along, across int) { return o.M, 0, o.KVHeads },
		at:     withHeads,
	}
}

// byKeyHeads is for its key and value heads alone.
var byKeyHeads = scaling{
	pattern: func(o Op) Op { return Op{HeadDim: o.HeadDim, KV: o.KV} },
	extent:  func(o Op) (rows, along, across int) { return o.M, 0, o.KVHeads },
	at: func(o Op, _, across int) Op {
		o.KVHeads = across
		return o
	},
}

// byContext is that by heads, along the cached positions. How large a bound of scores is does not change the time, and
// to choose among buckets, or to have the rest of the positions count, takes little of it.
var byContext = scaling{
	pattern: func(o Op) Op {
		made := Op{HeadDim: o.HeadDim, Heads: o.Heads / max(1, o.KVHeads), KV: o.KV, Window: o.Window, Batch: o.Batch,
			Block: o.Block, Density: o.Density}
		if o.Cap > 0 {
			made.Cap = 1
		}
		return made
	},
	extent: func(o Op) (rows, along, across int) { return o.M, max(o.Context, o.M), o.KVHeads },
	at: func(o Op, along, across int) Op {
		o.Context = along
		return withHeads(o, along, across)
	},
}

// actPattern returns the pattern of activation functions: the function alone.
func actPattern(o Op) Op { return Op{Act: o.Act} }

// rowsOfN returns the extent of [M*Fan,N], which reduces nothing.
func rowsOfN(o Op) (rows, along, across int) { return o.Rows(), 0, o.N }

// withN gives a pattern its columns.
func withN(o Op, _, across int) Op {
	o.N = across
	return o
}

// withHeads gives a pattern its key heads, and as many query heads for each as the pattern says.
func withHeads(o Op, _, across int) Op {
	o.KVHeads, o.Heads = across, across*o.Heads
	return o
}

// rotated returns the pattern of rotations: the elements that are rotated, where they are not all.
func rotated(o Op) Op {
	if o.RotaryDim == o.HeadDim {
		return Op{}
	}
	return Op{RotaryDim: o.RotaryDim}
}

// Extent returns the position of an operator on the latency curves of its pattern: its rows, the length that it reduces
// over (K of a product, the cached positions of an attention, else 0), and its width (columns, key heads or experts).
func (o Op) Extent() (rows, along, across int) {
	if kind := rowOf[o.Kind]; kind != nil {
		return kind.scaling.extent(o)
	}
	return o.M, 0, o.N
}

// Pattern returns what operators with common latency curves share: the operator with those fields alone that tell
// curves apart. Heads of a pattern are the query heads of one key head. Scaled makes an operator of it.
func (o Op) Pattern() Op {
	var pattern Op
	if kind := rowOf[o.Kind]; kind != nil {
		pattern = kind.scaling.pattern(o)
	}
	pattern.Kind = o.Kind
	return pattern
}

// Scaled returns the operator of a pattern at an extent.
func (o Op) Scaled(rows, along, across int) Op {
	o.M = rows
	if kind := rowOf[o.Kind]; kind != nil {
		return kind.scaling.at(o, along, across)
	}
	return o
}
