package cli

import (
	"strings"
	"unicode"
)

// Table writes rows under a header, silent under --json. Columns whose header starts with ">" are
// aligned right.
func (s *Streams) Table(header []string, rows [][]string) {
	if s.JSON {
		return
	}
	lines := [][]string{make([]string, len(header))}
	right := make([]bool, len(header))
	for i, h := range header {
		lines[0][i], right[i] = strings.CutPrefix(h, ">")
	}
	for _, row := range rows {
		shown := make([]string, len(row)) // names of keys and tensors come from files
		for i := range row {
			shown[i] = visible(row[i])
		}
		lines = append(lines, shown)
	}
	var widths []int
	for _, line := range lines {
		for i, cell := range line {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], columns(cell))
		}
	}
	var b strings.Builder
	for n, line := range lines {
		total := 0
		for i, w := range widths {
			cell := ""
			if i < len(line) {
				cell = line[i]
			}
			space := strings.Repeat(" ", w-columns(cell))
			b.WriteByte(' ')
			if i < len(right) && right[i] {
				b.WriteString(space)
				b.WriteString(cell)
			} else {
				b.WriteString(cell)
				b.WriteString(space)
			}
			b.WriteByte(' ')
			total += w + 2
		}
		b.WriteByte('\n')
		if n == 0 && len(rows) > 0 {
			b.WriteString(strings.Repeat("─", total))
			b.WriteByte('\n')
		}
	}
	s.Printf("%s", b.String())
}

// columns is how many columns of a terminal a text takes.
func columns(text string) int {
	n := 0
	for _, r := range text {
		switch {
		case r < unicode.MaxLatin1:
			n++
		case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf): // marks on what is before, joiners
		case unicode.Is(wide, r):
			n += 2
		default:
			n++
		}
	}
	return n
}

// wide are the characters of East Asian scripts that are as wide as high, and pictures.
var wide = &unicode.RangeTable{
	R16: []unicode.Range16{{Lo: 0x1100, Hi: 0x115f, Stride: 1}, {Lo: 0x2e80, Hi: 0x303e, Stride: 1}, {Lo: 0x3041, Hi: 0xa4cf, Stride: 1}, {Lo: 0xa960, Hi: 0xa97f, Stride: 1}, {Lo: 0xac00, Hi: 0xd7a3, Stride: 1}, {Lo: 0xf900, Hi: 0xfaff, Stride: 1}, {Lo: 0xfe30, Hi: 0xfe6f, Stride: 1}, {Lo: 0xff01, Hi: 0xff60, Stride: 1}, {Lo: 0xffe0, Hi: 0xffe6, Stride: 1}},
	R32: []unicode.Range32{{Lo: 0x16fe0, Hi: 0x18cff, Stride: 1}, {Lo: 0x1b000, Hi: 0x1b2ff, Stride: 1}, {Lo: 0x1f300, Hi: 0x1f64f, Stride: 1}, {Lo: 0x1f680, Hi: 0x1f6ff, Stride: 1}, {Lo: 0x1f900, Hi: 0x1faff, Stride: 1}, {Lo: 0x20000, Hi: 0x3fffd, Stride: 1}},
}
