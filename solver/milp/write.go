package milp

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// In a file variable j is named x<j>_<name> and row i r<i>_<name>, with what the format does not take in names
// replaced: such names are unique, and no reader takes one for a number or a keyword. The offset is the cost of a
// variable "constant", fixed at 1, because readers differ in the sign of an offset.

// spelled returns a name for a file.
func spelled(kind string, i int, name string) string {
	const longest = 80 // bytes; readers stop at 255
	var out strings.Builder
	out.WriteString(kind)
	out.WriteString(strconv.Itoa(i))
	out.WriteByte('_')
	for k := 0; k < len(name) && k < longest; k++ {
		char := name[k]
		if char >= '0' && char <= '9' || char >= 'a' && char <= 'z' || char >= 'A' && char <= 'Z' || char == '.' {
			out.WriteByte(char)
		} else {
			out.WriteByte('_')
		}
	}
	return out.String()
}

// number returns the shortest text that reads back as the value.
func number(value float64) string { return strconv.FormatFloat(value, 'g', -1, 64) }

// constant is the variable that carries the offset.
const constant = "constant"

// writer writes a model. Errors are kept by the buffer until it is flushed.
type writer struct {
	*bufio.Writer
	model *Model
	rows  []string // names in the file, "" of those without a bound
}

// newWriter names the rows; those that no bound limits are not written.
func newWriter(model *Model, to io.Writer) *writer {
	w := &writer{Writer: bufio.NewWriter(to), model: model}
	for i := range model.Rows {
		name := ""
		if bounded(model.Rows[i].Low) || bounded(model.Rows[i].High) {
			name = spelled("r", i, model.Rows[i].Name)
		}
		w.rows = append(w.rows, name)
	}
	return w
}

// printf writes to the buffer below, which keeps the first error.
func (w *writer) printf(format string, args ...any) { fmt.Fprintf(w, format, args...) }

// variable returns the name of variable j in the file.
func (w *writer) variable(j int) string { return spelled("x", j, w.model.Vars[j].Name) }

// bounded reports whether a bound is one.
func bounded(bound float64) bool { return !math.IsInf(bound, 0) }

// WriteLP writes a valid model in the LP format of CPLEX, which HiGHS, GLPK, CBC and others read. A row with two
// bounds becomes two rows, as not all of them read ranges.
func (m *Model) WriteLP(to io.Writer) error {
	w := newWriter(m, to)
	w.printf("\\ %s\n", spelled("model", 0, m.Name))
	if m.Note != "" {
		w.printf("\\ %s\n", m.Note)
	}
	w.printf("Minimize\n obj:")
	for j := range m.Vars { // all of them: their order is the model's then
		w.term(j, m.Vars[j].Cost, w.variable(j))
	}
	w.term(len(m.Vars), m.Offset, constant)
	w.printf("\nSubject To\n")
	for i, row := range m.Rows {
		if row.Low == row.High {
			w.lpRow(i, "", "=", row.Low)
			continue
		}
		if bounded(row.Low) {
			w.lpRow(i, "_low", ">=", row.Low)
		}
		if bounded(row.High) {
			w.lpRow(i, "_high", "<=", row.High)
		}
	}
	// All bounds are written: without one a reader takes 0, and for whole variables some take 1 as the upper one.
	w.printf(" %s_is_one: %s = 1\nBounds\n", constant, constant)
	for j, variable := range m.Vars {
		low, high := "-inf", "+inf"
		if bounded(variable.Low) {
			low = number(variable.Low)
		}
		if bounded(variable.High) {
			high = number(variable.High)
		}
		w.printf(" %s <= %s <= %s\n", low, w.variable(j), high)
	}
	title := "Generals\n"
	for j := range m.Vars {
		if m.Vars[j].Integer {
			w.printf("%s %s\n", title, w.variable(j))
			title = ""
		}
	}
	w.printf("End\n")
	return w.Flush()
}

// lpRow writes one bound of a row.
func (w *writer) lpRow(i int, suffix, sense string, bound float64) {
	w.printf(" %s%s:", w.rows[i], suffix)
	count := 0
	for _, term := range w.model.Rows[i].Terms {
		if term.Coef != 0 {
			w.term(count, term.Coef, w.variable(term.Var))
			count++
		}
	}
	if count == 0 {
		w.term(0, 0, constant)
	}
	w.printf(" %s %s\n", sense, number(bound))
}

// term writes the term of a sum that follows so many others, several on a line.
func (w *writer) term(before int, coef float64, name string) {
	if before > 0 && before%4 == 0 {
		w.printf("\n ")
	}
	sign := "+"
	if math.Signbit(coef) {
		sign, coef = "-", -coef
	}
	w.printf(" %s %s %s", sign, number(coef), name)
}
