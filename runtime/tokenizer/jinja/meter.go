package jinja

import (
	"context"
	"errors"
	"strings"
)

// Bounds of one execution. A long conversation takes some 10,000 steps.
//
// The idea: whatever could take long or fill memory goes through this file, so that a template can
// do nothing uncounted. There are three counters. A step is a node of the template that is
// evaluated, or a value that is looked at; both take well under a microsecond. Looking at 64 bytes
// is a step too. Memory is all that was ever made, alive or not, so that garbage collection need
// not be modelled; it also costs steps. Depth counts recursion of every kind, in the template and
// in its values.
const (
	maxSteps     = 2_000_000
	bytesPerStep = 64       // a step also stands for this many bytes looked at
	maxMemory    = 64 << 20 // of all values made, in bytes
	maxOutput    = 16 << 20 // of the whole and of values written out, in bytes
	maxDepth     = 200      // calls of macros, and values in each other
	maxStack     = 10_000   // expressions, statements and lazy filters being evaluated in each other
	maxRange     = 100_000
)

// What the parts of values take in memory beside what they hold.
const (
	objectBytes    = 32  // any value with a pointer of its own
	scopeBytes     = 320 // the first variable of a scope
	variableBytes  = 64
	dictBytes      = 352 // the first key of a mapping
	entryBytes     = 96  // each key of a mapping
	undefinedBytes = 192 // with its message
	methodBytes    = 96
	lazyBytes      = 256
)

// ErrLimit is the cause of an Error when a template takes more time, memory or recursion than one may.
var ErrLimit = errors.New("the template goes beyond its limits")

// errRefused is the cause of an Error when the template refuses the conversation with raise_exception.
var errRefused = errors.New("the template refuses the conversation")

// meter counts the resources of an execution.
type meter struct {
	ctx       context.Context
	maxSteps  int // steps
	line      int // that is being executed
	steps     int
	checkedAt int // steps when ctx was last asked
	scanned   int // looked at, less than a step
	memory    int
	depth     int // calls of macros and loops in each other
	stack     int // evaluations in each other
}

// fail ends the execution with an error that has no cause: a mistake of the template.
func (m *meter) fail(format string, args ...any) { throw(m.line, nil, format, args...) }

// exceeded fails because a bound was exceeded.
func (m *meter) exceeded(format string, args ...any) { throw(m.line, ErrLimit, format, args...) }

// spend counts steps, and asks now and then whether the execution was cancelled.
func (m *meter) spend(steps int) {
	if steps < 0 || steps > m.maxSteps-m.steps {
		m.exceeded("the template takes more than %d steps", m.maxSteps)
	}
	m.steps += steps
	// Asking a context takes longer than a step, so it is not asked at each.
	const often = 1 << 10 // steps; well under a millisecond
	if m.steps-m.checkedAt < often {
		return
	}
	m.checkedAt = m.steps
	if err := m.ctx.Err(); err != nil {
		throw(m.line, err, "%v", err)
	}
}

// scan counts bytes that are looked at.
func (m *meter) scan(bytes int) {
	if m.scanned += bytes; m.scanned >= bytesPerStep {
		m.spend(m.scanned / bytesPerStep)
		m.scanned %= bytesPerStep
	}
}

// allocate charges memory before it is filled.
func (m *meter) allocate(bytes int) {
	if bytes < 0 || bytes > maxMemory-m.memory {
		m.exceeded("the template fills more than %d bytes", maxMemory)
	}
	m.memory += bytes
	m.scan(bytes)
}

// allocateValue charges a value of the given bytes before it is made.
func (m *meter) allocateValue(bytes int) {
	if bytes > maxMemory {
		bytes = maxMemory
	}
	m.allocate(bytes + objectBytes)
}

// allocateText charges a text and returns it.
func (m *meter) allocateText(text string) string {
	m.allocateValue(len(text))
	return text
}

// checkDepth bounds the nesting of values.
func (m *meter) checkDepth(depth int) {
	if depth > maxDepth {
		m.exceeded("more than %d values in each other", maxDepth)
	}
}

// enterNode bounds the nesting of evaluations; the caller decrements stack afterwards.
func (m *meter) enterNode() {
	if m.stack++; m.stack > maxStack {
		m.exceeded("more than %d expressions and statements in each other", maxStack)
	}
}

// enterCall bounds the nesting of calls; the caller decrements depth afterwards.
func (m *meter) enterCall() {
	if m.depth++; m.depth > maxDepth {
		m.exceeded("more than %d calls in each other", maxDepth)
	}
}

// visit charges one look at each part of a value: the least that a filter, test or method costs.
func (m *meter) visit(value Value) {
	const pointer = 16
	switch value := value.(type) {
	case string:
		m.scan(len(value))
	case *Dict:
		m.scan(2 * pointer * len(value.keys))
	case *List, tuple, *dictView, *loop:
		items, _ := count(value)
		m.scan(pointer * items)
	}
}

// builder builds a text and charges it while it is written. So a text is never larger than what was
// charged, and its writers need no bounds of their own.
type builder struct {
	meter *meter
	text  strings.Builder
	most  int    // bytes
	long  string // what is said when there are more
}

// builder begins a text.
func (m *meter) builder() *builder {
	m.allocate(objectBytes)
	return &builder{meter: m, most: maxOutput, long: "a text is too long"}
}

// count charges what is written next.
func (b *builder) count(bytes int) {
	if bytes > b.most-b.text.Len() {
		b.meter.exceeded("%s", b.long)
	}
	b.meter.allocate(bytes)
}

// writeString appends text, charged by its length in bytes.
func (b *builder) writeString(text string) {
	b.count(len(text))
	b.text.WriteString(text)
}

// writeByte appends one ASCII character.
func (b *builder) writeByte(char byte) {
	b.count(1)
	b.text.WriteByte(char)
}

// writeRune appends a character, charged as the longest of UTF-8.
func (b *builder) writeRune(char rune) {
	b.count(4)
	b.text.WriteRune(char)
}

// repeat writes s so many times.
func (b *builder) repeat(text string, times int) {
	for ; times > 0 && text != ""; times-- {
		b.writeString(text)
	}
}

// String returns what was written; its memory was charged while it was.
func (b *builder) String() string { return b.text.String() }
