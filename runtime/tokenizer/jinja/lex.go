package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// kind is a kind of token.
type kind int

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

func (k kind) String() string {
	return [...]string{"text", "{{", "}}", "{%", "%}", "name", "string", "number", "number", "operator", "end of template"}[k]
}

type token struct {
	kind kind
	text string // of a string: its value
	line int
}

func (t token) describe() string {
	if t.kind == tokName || t.kind == tokOp {
		return strconv.Quote(t.text)
	}
	return t.kind.String()
}

// lexer splits a template as Jinja does with trim_blocks and lstrip_blocks: the line break after a tag and the
// white space before it on its line are no text.
type lexer struct {
	in     string
	at     int
	line   int
	starts bool // the last token ended a line
	tokens []token
}

// lex reads a template. Line breaks of all kinds count as \n, and one at the end is dropped.
func lex(source string) (tokens []token, err error) {
	source = strings.ToValidUTF8(source, "\ufffd")
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	l := &lexer{in: strings.TrimSuffix(source, "\n"), line: 1, starts: true}
	defer catch(&err)
	for l.at < len(l.in) {
		l.text()
	}
	return append(l.tokens, token{tokEOF, "", l.line}), nil
}

func (l *lexer) fail(format string, args ...any) { throw(l.line, nil, format, args...) }

func (l *lexer) emit(k kind, text string) { l.tokens = append(l.tokens, token{k, text, l.line}) }

// skip moves on to the position to.
func (l *lexer) skip(to int) {
	if to > l.at {
		l.line += strings.Count(l.in[l.at:to], "\n")
		l.starts = l.in[to-1] == '\n'
		l.at = to
	}
}

// take moves past s if it comes next.
func (l *lexer) take(s string) bool {
	if !strings.HasPrefix(l.in[l.at:], s) {
		return false
	}
	l.skip(l.at + len(s))
	return true
}

func (l *lexer) skipSpace() {
	l.skip(len(l.in) - len(strings.TrimLeftFunc(l.in[l.at:], isSpace)))
}

// text reads up to the next tag, and the tag.
func (l *lexer) text() {
	from := l.at
	at := from
	for {
		n := strings.IndexByte(l.in[at:], '{')
		if n < 0 || at+n+1 >= len(l.in) {
			l.emit(tokData, l.in[from:])
			l.skip(len(l.in))
			return
		}
		if at += n; strings.IndexByte("{%#", l.in[at+1]) >= 0 {
			break
		}
		at++
	}
	data, tag := l.in[from:at], l.in[at:at+2]
	sign := byte(0)
	if at+2 < len(l.in) && (l.in[at+2] == '-' || l.in[at+2] == '+') {
		sign = l.in[at+2]
	}
	stripped := data
	switch {
	case sign == '-':
		stripped = strings.TrimRightFunc(data, isSpace)
	case sign == 0 && tag != "{{":
		begin := strings.LastIndexByte(data, '\n') + 1
		if (begin > 0 || l.starts) && strings.TrimLeftFunc(data[begin:], isSpace) == "" {
			stripped = data[:begin]
		}
	}
	if stripped != "" {
		l.emit(tokData, stripped)
	}
	l.skip(at + 2)
	if sign != 0 {
		l.skip(l.at + 1)
	}
	switch tag {
	case "{#":
		n := strings.Index(l.in[l.at:], "#}")
		if l.at == len(l.in) {
			return // the reference sees no comment that has no end here
		}
		if n < 0 {
			l.fail("a comment has no end")
		}
		end := l.at + n
		l.skip(max(l.at, end-1))
		l.endTag("#}", true)
	case "{%":
		if l.raw() {
			return
		}
		l.emit(tokTag, "")
		l.inside("%}", tokTagEnd)
	default:
		l.emit(tokPrint, "")
		l.inside("}}", tokPrintEnd)
	}
}

// endTag moves past the end of a tag, with what its sign and trim_blocks take along, if it comes next.
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
		if end == "#}" { // the character before the end belongs to the comment
			l.skip(l.at + 1)
			return l.endTag(end, trim)
		}
		return false
	}
	return true
}

