package quality

import (
	"cmp"
	"slices"

	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/runtime/executor"
)

// Exceeding counts, in executions in float32 on one lane, how many channels of what enters a matrix product are beyond
// a limit in some row of a call, for calls of several numbers of rows: pass Observe to the executor.
type Exceeding struct {
	// Limits are the largest magnitudes [K] that do not count, of a class in a layer; nil: it is not counted.
	Limits func(class string, layer int) []float32

	index  map[place]*exceeding
	places []*exceeding // in the order of execution
	err    error
}

// exceeding is what was counted of one class in one layer.
type exceeding struct {
	place
	limits []float32
	sizes  []calls // ascending by rows
	often  []int   // calls of the largest size in which each channel exceeds its limit
}

// calls are those of one number of rows.
type calls struct {
	rows, seen int // rows of the current call so far
	marks      []bool
	marked     []int // channels of the current call
	count, sum int   // of calls, and of their channels
	most       int
}

// Observe adds what a step has read, if it is a matrix product that is counted. Executions of windows are observed one
// after another, each in one call. The first error is kept for Counts.
func (x *Exceeding) Observe(seen executor.Observed) {
	if x.err == nil {
		x.err = x.observe(&seen)
	}
}

// observe counts a call: it is divided into calls of fewer rows, of which those that are not whole do not count.
func (x *Exceeding) observe(seen *executor.Observed) error {
	step, err := product(seen)
	if step == nil {
		return err
	}
	at := x.at(place{seen.Node, seen.Layer}, seen.Rows)
	if at == nil {
		return nil
	}
	for i := range at.sizes {
		at.sizes[i].begin()
	}
	var channels []int // of a row
	for row := range step.rows {
		channels = channels[:0]
		for channel, value := range row {
			if limit := at.limits[channel]; !(value <= limit && value >= -limit) {
				channels = append(channels, channel)
			}
		}
		for i := range at.sizes {
			if ended := at.sizes[i].add(channels); ended != nil && i == len(at.sizes)-1 {
				for _, channel := range ended {
					at.often[channel]++
				}
			}
		}
	}
	return nil
}

// at returns what was counted of a place, new when it is seen first, nil where it is not counted.
func (x *Exceeding) at(at place, rows int) *exceeding {
	if x.index == nil {
		x.index = map[place]*exceeding{}
	}
	found, known := x.index[at]
	if known {
		return found
	}
	if limits := x.Limits(at.node, at.layer); limits != nil {
		found = &exceeding{place: at, limits: limits, often: make([]int, len(limits))}
		for size := 1; size < rows; size *= 4 {
			found.sizes = append(found.sizes, calls{rows: size, marks: make([]bool, len(limits))})
		}
		found.sizes = append(found.sizes, calls{rows: rows, marks: make([]bool, len(limits))})
		x.places = append(x.places, found)
	}
	x.index[at] = found
	return found
}

// begin forgets a call that did not end.
func (c *calls) begin() {
	for _, channel := range c.marked {
		c.marks[channel] = false
	}
	c.seen, c.marked = 0, c.marked[:0]
}

// add adds a row with the channels that exceed their limits, and returns those of the call that it ends, nil where it
// ends none. They are valid until the next row.
func (c *calls) add(channels []int) []int {
	if c.seen == c.rows {
		c.begin()
	}
	for _, channel := range channels {
		if !c.marks[channel] {
			c.marks[channel] = true
			c.marked = append(c.marked, channel)
		}
	}
	if c.seen++; c.seen < c.rows {
		return nil
	}
	c.count, c.sum, c.most = c.count+1, c.sum+len(c.marked), max(c.most, len(c.marked))
	return c.marked
}

// Counts returns what was counted, in the order of execution.
func (x *Exceeding) Counts() ([]calibration.Exceeding, error) {
	if x.err != nil {
		return nil, x.err
	}
	var out []calibration.Exceeding
	for _, found := range x.places {
		entry := calibration.Exceeding{Class: found.node, Layer: found.layer}
		for _, size := range found.sizes {
			entry.Counts = append(entry.Counts, calibration.Count{Rows: size.rows,
				Mean: float64(size.sum) / float64(max(1, size.count)), Most: size.most})
		}
		whole := found.sizes[len(found.sizes)-1].count
		for channel, count := range found.often {
			if count > 0 {
				entry.Hot = append(entry.Hot, calibration.Hot{Channel: channel, Share: float64(count) / float64(whole)})
			}
		}
		slices.SortStableFunc(entry.Hot, func(a, b calibration.Hot) int { return cmp.Compare(b.Share, a.Share) })
		entry.Distinct = len(entry.Hot)
		entry.Hot = entry.Hot[:min(len(entry.Hot), calibration.MaxHot)]
		out = append(out, entry)
	}
	return out, nil
}
