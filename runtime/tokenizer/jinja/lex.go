package jinja

import (
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// kind is a kind of token.
type kind int

// The kinds of tokens. Text between tags is one token, whatever it holds.
const (
	tokData kind = iota
	tokPrint
	tokPrintEnd
	tokTag
	tokTagEnd
	tokName
	tokString
	tokInt
	tokFloat
	tokOp
	tokEOF
)

// String names a kind in messages; both kinds of numbers are called number.
func (k kind) String() string {
	return [...]string{
		"text", "{{", "}}", "{%", "%}", "name", "string", "number", "number", "operator", "end of template",
	}[k]
}

// token is a piece of a template: text between tags, the beginning or end of a tag, or a word
// inside a tag.
type token struct {
	kind kind
	text string // of a string: its value
	line int
}

// is reports whether t is the token of a kind and text.
func (t token) is(kind kind, text string) bool { return t.kind == kind && t.text == text }

// isOp reports whether t is one of some operators.
func (t token) isOp(texts ...string) bool { return t.kind == tokOp && slices.Contains(texts, t.text) }

// beginsArgument reports whether t begins the argument of a test that has no parentheses.
func (t token) beginsArgument() bool {
	switch t.kind {
	case tokString, tokInt, tokFloat:
		return true
	case tokName:
		return !slices.Contains([]string{"else", "or", "and"}, t.text)
	}
	return t.isOp("[", "{")
}

// whole returns the value of a number; base 0 permits prefixes.
func (t token) whole(base int) int64 {
	number, err := strconv.ParseInt(t.text, base, 64)
	if err != nil {
		throw(t.line, nil, "the number %s is too large", t.text)
	}
	return number
}

// describe names a token for messages.
func (t token) describe() string {
	if t.kind == tokName || t.kind == tokOp {
		return strconv.Quote(t.text)
	}
	return t.kind.String()
}

// lexer splits a template into tokens, with Jinja's options trim_blocks and lstrip_blocks: the line
// break after a tag, and the white space before it on its line, are removed.
type lexer struct {
	source string
	// at is a position in source, in bytes; line is the line there, from 1.
	at        int
	line      int
	lineStart bool // the last token ended a line
	tokens    []token
}

// lex reads a template. Line breaks of all kinds count as \n, and one at the end is dropped.
func lex(source string) (tokens []token, err error) {
	source = strings.ToValidUTF8(source, "\ufffd")
	// Two passes: a pair becomes one break before single returns do.
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	l := &lexer{source: strings.TrimSuffix(source, "\n"), line: 1, lineStart: true}
	defer catch(&err)
	for l.at < len(l.source) {
		l.readText()
	}
	return append(l.tokens, token{tokEOF, "", l.line}), nil
}

// fail ends the reading of the template with an error at the current line.
func (l *lexer) fail(format string, args ...any) { throw(l.line, nil, format, args...) }

// emit appends a token at the current line.
func (l *lexer) emit(kind kind, text string) { l.tokens = append(l.tokens, token{kind, text, l.line}) }

// skip moves on to the position to. It counts lines, so that each character is looked at once.
func (l *lexer) skip(to int) {
	if to > l.at {
		l.line += strings.Count(l.source[l.at:to], "\n")
		l.lineStart = l.source[to-1] == '\n'
		l.at = to
	}
}

// take moves past text if it comes next.
func (l *lexer) take(text string) bool {
	if !strings.HasPrefix(l.source[l.at:], text) {
		return false
	}
	l.skip(l.at + len(text))
	return true
}

// trimSpace removes leading white space, of which Python knows more than package strings.
func trimSpace(text string) string { return strings.TrimLeftFunc(text, isSpace) }

// skipSpace moves past white space, and counts its lines.
func (l *lexer) skipSpace() { l.skip(len(l.source) - len(trimSpace(l.source[l.at:]))) }

// readText reads the text up to the next tag, and the tag.
func (l *lexer) readText() {
	at := l.nextTag()
	if at < 0 {
		l.emit(tokData, l.source[l.at:])
		l.skip(len(l.source))
		return
	}
	tag, sign := l.source[at:at+2], signOf(l.source[at+2:])
	l.emitData(l.source[l.at:at], sign, tag != "{{", l.lineStart)
	l.skip(at + 2 + len(sign))
	switch tag {
	case "{#":
		l.skipComment()
	case "{%":
		if l.readRaw() {
			return
		}
		l.emit(tokTag, "")
		l.readTag("%}", tokTagEnd)
	default:
		l.emit(tokPrint, "")
		l.readTag("}}", tokPrintEnd)
	}
}

// nextTag returns the position of the next tag of any kind, -1 if there is none.
func (l *lexer) nextTag() int {
	for at := l.at; ; at++ {
		offset := strings.IndexByte(l.source[at:], '{')
		if offset < 0 || at+offset+1 >= len(l.source) {
			return -1
		}
		at += offset
		if strings.IndexByte("{%#", l.source[at+1]) >= 0 {
			return at
		}
	}
}

// signOf returns the - or + with which a text begins, or "". A sign in a tag overrides the two options:
// - strips white space across lines, and + keeps what they would remove. {{ and }} remove nothing
// without a sign.
func signOf(text string) string {
	if text != "" && (text[0] == '-' || text[0] == '+') {
		return text[:1]
	}
	return ""
}

// emitData emits the text before a tag. The sign - removes the white space before the tag. Without
// a sign, a block tag removes white space before it on its line; lineStart says that data begins a
// line.
func (l *lexer) emitData(data, sign string, block, lineStart bool) {
	if sign == "-" {
		data = strings.TrimRightFunc(data, isSpace)
	}
	// White space goes only if nothing else stands before the tag on its line.
	line := strings.LastIndexByte(data, '\n') + 1
	if sign == "" && block && (line > 0 || lineStart) && trimSpace(data[line:]) == "" {
		data = data[:line]
	}
	if data != "" {
		l.emit(tokData, data)
	}
}

// skipComment moves past a comment, whose beginning was read.
func (l *lexer) skipComment() {
	if l.at == len(l.source) {
		return // the reference sees no comment that has no end here
	}
	size := strings.Index(l.source[l.at:], "#}")
	if size < 0 {
		l.fail("a comment has no end")
	}
	l.skip(l.at + size - 1)
	if !l.endTag("#}", true) { // the last character is no sign
		l.skip(l.at + 1)
		l.endTag("#}", true)
	}
}

// endTag moves past the end of a tag if it comes next, and past what its sign or trim_blocks
// removes.
func (l *lexer) endTag(end string, trim bool) bool {
	switch {
	case l.take("-" + end):
		l.skipSpace()
	case trim && l.take("+"+end):
	case l.take(end):
		if trim {
			l.take("\n")
		}
	default:
		return false
	}
	return true
}

// readRaw reads {% raw %} up to {% endraw %}, if that is the tag.
func (l *lexer) readRaw() bool {
	rest, ok := strings.CutPrefix(trimSpace(l.source[l.at:]), "raw")
	if !ok {
		return false
	}
	rest = trimSpace(rest)
	// What follows the name must be the end of the tag. If it is not, raw is no more than a name that the parser will
	// refuse.
	inner, strip := strings.CutPrefix(rest, "-")
	inner, ok = strings.CutPrefix(inner, "%}")
	if !ok {
		return false
	}
	l.skip(len(l.source) - len(inner))
	if strip {
		l.skipSpace()
	}
	if l.at == len(l.source) {
		return true // as with a comment
	}
	for at := l.at; ; at++ {
		offset := strings.Index(l.source[at:], "{%")
		if offset < 0 {
			l.fail("raw has no end")
		}
		at += offset
		// Only {% endraw %} ends the text: any other tag belongs to it.
		sign := signOf(l.source[at+2:])
		rest, ok := strings.CutPrefix(trimSpace(l.source[at+2+len(sign):]), "endraw")
		rest = trimSpace(rest)
		if !ok || !strings.HasPrefix(rest[len(signOf(rest)):], "%}") {
			continue
		}
		l.emitData(l.source[l.at:at], sign, true, l.lineStart)
		l.skip(len(l.source) - len(rest))
		l.endTag("%}", true)
		return true
	}
}

// maxName bounds a name in bytes, so that all look-ups cost about the same.
const maxName = 256

// operators, longest first.
var operators = strings.Fields("// ** == != >= <= + - / * % ~ [ ] ( ) { } > < = . : | , ;")

// readTag reads the expression of a tag up to end. Inside brackets the characters of end are
// operators.
func (l *lexer) readTag(end string, endKind kind) {
	var open []byte // what closes each bracket
	for {
		l.skipSpace()
		if l.at == len(l.source) {
			l.fail("a tag has no end, want %q", end)
		}
		line := l.line
		// }} can also close two mappings, so an end counts only outside brackets.
		if len(open) == 0 && l.endTag(end, end == "%}") {
			l.tokens = append(l.tokens, token{endKind, "", line})
			return
		}
		rest := l.source[l.at:]
		char, _ := utf8.DecodeRuneInString(rest)
		switch {
		case char >= '0' && char <= '9':
			l.readNumber()
		case isWord(char):
			l.readName()
		case char == '\'' || char == '"':
			l.readString(rest[0])
		default:
			open = l.readOperator(open)
		}
	}
}

// readName reads a name or keyword; which it is depends on where it stands.
func (l *lexer) readName() {
	rest := l.source[l.at:]
	size := len(rest) - len(strings.TrimLeftFunc(rest, isWord))
	if size > maxName {
		l.fail("a name of %d bytes, want at most %d", size, maxName)
	}
	l.emit(tokName, rest[:size])
	l.skip(l.at + size)
}

// readOperator reads an operator or bracket and returns which brackets are open after it.
func (l *lexer) readOperator(open []byte) []byte {
	rest := l.source[l.at:]
	// Longer operators come first in the list, so that // is not read as two of /.
	i := slices.IndexFunc(operators, func(operator string) bool { return strings.HasPrefix(rest, operator) })
	if i < 0 {
		char, _ := utf8.DecodeRuneInString(rest)
		l.fail("unexpected character %q", char)
	}
	switch operator := operators[i]; operator {
	case "(":
		open = append(open, ')')
	case "[":
		open = append(open, ']')
	case "{":
		open = append(open, '}')
	case ")", "]", "}":
		if len(open) == 0 || open[len(open)-1] != operator[0] {
			l.fail("unexpected %q", operator)
		}
		open = open[:len(open)-1]
	}
	l.emit(tokOp, operators[i])
	l.skip(l.at + len(operators[i]))
	return open
}

// isWord is \w of the reference's regular expressions.
func isWord(char rune) bool { return char == '_' || unicode.IsLetter(char) || unicode.IsNumber(char) }

// decimal are the digits of a number without a prefix.
const decimal = "0123456789"

// digitsOf are the digits after the prefix of a number that is not decimal.
var digitsOf = map[string]string{"0x": decimal + "abcdefABCDEF", "0o": "01234567", "0b": "01"}

// countDigits returns the length of the digits that text begins with, single underscores between them.
func countDigits(text, digits string) int {
	isDigit := func(i int) bool { return i < len(text) && strings.IndexByte(digits, text[i]) >= 0 }
	size := 0
	for isDigit(size) || size > 0 && size < len(text) && text[size] == '_' && isDigit(size+1) {
		size++
	}
	return size
}

// floatSize returns the length of the number with which text begins, including fraction and exponent;
// whole is the length of its integer digits.
func floatSize(text string, whole int) int {
	size := whole
	if strings.HasPrefix(text[size:], ".") {
		if digits := countDigits(text[size+1:], decimal); digits > 0 {
			size += 1 + digits
		}
	}
	if size == len(text) || text[size] != 'e' && text[size] != 'E' {
		return size
	}
	from := size + 1
	from += len(signOf(text[from:]))
	if digits := countDigits(text[from:], decimal); digits > 0 {
		size = from + digits
	}
	return size
}

// readNumber reads a number, without the underscores in it. Signs are operators.
func (l *lexer) readNumber() {
	rest := l.source[l.at:]
	whole := countDigits(rest, decimal)
	afterDot := l.at > 0 && l.source[l.at-1] == '.' // the number is the index of what is before the dot
	if size := floatSize(rest, whole); size > whole && !afterDot {
		l.emit(tokFloat, strings.ReplaceAll(rest[:size], "_", ""))
		l.skip(l.at + size)
		return
	}
	// A prefix without digits is a 0 with a name after it, which the parser refuses.
	if digits := digitsOf[strings.ToLower(rest[:min(2, len(rest))])]; digits != "" {
		if size := countDigits(rest[2:], digits); size > 0 {
			whole = 2 + size
		}
	}
	text := strings.ReplaceAll(rest[:whole], "_", "")
	// Python permits any number of zeros, but no other decimal number that begins with one.
	if strings.Trim(text, "0") == "" {
		text = "0"
	}
	if len(text) > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9' {
		l.fail("a number begins with 0: %q", text)
	}
	l.emit(tokInt, text)
	l.skip(l.at + whole)
}