// raw reads {% raw %} up to {% endraw %}, if that is the tag.
func (l *lexer) raw() bool {
	rest, ok := strings.CutPrefix(strings.TrimLeftFunc(l.in[l.at:], isSpace), "raw")
	if !ok {
		return false
	}
	rest = strings.TrimLeftFunc(rest, isSpace)
	switch {
	case strings.HasPrefix(rest, "-%}"):
		l.skip(len(l.in) - len(rest) + 3)
		l.skipSpace()
	case strings.HasPrefix(rest, "%}"):
		l.skip(len(l.in) - len(rest) + 2)
	default:
		return false
	}
	if l.at == len(l.in) {
		return true // as with a comment
	}
	from, starts := l.at, l.starts
	for at := from; ; at++ {
		n := strings.Index(l.in[at:], "{%")
		if n < 0 {
			l.fail("raw has no end")
		}
		at += n
		body, sign := l.in[at+2:], ""
		if body != "" && (body[0] == '-' || body[0] == '+') {
			sign, body = body[:1], body[1:]
		}
		name, ok := strings.CutPrefix(strings.TrimLeftFunc(body, isSpace), "endraw")
		name = strings.TrimLeftFunc(name, isSpace)
		if !ok || !strings.HasPrefix(name, "%}") && !strings.HasPrefix(name, "-%}") && !strings.HasPrefix(name, "+%}") {
			continue
		}
		data := l.in[from:at]
		if sign == "-" {
			data = strings.TrimRightFunc(data, isSpace)
		} else if begin := strings.LastIndexByte(data, '\n') + 1; sign == "" && (begin > 0 || starts) && strings.TrimLeftFunc(data[begin:], isSpace) == "" {
			data = data[:begin]
		}
		if data != "" {
			l.emit(tokData, data)
		}
		l.skip(len(l.in) - len(name))
		l.endTag("%}", true)
		return true
	}
}

// maxName bounds a name in bytes, so that looking one up takes as long as looking up any other.
const maxName = 256

// operators, longest first.
var operators = []string{"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",", ";"}

// inside reads the expression of a tag up to end.
func (l *lexer) inside(end string, endKind kind) {
	var open []byte // brackets
	for {
		l.skipSpace()
		if l.at == len(l.in) {
			l.fail("a tag has no end, want %q", end)
		}
		if len(open) == 0 {
			line := l.line
			if l.endTag(end, end == "%}") {
				l.tokens = append(l.tokens, token{endKind, "", line})
				return
			}
		}
		rest := l.in[l.at:]
		c := rest[0]
		r, _ := utf8.DecodeRuneInString(rest)
		switch {
		case c >= '0' && c <= '9':
			l.number()
		case isWord(r):
			n := strings.IndexFunc(rest, func(r rune) bool { return !isWord(r) })
			if n < 0 {
				n = len(rest)
			}
			if n > maxName {
				l.fail("a name of %d bytes, want at most %d", n, maxName)
			}
			l.emit(tokName, rest[:n])
			l.skip(l.at + n)
		case c == '\'' || c == '"':
			l.quoted(c)
		default:
			op := ""
			for _, o := range operators {
				if strings.HasPrefix(rest, o) {
					op = o
					break
				}
			}
			switch op {
			case "":
				l.fail("unexpected character %q", r)
			case "(":
				open = append(open, ')')
			case "[":
				open = append(open, ']')
			case "{":
				open = append(open, '}')
			case ")", "]", "}":
				if len(open) == 0 || open[len(open)-1] != op[0] {
					l.fail("unexpected %q", op)
				}
				open = open[:len(open)-1]
			}
			l.emit(tokOp, op)
			l.skip(l.at + len(op))
		}
	}
}

// isWord is \w of the reference's regular expressions.
func isWord(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r) }

// digits is the length of digits in s, single underscores between them.
func digits(s, set string) int {
	n := 0
	for n < len(s) && (strings.IndexByte(set, s[n]) >= 0 || s[n] == '_' && n > 0 && n+1 < len(s) && strings.IndexByte(set, s[n+1]) >= 0) {
		n++
	}
	return n
}

const decimal = "0123456789"

