package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// terminalLine is a line on a terminal of some columns, where every call comes a second after the one before.
func terminalLine(columns int) (*Line, *Streams, *bytes.Buffer) {
	var out bytes.Buffer
	at := time.Unix(0, 0)
	s := &Streams{Tool: "hetc", Err: &out}
	l := &Line{s: s, w: &out, terminal: true, width: func() int { return columns }, now: func() time.Time {
		at = at.Add(time.Second)
		return at
	}}
	s.line = l
	return l, s, &out
}

// Whatever is to be told, a line never wraps, and what follows it begins at the left.
func TestLineStaysInItsWidth(t *testing.T) {
	for _, columns := range []int{0, 1, 20, 40, 59, 60, 80, 100, 200} {
		l, s, out := terminalLine(columns)
		for i := range 200 {
			l.Bar("profile", i, 200, strings.Repeat("attention[é256,64]x", i%17)+"\x1b[2J\n")
			if i == 100 {
				s.Warnf("something else")
			}
		}
		l.End()
		text := out.String()
		if !strings.HasSuffix(text, "\n") || strings.Contains(text, "[2J") && !strings.Contains(text, `\x1b[2J`) {
			t.Errorf("%d columns: ends with %q", columns, text[max(0, len(text)-40):])
		}
		lines := 0
		for drawn := range strings.SplitSeq(text, "\r\x1b[K") {
			if strings.Contains(drawn, "hetc: warning: something else\n") {
				lines++
				continue
			}
			drawn = strings.TrimSuffix(drawn, "\n")
			if n := utf8.RuneCountInString(drawn); n >= max(narrowest, columns) || strings.Contains(drawn, "\n") {
				t.Fatalf("%d columns: %d in %q", columns, n, drawn)
			}
		}
		if lines != 1 {
			t.Errorf("%d columns: the warning does not stand in a line of its own:\n%q", columns, text)
		}
	}
}

// A file gets whole lines, one every few seconds, and none where nobody asked.
func TestLinesOfAFile(t *testing.T) {
	var out bytes.Buffer
	s := &Streams{Tool: "hetc", Err: &out}
	if l := s.Line(false); l != nil {
		t.Error("a line of progress nobody asked for")
	}
	l := s.Line(true)
	at := l.began
	l.now = func() time.Time { at = at.Add(time.Second); return at }
	for i := range 60 {
		l.Show("choose schemes: %d", i)
	}
	l.End()
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	for _, line := range lines {
		var n int
		if _, err := fmt.Sscanf(line, "hetc: choose schemes: %d", &n); err != nil {
			t.Errorf("%q: %v", line, err)
		}
	}
	if len(lines) < 3 || len(lines) > 60/int(lineEvery/time.Second) {
		t.Errorf("%d lines in a minute", len(lines))
	}
	var none *Line // nothing is told, and nothing breaks
	none.Show("x")
	none.Bar("x", 1, 2, "y")
	none.End()
}
