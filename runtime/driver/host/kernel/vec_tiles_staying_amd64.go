package kernel

// Products of packed rows with 8-bit weights that stay in tiles (see gen/amx_staying.go): the sums of a pass and a tile of
// the weight wait in memory, as integers, until all of k is multiplied.
const (
	stayK    = 2 * tileK        // k of a step
	stayRows = tilePass / 2     // the least rows of a pass, because each step loads its weights anew
	stayAsk  = tileRows / 2     // the last steps, which ask for the room for results: two rows in each group
	staySums = tileRows * TileN // sums of a group
)

// stay multiplies with whole tiles of the weight, those of the first columns, a part of k after the other: what is
// requantised of a tile stays in the second-level cache until it is multiplied.
func (p *tileProduct) stay(columns int) {
	groups, rows := tileGroups(p.count)
	for j := 0; j < columns; j += TileN {
		clear(p.sums[:groups*staySums])
		for part := (tileSpan{}); part.pos < p.x.K; part.pos += part.k {
			part.k = min(tilePart, p.x.K-part.pos)
			p.weight.use(j, part, p.x.K)
			from, to := part.pos/stayK, (part.pos+part.k)/stayK
			last := to // the first step that asks for the room for results
			if part.pos+part.k == p.x.K {
				last = max(from, to-stayAsk)
			}
			if from < last {
				p.steps(j, from, last, 0)
			}
			if last < to {
				p.steps(j, last, to, 4*p.y.Stride)
			}
		}

		scales := p.weight.scales(j)
		for row := 0; row < p.count; row += rows {
			q8cScaleAMX(min(rows, p.count-row), p.y.at(p.first+row, j), 4*p.y.Stride, &p.sums[row/rows*staySums],
				&p.x.Scale[p.first+row], &scales[0])
		}
	}
}

// steps adds the products of steps from..to-1 of the tile that begins at column j to the sums of the pass. The room for
// results is asked for, ldy bytes from row to row, or only that for the first row if ldy is 0.
func (p *tileProduct) steps(j, from, to, ldy int) {
	const weights = stayK * TileN // bytes of a step
	groups, rows := tileGroups(p.count)
	config := shapeStaying(rows, tileK)
	tile := tileK * p.count // bytes of a tile of all rows
	q8cStayingAMX(&config[0], groups, &p.x.Bytes[p.first*p.padded+2*from*tile], tileK*rows, tile, 2*tile,
		p.weight.from(j, from*stayK), to-from, &p.room[0], &p.sums[0], &p.room[2*staySums], p.weight.next(j, from*stayK),
		min(weights/groups, 4*cacheLine), p.y.at(p.first, j), ldy)
}
