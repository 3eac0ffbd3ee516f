package exact

import "math"

// master is a linear program that grows by columns, in equations with a slack in every row:
//
//	min cost*x,  rows*x + slack = rhs >= 0,  x >= 0, slack >= 0.
//
// The slack of a forced row costs so much that it ends at 0 where that is possible. It is solved by the primal simplex method with the
// inverse of the basis. Rows are told apart by tiny differences of their right sides, so that the method ends; what
// is wanted of it are row prices, and any prices give a bound.
type master struct {
	rhs    []float64
	forced []bool
	cost   []float64
	rows   [][]int32
	coef   [][]float64

	basis []int // column in each row's place; -1-r: slack of row r
	inv   []float64
	x     []float64
	y     []float64 // prices
	tries int       // pivots since the inverse was computed
	first bool      // nothing counts but that forced rows are kept
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
	r := len(m.rhs)
	m.rhs = append(m.rhs, rhs+1e-7*float64(1+(r*7919)%101)/101)
	m.forced = append(m.forced, forced)
	m.basis = append(m.basis, -1-r)
	return int32(r)
}

// column adds a column and returns its number.
func (m *master) column(cost float64, rows []int32, coef []float64) int {
	m.cost, m.rows, m.coef = append(m.cost, cost), append(m.rows, rows), append(m.coef, coef)
	return len(m.cost) - 1
}

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
	n := len(m.rhs)
	a := make([]float64, n*n)
	for i, j := range m.basis {
		if j < 0 {
			a[(-1-j)*n+i] = 1
			continue
		}
		for k, r := range m.rows[j] {
			a[int(r)*n+i] = m.coef[j][k]
		}
	}
	inv := make([]float64, n*n)
	for i := range n {
		inv[i*n+i] = 1
	}
	for c := range n {
		p := c
		for r := c + 1; r < n; r++ {
			if math.Abs(a[r*n+c]) > math.Abs(a[p*n+c]) {
				p = r
			}
		}
		if p != c {
			for k := range n {
				a[p*n+k], a[c*n+k] = a[c*n+k], a[p*n+k]
				inv[p*n+k], inv[c*n+k] = inv[c*n+k], inv[p*n+k]
			}
		}
		d := a[c*n+c]
		for k := range n {
			a[c*n+k] /= d
			inv[c*n+k] /= d
		}
		for r := range n {
			if f := a[r*n+c]; r != c && f != 0 {
				for k := range n {
					a[r*n+k] -= float64(f * a[c*n+k])
					inv[r*n+k] -= float64(f * inv[c*n+k])
				}
			}
		}
	}
	m.inv, m.tries = inv, 0
	m.x = make([]float64, n)
	for i := range n {
		for k := range n {
			m.x[i] += float64(inv[i*n+k] * m.rhs[k])
		}
	}
}

// solve goes on from the last basis. It reports whether the prices are those of an optimum.
func (m *master) solve() bool {
	n := len(m.rhs)
	if m.inv == nil {
		m.invert()
	}
	m.y = make([]float64, n)
	in := make([]float64, n)
	for range masterSteps {
		if m.tries >= masterAgain {
			m.invert()
		}
		clear(m.y)
		for i, j := range m.basis {
			if c := m.costOf(j); c != 0 {
				for k := range n {
					m.y[k] += float64(c * m.inv[i*n+k])
				}
			}
		}
		enter, least := math.MinInt, -masterEnough
		for j := range m.cost {
			d := m.costOf(j)
			for k, r := range m.rows[j] {
				d -= float64(m.y[r] * m.coef[j][k])
			}
			if d < least {
				enter, least = j, d
			}
		}
		for r, y := range m.y {
			if !m.forced[r] && -y < least {
				enter, least = -1-r, -y
			}
		}
		if enter == math.MinInt {
			return true
		}
		clear(in)
		if enter < 0 {
			for i := range n {
				in[i] = m.inv[i*n-1-enter]
			}
		} else {
			for k, r := range m.rows[enter] {
				c := m.coef[enter][k]
				for i := range n {
					in[i] += float64(c * m.inv[i*n+int(r)])
				}
			}
		}
		leave, ratio := -1, math.Inf(1)
		for i, v := range in {
			if v > masterSmall {
				if q := max(0, m.x[i]) / v; q < ratio || q == ratio && v > in[leave] {
					leave, ratio = i, q
				}
			}
		}
		if leave < 0 {
			return false
		}
		d := in[leave]
		for k := range n {
			m.inv[leave*n+k] /= d
		}
		m.x[leave] = ratio
		for i, v := range in {
			if i == leave || v == 0 {
				continue
			}
			m.x[i] -= float64(v * ratio)
			for k := range n {
				m.inv[i*n+k] -= float64(v * m.inv[leave*n+k])
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
		sum += float64(m.costOf(j) * m.x[i])
	}
	return sum
}
