package host

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

// groupMatMul multiplies the rows of each slot by the weight of its expert. A row's result has the same bits as that of
// an ExpertMatMul: both use the same product.
func (b *builder) groupMatMul() (step, error) {
	exe, operator, input, output := b.exe, b.op, b.in[0], b.out[0]
	multiply := make([]product, operator.Experts) // of each slot
	var tileBytes, sums int
	for slot := range multiply {
		one := *b
		one.weights = b.weights[slot : slot+1]
		var err error
		if multiply[slot], tileBytes, sums, err = one.product(); err != nil {
			return step{}, err
		}
	}
	exe.need.sums = max(exe.need.sums, operator.M*sums)
	if operator.Scheme.QuantisedRows() {
		exe.need.scales = max(exe.need.scales, operator.M)
	}
	each, tiles := operator.M/operator.Experts, (operator.N+pack.TileN-1)/pack.TileN
	var rows, tileBlock, perSlot int // of the current call
	return step{
		m: operator.M,
		plan: func(count int) int {
			rows = count
			b.gatherScales(count)
			if sums > 0 {
				exe.proc.set.BlockSums(kernel.Rows(exe.have.sum, sums), input.codes(0), count, operator.K)
			}
			slots := (count + each - 1) / each
			tileBlock = tiles
			if workers := len(exe.proc.cores); workers > 1 {
				tileBlock = min(tiles, max(1, slots*tiles/(workers*tasksPerWorker),
					minTask/(each*operator.K*pack.TileN)))
			}
			perSlot = (tiles + tileBlock - 1) / tileBlock
			return slots * perSlot
		},
		task: func(_, task int) {
			slot, tile := task/perSlot, task%perSlot*tileBlock
			r0, column := slot*each, tile*pack.TileN
			multiply[slot](output.from(r0, column), b.rows(input, r0, r0, sums), tile*tileBytes, nil,
				min(rows-r0, each), min(operator.N-column, tileBlock*pack.TileN))
		},
	}, nil
}

// dispatcher is a Dispatch. It sorts the rows of a call by slot (a counting sort, as experts does), decides which of
// them their slot has room for, and then copies those to the groups. A row is one of the Fan of a token.
type dispatcher struct {
	b               *builder
	exe             *executable
	op              op.Op
	x, ids          *operand
	groups          []*operand
	places, rest    *operand // rest is nil where nothing is computed apart from groups
	slotOf          []int    // by expert, -1: none
	capacity, first []int    // by slot: rows reserved, and the first of them, in the rows of all groups
	groupOf, base   []int    // by slot: its group, and the first row of that in the rows of all groups

	// of the current call
	salience []float64 // by row
	ends     []int     // the rows of a slot are order[ends[slot]:ends[slot+1]]
	order    []int32
	source   []int32 // the token of each row of all groups, -1: none
}

// dispatch adds the steps that measure salience, where rows are dropped by it, and returns the one that copies.
func (b *builder) dispatch() (step, error) {
	operator := b.op
	table, err := mem.View[float32](b.weights[0].Bytes)
	if err != nil {
		return step{}, err
	}
	d := &dispatcher{b: b, exe: b.exe, op: operator, x: b.in[0], ids: b.in[1], slotOf: make([]int, operator.Experts),
		salience: make([]float64, operator.Rows()), order: make([]int32, operator.Rows()),
		source: make([]int32, operator.Groups.Rows())}
	groups := operator.Groups.List()
	d.groups, d.places = b.out[:len(groups)], b.out[len(groups)]
	if operator.Sent > 0 {
		d.rest = b.out[len(groups)+1]
	}
	next := 0
	for i, group := range groups {
		base := next
		for range group.Slots {
			d.first, d.capacity = append(d.first, next), append(d.capacity, group.Rows)
			d.groupOf, d.base = append(d.groupOf, i), append(d.base, base)
			next += group.Rows
		}
	}
	d.ends = make([]int, len(d.first)+1)
	for expert := range d.slotOf {
		d.slotOf[expert] = -1
	}
	for slot, expert := range table[:len(d.first)] {
		at := int(expert)
		if float32(at) != expert || at < 0 || at >= operator.Experts || d.slotOf[at] >= 0 {
			return step{}, fmt.Errorf("slot %d has expert %v, want each of 0..%d at most once", slot, expert,
				operator.Experts-1)
		}
		d.slotOf[at] = slot
	}
	if operator.Salience != "" {
		b.before = append(b.before, b.exe.chain([]step{b.byRows(2*max(operator.K, operator.Fan), d.measure)}))
		b.before[0].rows = nil // what follows reads the rows of all tokens
	}
	var block int // rows of a task
	return step{
		m: operator.M,
		plan: func(tokens int) int {
			if !d.place(tokens) {
				return 0
			}
			block = max(1, minTask/operator.N)
			return (len(d.source) + block - 1) / block
		},
		task:    func(_, task int) { d.copy(task*block, min(len(d.source), (task+1)*block)) },
		refused: d.refused,
	}, nil
}

