package exact

import "math"

// master is a linear program that grows by columns, in equations with a slack in every row:
//
//	min cost*x,  rows*x + slack = rhs >= 0,  x >= 0, slack >= 0.
//
// The slack of a forced row costs so much that it ends at 0 where that is possible. It is solved by the primal simplex
// method with the inverse of the basis. Rows are told apart by tiny differences of their right sides, so that the
// method ends; what is wanted of it are row prices, and any prices give a bound.
type master struct {
	rhs    []float64
	forced []bool
	cost   []float64
	rows   [][]int32
	coef   [][]float64

	basis  []int // column in each row's place; -1-r: slack of row r
	inv    []float64
	values []float64
	prices []float64 // prices
	tries  int       // pivots since the inverse was computed
	first  bool      // nothing counts but that forced rows are kept
}

const (
	forcedCost   = 1e3
	masterKept   = 1e-3 // of forcedCost: what is left of forced rows counts as none
	masterSteps  = 4000
	masterAgain  = 150 // pivots until the inverse is computed anew
	masterSmall  = 1e-9
	masterEnough = 1e-8 // a reduced cost that is worth a pivot
)

// row adds a row, before any column is there.
func (m *master) row(rhs float64, forced bool) int32 {
	number := len(m.rhs)
	m.rhs = append(m.rhs, rhs+1e-7*float64(1+(number*7919)%101)/101)
	m.forced = append(m.forced, forced)
	m.basis = append(m.basis, -1-number)
	return int32(number)
}

// column adds a column and returns its number.
func (m *master) column(cost float64, rows []int32, coef []float64) int {
	m.cost, m.rows, m.coef = append(m.cost, cost), append(m.rows, rows), append(m.coef, coef)
	return len(m.cost) - 1
}

// costOf is the cost of a column or slack; in the first phase nothing but the slacks of forced rows counts.
func (m *master) costOf(j int) float64 {
	switch {
	case j >= 0 && m.first:
		return 0
	case j >= 0:
		return m.cost[j]
	case m.forced[-1-j]:
		return forcedCost
	}
	return 0
}

// invert computes the inverse of the basis anew.
func (m *master) invert() {
	rows := len(m.rhs)
	matrix := make([]float64, rows*rows)
	for i, j := range m.basis {
		if j < 0 {
			matrix[(-1-j)*rows+i] = 1
			continue
		}
		for k, row := range m.rows[j] {
			matrix[int(row)*rows+i] = m.coef[j][k]
		}
	}
	inv := make([]float64, rows*rows)
	for i := range rows {
		inv[i*rows+i] = 1
	}
	for col := range rows {
		pivot := col
		for row := col + 1; row < rows; row++ {
			if math.Abs(matrix[row*rows+col]) > math.Abs(matrix[pivot*rows+col]) {
				pivot = row
			}
		}
		if pivot != col {
			for k := range rows {
				matrix[pivot*rows+k], matrix[col*rows+k] = matrix[col*rows+k], matrix[pivot*rows+k]
				inv[pivot*rows+k], inv[col*rows+k] = inv[col*rows+k], inv[pivot*rows+k]
			}
		}
		diagonal := matrix[col*rows+col]
		for k := range rows {
			matrix[col*rows+k] /= diagonal
			inv[col*rows+k] /= diagonal
		}
		for row := range rows {
			if factor := matrix[row*rows+col]; row != col && factor != 0 {
				for k := range rows {
					matrix[row*rows+k] -= float64(factor * matrix[col*rows+k])
					inv[row*rows+k] -= float64(factor * inv[col*rows+k])
				}
			}
		}
	}
	m.inv, m.tries = inv, 0
	m.values = make([]float64, rows)
	for i := range rows {
		for k := range rows {
			m.values[i] += float64(inv[i*rows+k] * m.rhs[k])
		}
	}
}

// solve goes on from the last basis. It reports whether the prices are those of an optimum.
//
// The revised primal simplex method: prices from the basis (y = c*inv), the column with the least reduced cost enters,
// the row with the least ratio leaves, the inverse is updated by a pivot and computed anew now and then. A step costs
// rows^2 and the terms of all columns.
func (m *master) solve() bool {
	rows := len(m.rhs)
	if m.inv == nil {
		m.invert()
	}
	m.prices = make([]float64, rows)
	in := make([]float64, rows)
	for range masterSteps {
		if m.tries >= masterAgain {
			m.invert()
		}
		clear(m.prices)
		for i, j := range m.basis {
			if cost := m.costOf(j); cost != 0 {
				for k := range rows {
					m.prices[k] += float64(cost * m.inv[i*rows+k])
				}
			}
		}
		enter, least := math.MinInt, -masterEnough
		for j := range m.cost {
			reduced := m.costOf(j)
			for k, row := range m.rows[j] {
				reduced -= float64(m.prices[row] * m.coef[j][k])
			}
			if reduced < least {
				enter, least = j, reduced
			}
		}
		for row, price := range m.prices {
			if !m.forced[row] && -price < least {
				enter, least = -1-row, -price
			}
		}
		if enter == math.MinInt {
			return true
		}
		clear(in)
		if enter < 0 {
			for i := range rows {
				in[i] = m.inv[i*rows-1-enter]
			}
		} else {
			for k, row := range m.rows[enter] {
				cost := m.coef[enter][k]
				for i := range rows {
					in[i] += float64(cost * m.inv[i*rows+int(row)])
				}
			}
		}
		leave, ratio := -1, math.Inf(1)
		for i, value := range in {
			if value > masterSmall {
				if limit := max(0, m.values[i]) / value; limit < ratio || limit == ratio && value > in[leave] {
					leave, ratio = i, limit
				}
			}
		}
		if leave < 0 {
			return false
		}
		pivot := in[leave]
		for k := range rows {
			m.inv[leave*rows+k] /= pivot
		}
		m.values[leave] = ratio
		for i, value := range in {
			if i == leave || value == 0 {
				continue
			}
			m.values[i] -= float64(value * ratio)
			for k := range rows {
				m.inv[i*rows+k] -= float64(value * m.inv[leave*rows+k])
			}
		}
		m.basis[leave] = enter
		m.tries++
	}
	return false
}

// objective is that of the last basis.
func (m *master) objective() (sum float64) {
	for i, j := range m.basis {
		sum += float64(m.costOf(j) * m.values[i])
	}
	return sum
}