func (l *lexer) number() {
	rest := l.in[l.at:]
	n := digits(rest, decimal)
	end := n
	// After a dot, a number is the index of what is before it.
	index := l.at > 0 && l.in[l.at-1] == '.'
	if !index {
		if m := digits(rest[min(n+1, len(rest)):], decimal); n < len(rest) && rest[n] == '.' && m > 0 {
			end = n + 1 + m
		}
		if e := end; e < len(rest) && (rest[e] == 'e' || rest[e] == 'E') {
			if e++; e < len(rest) && (rest[e] == '+' || rest[e] == '-') {
				e++
			}
			if m := digits(rest[min(e, len(rest)):], decimal); m > 0 {
				end = e + m
			}
		}
	}
	if end > n {
		l.emit(tokFloat, strings.ReplaceAll(rest[:end], "_", ""))
		l.skip(l.at + end)
		return
	}
	if len(rest) > 2 && rest[0] == '0' {
		for prefix, set := range map[string]string{"0x": decimal + "abcdefABCDEF", "0o": "01234567", "0b": "01"} {
			if m := digits(rest[2:], set); strings.EqualFold(rest[:2], prefix) && m > 0 {
				n = 2 + m
			}
		}
	}
	text := strings.ReplaceAll(rest[:n], "_", "")
	if text[0] == '0' && strings.Trim(text, "0") == "" {
		text = "0"
	}
	if len(text) > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9' {
		l.fail("a number begins with 0: %q", text)
	}
	l.emit(tokInt, text)
	l.skip(l.at + n)
}

func (l *lexer) quoted(quote byte) {
	rest := l.in[l.at:]
	var b strings.Builder
	for i := 1; ; i++ {
		if i >= len(rest) {
			l.fail("a string has no end")
		}
		if rest[i] == quote {
			l.emit(tokString, b.String())
			l.skip(l.at + i + 1)
			return
		}
		if rest[i] != '\\' {
			b.WriteByte(rest[i])
			continue
		}
		if i++; i == len(rest) {
			l.fail("a string has no end")
		}
		switch c := rest[i]; c {
		case '\n':
		case '\\', '\'', '"':
			b.WriteByte(c)
		case 'a', 'b', 'f', 'n', 'r', 't', 'v':
			b.WriteByte("\a\b\f\n\r\t\v"[strings.IndexByte("abfnrtv", c)])
		case '0', '1', '2', '3', '4', '5', '6', '7':
			n := 1
			for n < 3 && i+n < len(rest) && rest[i+n] >= '0' && rest[i+n] <= '7' {
				n++
			}
			v, _ := strconv.ParseUint(rest[i:i+n], 8, 32)
			b.WriteRune(rune(v))
			i += n - 1
		case 'x', 'u', 'U':
			n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			if i+n >= len(rest) {
				l.fail("a string has no end")
			}
			v, err := strconv.ParseUint(rest[i+1:i+1+n], 16, 32)
			if err != nil || !utf8.ValidRune(rune(v)) || v > utf8.MaxRune {
				l.fail("\\%c%s is not a character", c, rest[i+1:i+1+n])
			}
			b.WriteRune(rune(v))
			i += n
		case 'N':
			l.fail("\\N in a string is not supported")
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
}

// isSpace is str.isspace of Python.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// Error is what is wrong with a template, or went wrong while it was executed.
type Error struct {
	Line    int // in the template, 0 if unknown
	Message string
	Cause   error // ErrLimit, ErrRefused, the error of the context, or nil
}

func (e *Error) Unwrap() error { return e.Cause }

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.Message
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Message)
}

// throw gives up; catch turns that into an error. Nothing else panics here.
func throw(line int, cause error, format string, args ...any) {
	panic(&Error{line, fmt.Sprintf(format, clipped(args)...), cause})
}

// clipped shortens the texts of a message: they are a stranger's, and of any length.
func clipped(args []any) []any {
	const most = 300 // bytes
	for i, a := range args {
		if s, ok := a.(string); ok && len(s) > most {
			args[i] = strings.ToValidUTF8(s[:most], "") + "..."
		}
	}
	return args
}

func catch(err *error) {
	switch r := recover().(type) {
	case nil:
	case *Error:
		*err = r
	default:
		panic(r)
	}
}