// measure computes the salience of the rows of tokens [from,to).
func (d *dispatcher) measure(_, from, to int) {
	for token := from; token < to; token++ {
		rows := d.salience[token*d.op.Fan:][:d.op.Fan]
		if d.op.Salience == op.SalienceRandom {
			for i := range rows {
				rows[i] = float64(op.RandomSalience(token*d.op.Fan + i))
			}
			continue
		}
		values := d.b.in[2].f32[token*d.b.in[2].ld:][:d.op.K]
		if d.op.Salience == op.SalienceWeight {
			for i, weight := range values {
				rows[i] = float64(weight)
			}
			continue
		}
		sum := 0.0 // the squared norm, which all rows of a token have
		for _, value := range values {
			sum += float64(value) * float64(value)
		}
		for i := range rows {
			rows[i] = sum
		}
	}
}

// place sorts the rows of the call by slot and finds the place of each. It returns false where an id names no expert.
func (d *dispatcher) place(tokens int) bool {
	clear(d.ends)
	for row := range tokens * d.op.Fan {
		expert := d.expert(row)
		if expert < 0 || expert >= d.op.Experts {
			d.exe.refuse(row / d.op.Fan)
			return false
		}
		d.set(d.places, row, -1)
		slot := d.slotOf[expert]
		d.set(d.rest, row, expert)
		if slot >= 0 {
			d.ends[slot+1]++
		}
	}
	for slot := range d.first {
		d.ends[slot+1] += d.ends[slot]
	}
	for row := range tokens * d.op.Fan { // ends[slot] moves from the begin of the slot to its end
		if slot := d.slotOf[d.expert(row)]; slot >= 0 {
			d.order[d.ends[slot]] = int32(row)
			d.ends[slot]++
		}
	}
	copy(d.ends[1:], d.ends)
	d.ends[0] = 0
	for i := range d.source {
		d.source[i] = -1
	}
	for slot, capacity := range d.capacity {
		d.fill(slot, d.order[d.ends[slot]:d.ends[slot+1]], capacity)
	}
	return true
}

// fill gives rows their places in a slot: the first ones, or the most salient. Those that are left over
// stay among the rest, or are dropped.
func (d *dispatcher) fill(slot int, rows []int32, capacity int) {
	if len(rows) > capacity && d.op.Salience != "" {
		slices.SortFunc(rows, func(a, b int32) int {
			return cmp.Or(cmp.Compare(d.salience[b], d.salience[a]), cmp.Compare(a, b))
		})
		for _, row := range rows[capacity:] {
			d.set(d.rest, int(row), -1)
		}
		slices.Sort(rows[:capacity])
	}
	for i, row := range rows[:min(len(rows), capacity)] {
		at := d.first[slot] + i
		d.set(d.places, int(row), at)
		d.set(d.rest, int(row), -1)
		d.source[at] = row / int32(d.op.Fan)
	}
}

// expert returns the expert that a row is sent to.
func (d *dispatcher) expert(row int) int { return int(d.ids.i32[row/d.op.Fan*d.ids.ld+row%d.op.Fan]) }