// readString reads a string in either kind of quotes, with the escapes of Python.
func (l *lexer) readString(quote byte) {
	rest := l.source[l.at:]
	var out strings.Builder
	for i := 1; i < len(rest); {
		switch rest[i] {
		case quote:
			l.emit(tokString, out.String())
			l.skip(l.at + i + 1)
			return
		case '\\':
			text, size := l.escape(rest[i+1:])
			out.WriteString(text)
			i += 1 + size
		default:
			out.WriteByte(rest[i])
			i++
		}
	}
	l.fail("a string has no end")
}

// escape returns what a backslash before rest stands for, and how many bytes of rest belong to it.
func (l *lexer) escape(rest string) (text string, size int) {
	if rest == "" {
		l.fail("a string has no end")
	}
	switch char := rest[0]; char {
	case '\n':
		return "", 1
	case '\\', '\'', '"':
		return rest[:1], 1
	case 'a', 'b', 'f', 'n', 'r', 't', 'v':
		i := strings.IndexByte("abfnrtv", char)
		return "\a\b\f\n\r\t\v"[i : i+1], 1
	case '0', '1', '2', '3', '4', '5', '6', '7':
		octal := rest[:min(3, len(rest))]
		size = len(octal) - len(strings.TrimLeft(octal, "01234567"))
		code, _ := strconv.ParseUint(rest[:size], 8, 32)
		return string(rune(code)), size
	case 'x', 'u', 'U':
		size = 1 + map[byte]int{'x': 2, 'u': 4, 'U': 8}[char]
		if size > len(rest) {
			l.fail("a string has no end")
		}
		code, err := strconv.ParseUint(rest[1:size], 16, 32)
		if err != nil || code > utf8.MaxRune || !utf8.ValidRune(rune(code)) {
			l.fail("\\%c%s is not a character", char, rest[1:size])
		}
		return string(rune(code)), size
	case 'N':
		l.fail("\\N in a string is not supported")
	}
	// An unknown escape stands for itself, backslash included, as in Python.
	return `\` + rest[:1], 1
}

// isSpace is str.isspace of Python.
func isSpace(char rune) bool { return unicode.IsSpace(char) || char >= 0x1c && char <= 0x1f }
