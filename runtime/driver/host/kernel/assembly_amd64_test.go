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
		if function != nil {
			function.read(text)
		}
	}
	return functions
}

// read adds a line of the file to a function.
func (a *assembly) read(text string) {
	if text == "" { // ends the bytes of an instruction
		a.lines = append(a.lines, assemblyLine{name: "NOP"})
		return
	}
	if strings.HasPrefix(text, "//") || strings.HasPrefix(text, "#") {
		return
	}
	if name, ok := strings.CutSuffix(text, ":"); ok {
		a.labels[name] = len(a.lines)
		return
	}

	name, rest, _ := strings.Cut(text, " ")
	rest = strings.TrimSpace(rest)
	if name == "BYTE" {
		a.readByte(rest)
		return
	}
	var operands []string
	if rest != "" {
		operands = strings.Split(rest, ", ")
	}
	a.lines = append(a.lines, assemblyLine{name: name, operands: operands})
}

// readByte adds a byte to the instruction that the line before begins, or begins one.
func (a *assembly) readByte(operand string) {
	value, err := strconv.ParseUint(strings.TrimPrefix(operand, "$"), 0, 8)
	if err != nil {
		panic(err)
	}
	if last := len(a.lines) - 1; last >= 0 && a.lines[last].name == "BYTE" {
		a.lines[last].code = append(a.lines[last].code, byte(value))
		return
	}
	a.lines = append(a.lines, assemblyLine{name: "BYTE", code: []byte{byte(value)}})
}

// integerMachine is what instructions on general registers see of a processor.
type integerMachine struct {
	general  [16]uint64
	equal    bool // flags of the last comparison
	less     bool
	argument func(name string, offset int) uint64
	stored   map[string]uint64    // by operands in memory: arguments that were written, and variables
	fetch    func(address uint64) // what is prefetched, may be nil
}

// jumps reports where a line jumps to, if it does.
func (m *integerMachine) jumps(line *assemblyLine) (label string, jumps bool) {
	taken := false
	switch line.name {
	case "JMP":
		taken = true
	case "JZ", "JE", "JEQ":
		taken = m.equal
	case "JNZ", "JNE":
		taken = !m.equal
	case "JLT":
		taken = m.less
	case "JGE":
		taken = !m.less
	case "JLE":
		taken = m.less || m.equal
	case "JG":
		taken = !m.less && !m.equal
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
	if value, ok := m.stored[operand]; ok {
		return value
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

// assign writes an integer operand.
func (m *integerMachine) assign(operand string, value uint64) {
	if number := general(operand); number >= 0 {
		m.general[number] = value
		return
	}
	if m.stored == nil {
		m.stored = map[string]uint64{}
	}
	m.stored[operand] = value
}

// change adds an integer operand to another one and sets the flags of the result.
func (m *integerMachine) change(operand string, by uint64) {
	m.assign(operand, m.value(operand)+by)
	m.compare(m.value(operand), 0)
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
	case "NOP", "VZEROUPPER", "JZ", "JE", "JEQ", "JNZ", "JNE", "JLT", "JLE", "JGE", "JG":
	case "PREFETCHT0", "PREFETCHT1":
		if m.fetch != nil {
			m.fetch(m.address(last))
		}
	case "MOVQ", "MOVL":
		m.assign(last, m.value(operands[0]))
	case "LEAQ":
		m.general[general(last)] = m.address(operands[0])
	case "ADDQ":
		m.change(last, m.value(operands[0]))
	case "SUBQ":
		m.change(last, -m.value(operands[0]))
	case "NEGQ":
		m.general[general(last)] = -m.general[general(last)]
	case "IMULQ":
		m.general[general(last)] *= m.value(operands[0])
	case "CMOVQEQ":
		if m.equal {
			m.general[general(last)] = m.value(operands[0])
		}
	case "XORQ":
		m.general[general(last)] ^= m.value(operands[0])
	case "SHLQ":
		m.general[general(last)] <<= m.value(operands[0])
	case "DECQ":
		m.change(last, ^uint64(0))
	case "CMPQ":
		m.compare(m.value(operands[0]), m.value(operands[1]))
	case "TESTQ":
		m.compare(m.value(operands[0])&m.value(operands[1]), 0)
	default:
		return false
	}
	return true
}
