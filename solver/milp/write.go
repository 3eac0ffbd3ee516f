package milp

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// Both formats name variable j x<j>_<name> and row i r<i>_<name>, with what the formats do not take in names replaced:
// such names are unique, and no reader takes one for a number or a keyword. The offset is the cost of a
// variable "constant", fixed at 1, because readers differ in the sign of an offset.

// spelled is a name for a file.
func spelled(kind string, i int, name string) string {
	const longest = 80 // bytes; readers stop at 255
	var b strings.Builder
	b.WriteString(kind)
	b.WriteString(strconv.Itoa(i))
	b.WriteByte('_')
	for k := 0; k < len(name) && k < longest; k++ {
		c := name[k]
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '.' {
			b.WriteByte(c)
		} else {
			b.WriteByte('_')
		}
	}
	return b.String()
}

func number(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

const constant = "constant"

// WriteLP writes a valid model in the LP format of CPLEX, which HiGHS, GLPK, CBC and others read. A row with two
// bounds becomes two rows, as not all of them read ranges.
func (m *Model) WriteLP(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "\\ %s\n", spelled("model", 0, m.Name))
	if m.Note != "" {
		fmt.Fprintf(b, "\\ %s\n", m.Note)
	}
	b.WriteString("Minimize\n obj:")
	for j := range m.Vars { // all of them: their order is the model's then
		term(b, j, m.Vars[j].Cost, spelled("x", j, m.Vars[j].Name))
	}
	term(b, len(m.Vars), m.Offset, constant)
	b.WriteString("\nSubject To\n")
	for i := range m.Rows {
		r := &m.Rows[i]
		row := func(suffix, sense string, bound float64) {
			fmt.Fprintf(b, " %s%s:", spelled("r", i, r.Name), suffix)
			n := 0
			for _, t := range r.Terms {
				if t.Coef != 0 {
					term(b, n, t.Coef, spelled("x", t.Var, m.Vars[t.Var].Name))
					n++
				}
			}
			if n == 0 {
				term(b, 0, 0, constant)
			}
			fmt.Fprintf(b, " %s %s\n", sense, number(bound))
		}
		switch {
		case r.Low == r.High:
			row("", "=", r.Low)
		default:
			if !math.IsInf(r.Low, 0) {
				row("_low", ">=", r.Low)
			}
			if !math.IsInf(r.High, 0) {
				row("_high", "<=", r.High)
			}
		}
	}
	fmt.Fprintf(b, " %s_is_one: %s = 1\nBounds\n", constant, constant)
	for j := range m.Vars {
		v := &m.Vars[j]
		low, high := "-inf", "+inf"
		if !math.IsInf(v.Low, 0) {
			low = number(v.Low)
		}
		if !math.IsInf(v.High, 0) {
			high = number(v.High)
		}
		fmt.Fprintf(b, " %s <= %s <= %s\n", low, spelled("x", j, v.Name), high)
	}
	first := true
	for j := range m.Vars {
		if v := &m.Vars[j]; v.Integer {
			if first {
				b.WriteString("Generals\n")
				first = false
			}
			fmt.Fprintf(b, " %s\n", spelled("x", j, v.Name))
		}
	}
	b.WriteString("End\n")
	return b.Flush()
}

// term writes the n-th term of a sum, several on a line.
func term(b *bufio.Writer, n int, coef float64, name string) {
	if n > 0 && n%4 == 0 {
		b.WriteString("\n ")
	}
	sign := "+"
	if math.Signbit(coef) {
		sign, coef = "-", -coef
	}
	fmt.Fprintf(b, " %s %s %s", sign, number(coef), name)
}

// WriteMPS writes a valid model in the free MPS format. Rows without a bound are left out.
func (m *Model) WriteMPS(w io.Writer) error {
	b := bufio.NewWriter(w)
	if m.Note != "" {
		fmt.Fprintf(b, "* %s\n", m.Note)
	}
	fmt.Fprintf(b, "NAME %s FREE\nROWS\n N obj\n", spelled("model", 0, m.Name))
	columns := make([][]Term, len(m.Vars)) // Var is a row here
	names := make([]string, len(m.Rows))
	for i := range m.Rows {
		r := &m.Rows[i]
		sense := ""
		switch {
		case r.Low == r.High:
			sense = "E"
		case !math.IsInf(r.Low, 0):
			sense = "G"
		case !math.IsInf(r.High, 0):
			sense = "L"
		default:
			continue
		}
		names[i] = spelled("r", i, r.Name)
		fmt.Fprintf(b, " %s %s\n", sense, names[i])
		for _, t := range r.Terms {
			if t.Coef != 0 {
				columns[t.Var] = append(columns[t.Var], Term{i, t.Coef})
			}
		}
	}
	b.WriteString("COLUMNS\n")
	whole := false
	marker := func(on bool) {
		if whole != on {
			whole = on
			fmt.Fprintf(b, " M%s 'MARKER' '%s'\n", map[bool]string{true: "1", false: "2"}[on], map[bool]string{true: "INTORG", false: "INTEND"}[on])
		}
	}
	for j := range m.Vars {
		v := &m.Vars[j]
		marker(v.Integer)
		name := spelled("x", j, v.Name)
		fmt.Fprintf(b, " %s obj %s\n", name, number(v.Cost))
		for _, t := range columns[j] {
			fmt.Fprintf(b, " %s %s %s\n", name, names[t.Var], number(t.Coef))
		}
	}
	marker(false)
	fmt.Fprintf(b, " %s obj %s\nRHS\n", constant, number(m.Offset))
	for i := range m.Rows {
		r := &m.Rows[i]
		bound := r.Low
		if math.IsInf(bound, 0) {
			bound = r.High
		}
		if names[i] != "" && bound != 0 {
			fmt.Fprintf(b, " RHS %s %s\n", names[i], number(bound))
		}
	}
	b.WriteString("RANGES\n")
	for i := range m.Rows {
		if r := &m.Rows[i]; names[i] != "" && r.Low != r.High && !math.IsInf(r.Low, 0) && !math.IsInf(r.High, 0) {
			fmt.Fprintf(b, " RNG %s %s\n", names[i], number(r.High-r.Low))
		}
	}
	b.WriteString("BOUNDS\n")
	for j := range m.Vars {
		v := &m.Vars[j]
		name := spelled("x", j, v.Name)
		low, high := !math.IsInf(v.Low, 0), !math.IsInf(v.High, 0)
		switch {
		case v.Low == v.High:
			fmt.Fprintf(b, " FX BND %s %s\n", name, number(v.Low))
			continue
		case !low && !high:
			fmt.Fprintf(b, " FR BND %s\n", name)
			continue
		case low: // also when 0: an upper bound below 0 would change it
			fmt.Fprintf(b, " LO BND %s %s\n", name, number(v.Low))
		default:
			fmt.Fprintf(b, " MI BND %s\n", name)
		}
		if high {
			fmt.Fprintf(b, " UP BND %s %s\n", name, number(v.High))
		} else {
			fmt.Fprintf(b, " PL BND %s\n", name)
		}
	}
	fmt.Fprintf(b, " FX BND %s 1\nENDATA\n", constant)
	return b.Flush()
}