// set writes the number of a row, nothing where the operand does not exist.
func (d *dispatcher) set(to *operand, row, value int) {
	if to != nil {
		to.i32[row/d.op.Fan*to.ld+row%d.op.Fan] = int32(value)
	}
}

// copy fills rows [from,to) of all groups.
func (d *dispatcher) copy(from, to int) {
	slot := sort.SearchInts(d.first, from+1) - 1 // the one that row from belongs to
	for at := from; at < to; at++ {
		if at == d.first[slot]+d.capacity[slot] {
			slot++
		}
		group := d.groups[d.groupOf[slot]]
		row := group.f32[(at-d.base[slot])*group.ld:][:d.op.N]
		if token := int(d.source[at]); token >= 0 {
			copy(row, d.x.f32[token*d.x.ld:][:d.op.N])
		} else {
			clear(row)
		}
	}
}

// refused returns the error about a token that names no expert.
func (d *dispatcher) refused(token int) error {
	for _, id := range d.ids.i32[token*d.ids.ld:][:d.op.Fan] {
		if id < 0 || int(id) >= d.op.Experts {
			return fmt.Errorf("expert id %d, want 0..%d", id, d.op.Experts-1)
		}
	}
	panic("BUG: row refused without a bad expert id")
}

// collect gathers the rows of a token's experts, wherever they are, and sums them with the kernel of Combine, so that
// the result has the same bits as if no group had computed any.
func (b *builder) collect() step {
	operator := b.op
	count := len(operator.Groups.List())
	c := collector{
		exe: b.exe, fan: operator.Fan, columns: operator.N, most: operator.Groups.Rows(), groups: b.in[:count],
		output: b.out[0],
	}
	others := b.in[count:]
	if operator.Sent > 0 {
		c.rest, others = others[0], others[1:]
	}
	c.places, c.weights = others[0], others[1]
	c.exe.need.local = max(c.exe.need.local, c.fan*c.columns)
	step := b.byRows(3*c.fan*c.columns, func(worker, r0, r1 int) {
		for token := r0; token < r1; token++ {
			if !c.valid(token) {
				c.exe.refuse(token)
				return
			}
			c.sum(worker, token)
		}
	})
	step.refused = func(int) error {
		return fmt.Errorf("a row has a place beyond the %d rows of the groups", c.most)
	}
	return step
}

// collector is the step collect: places are where the rows of a token's experts are, counted over all groups. A negative
// place is a row that no group computed; rest, if any, has what was computed of it.
type collector struct {
	exe                     *executable
	fan, columns, most      int // rows of a token, columns of a row, rows of all groups
	groups                  []*operand
	rest                    *operand
	places, weights, output *operand
}

// valid reports whether the groups have the rows of a token.
func (c *collector) valid(token int) bool {
	for _, at := range c.places.i32[token*c.places.ld:][:c.fan] {
		if int(at) >= c.most {
			return false
		}
	}
	return true
}

// sum sums the weighted rows of a token. What was not computed counts as zero.
func (c *collector) sum(worker, token int) {
	gathered := c.exe.have.mine(worker)[:c.fan*c.columns]
	for i := range c.fan {
		to := gathered[i*c.columns:][:c.columns]
		if from := c.computed(token, i); from != nil {
			copy(to, from)
		} else {
			clear(to)
		}
	}
	c.exe.proc.set.Combine(c.output.from(token, 0), kernel.Rows(gathered, c.columns), c.weights.from(token, 0),
		1, c.fan, c.columns)
}

// computed is what was computed of a row of a token, nil: nothing.
func (c *collector) computed(token, i int) []float32 {
	at := int(c.places.i32[token*c.places.ld+i])
	if at < 0 {
		if c.rest == nil {
			return nil
		}
		return c.rest.f32[(token*c.fan+i)*c.rest.ld:][:c.columns]
	}
	for _, group := range c.groups {
		if at < group.value.Rows {
			return group.f32[at*group.ld:][:c.columns]
		}
		at -= group.value.Rows
	}
	return nil
}
