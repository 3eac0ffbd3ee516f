package kernel

import (
	"os"
	"regexp"
	"strconv"
	"strings"
)

// assemblyLine is a mnemonic with its operands, or the bytes of an instruction.
type assemblyLine struct {
	name     string
	operands []string
	code     []byte
}

// assembly is a function of a generated file, with the lines that its labels name.
type assembly struct {
	lines  []assemblyLine
	labels map[string]int
}

// readAssembly returns the functions of a generated file by their names.
func readAssembly(file string) map[string]*assembly {
	source, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	functions := map[string]*assembly{}
	var function *assembly
	for text := range strings.Lines(string(source)) {
		text = strings.TrimSpace(text)
		if name, ok := strings.CutPrefix(text, "TEXT ·"); ok {
			name, _, _ = strings.Cut(name, "(")
			function = &assembly{labels: map[string]int{}}
			functions[name] = function
			continue
		}
		if text == "" || strings.HasPrefix(text, "//") || strings.HasPrefix(text, "#") {
			if text == "" && function != nil { // ends the bytes of an instruction
				function.lines = append(function.lines, assemblyLine{name: "NOP"})
			}
			continue
		}
		if name, ok := strings.CutSuffix(text, ":"); ok {
			function.labels[name] = len(function.lines)
			continue
		}
		name, rest, _ := strings.Cut(text, " ")
		if name == "BYTE" {
			value, err := strconv.ParseUint(strings.TrimPrefix(strings.TrimSpace(rest), "$"), 0, 8)
			if err != nil {
				panic(err)
			}
			if last := len(function.lines) - 1; last >= 0 && function.lines[last].name == "BYTE" {
				function.lines[last].code = append(function.lines[last].code, byte(value))
			} else {
				function.lines = append(function.lines, assemblyLine{name: "BYTE", code: []byte{byte(value)}})
			}
			continue
		}
		var operands []string
		if rest = strings.TrimSpace(rest); rest != "" {
			operands = strings.Split(rest, ", ")
		}
		function.lines = append(function.lines, assemblyLine{name: name, operands: operands})
	}
	return functions
}

// integerMachine is what instructions on general registers see of a processor.
type integerMachine struct {
	general  [16]uint64
	equal    bool // flags of the last comparison
	less     bool
	argument func(name string, offset int) uint64
	fetch    func(address uint64) // what is prefetched, may be nil
}

// jumps reports where a line jumps to, if it does.
func (m *integerMachine) jumps(line *assemblyLine) (label string, jumps bool) {
	taken := false
	switch line.name {
	case "JMP":
		taken = true
	case "JZ", "JEQ":
		taken = m.equal
	case "JNZ", "JNE":
		taken = !m.equal
	case "JLT":
		taken = m.less
	case "JGE":
		taken = !m.less
	}
	if !taken {
		return "", false
	}
	return line.operands[0], true
}

var generalNames = []string{"AX", "CX", "DX", "BX", "SP", "BP", "SI", "DI", "R8", "R9", "R10", "R11", "R12", "R13",
	"R14", "R15"}

// general is the number of a register, -1 for what is none.
func general(name string) int {
	for i, known := range generalNames {
		if name == known {
			return i
		}
	}
	return -1
}

var (
	memoryForm   = regexp.MustCompile(`^(-?\d*)\((\w+)\)(?:\((\w+)\*(\d)\))?$`)
	argumentForm = regexp.MustCompile(`^(\w+)\+(\d+)\(FP\)$`)
)

// address is where an operand in memory lies.
func (m *integerMachine) address(operand string) uint64 {
	match := memoryForm.FindStringSubmatch(operand)
	if match == nil {
		panic("not in memory: " + operand)
	}
	address := m.general[general(match[2])]
	if match[1] != "" {
		disp, err := strconv.Atoi(match[1])
		if err != nil {
			panic(err)
		}
		address += uint64(disp)
	}
	if match[3] != "" {
		address += m.general[general(match[3])] * uint64(match[4][0]-'0')
	}
	return address
}

// value reads an integer operand.
func (m *integerMachine) value(operand string) uint64 {
	if text, ok := strings.CutPrefix(operand, "$"); ok {
		value, err := strconv.ParseInt(text, 0, 64)
		if err != nil {
			panic(err)
		}
		return uint64(value)
	}
	if match := argumentForm.FindStringSubmatch(operand); match != nil {
		offset, err := strconv.Atoi(match[2])
		if err != nil {
			panic(err)
		}
		return m.argument(match[1], offset)
	}
	return m.general[general(operand)]
}

// compare sets the flags of a-b.
func (m *integerMachine) compare(a, b uint64) { m.equal, m.less = a == b, int64(a) < int64(b) }

// instruction executes a line that is neither a jump nor of vectors, and reports whether it is one.
func (m *integerMachine) instruction(line *assemblyLine) bool {
	operands := line.operands
	last := ""
	if len(operands) > 0 {
		last = operands[len(operands)-1]
	}
	switch line.name {
	case "NOP", "VZEROUPPER", "JZ", "JEQ", "JNZ", "JNE", "JLT", "JGE":
	case "PREFETCHT0":
		if m.fetch != nil {
			m.fetch(m.address(last))
		}
	case "MOVQ", "MOVL":
		m.general[general(last)] = m.value(operands[0])
	case "LEAQ":
		m.general[general(last)] = m.address(operands[0])
	case "ADDQ":
		m.general[general(last)] += m.value(operands[0])
		m.compare(m.general[general(last)], 0)
	case "SUBQ":
		m.general[general(last)] -= m.value(operands[0])
		m.compare(m.general[general(last)], 0)
	case "XORQ":
		m.general[general(last)] ^= m.value(operands[0])
	case "SHLQ":
		m.general[general(last)] <<= m.value(operands[0])
	case "DECQ":
		m.general[general(last)]--
		m.compare(m.general[general(last)], 0)
	case "CMPQ":
		m.compare(m.value(operands[0]), m.value(operands[1]))
	case "TESTQ":
		m.compare(m.value(operands[0])&m.value(operands[1]), 0)
	default:
		return false
	}
	return true
}
