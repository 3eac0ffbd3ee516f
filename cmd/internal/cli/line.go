package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

const (
	redrawEvery  = 100 * time.Millisecond
	lineEvery    = 5 * time.Second
	narrowest    = 20 // columns, whatever a terminal says
	defaultWidth = 80
	barWidth     = 20
	barFrom      = 60 // columns of a terminal that has room for a bar
)

// Line tells how far a command is: on a terminal in one line that is drawn again in its place and never wraps,
// elsewhere, where that is asked for, in lines of their own every few seconds. A nil Line tells nothing. It may be
// used by several goroutines.
type Line struct {
	s        *Streams
	w        io.Writer
	terminal bool
	// columns of the terminal
	width func() int
	now   func() time.Time

	mu sync.Mutex
	// of the first text
	began time.Time
	next  time.Time // nothing is shown before
	text  string    // latest
	drawn bool      // the cursor stands in the line
	ended bool
}

// Line returns the command's line of progress: nil where standard error is no terminal, unless asked. End ends it.
func (s *Streams) Line(asked bool) *Line {
	if !s.Terminal() && !asked {
		return nil
	}
	line := &Line{s: s, w: s.Err, terminal: s.Terminal(), width: s.width, now: time.Now}
	line.began = line.now()
	if line.next = line.began; !line.terminal {
		line.next = line.began.Add(lineEvery)
	}
	s.line = line
	return line
}

// width returns the number of columns of standard error.
func (s *Streams) width() int {
	if file, ok := s.Err.(*os.File); ok {
		if columns, _, err := term.GetSize(int(file.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return defaultWidth
}

// Show tells a text, when it is time to.
func (l *Line) Show(format string, args ...any) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = visible(fmt.Sprintf(format, args...))
	if l.ended || l.now().Before(l.next) {
		return
	}
	l.draw()
}

// Bar shows done of all, the time that is left if the rest goes as fast, and what is being done.
func (l *Line) Bar(what string, done, all int, part string) {
	if l == nil {
		return
	}
	left := time.Duration(0)
	if done > 0 {
		left = time.Duration(float64(l.now().Sub(l.began)) / float64(done) * float64(all-done))
	}
	l.BarLeft(what, done, all, left, part)
}

// BarLeft is Bar where the time that is left is known; 0: it is not.
func (l *Line) BarLeft(what string, done, all int, left time.Duration, part string) {
	if l == nil {
		return
	}
	var text strings.Builder
	text.WriteString(what)
	if l.terminal && l.width() >= barFrom && all > 0 {
		full := min(barWidth, barWidth*done/all)
		fmt.Fprintf(&text, " [%s%s]", strings.Repeat("=", full), strings.Repeat(" ", barWidth-full))
	}
	fmt.Fprintf(&text, " %d/%d", done, all)
	if left > 0 {
		fmt.Fprintf(&text, ", %v left", left.Round(time.Second))
	}
	if part != "" {
		text.WriteString(", " + part)
	}
	l.Show("%s", text.String())
}

// draw writes the text. The last column stays free: some terminals wrap when it is written to.
func (l *Line) draw() {
	if !l.terminal {
		l.next = l.now().Add(lineEvery)
		fmt.Fprintf(l.w, "%s: %s\n", l.s.Tool, l.text)
		return
	}
	l.next, l.drawn = l.now().Add(redrawEvery), true
	fmt.Fprintf(l.w, "\r\x1b[K%s", cut(l.text, max(narrowest, l.width())-1))
}

// cut shortens a text to a number of columns.
func cut(text string, columns int) string {
	if utf8.RuneCountInString(text) <= columns {
		return text
	}
	runes := []rune(text)
	return string(runes[:columns-1]) + "…"
}

// clear makes room for something else on standard error; the line is drawn again below it.
func (l *Line) clear() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.drawn && !l.ended {
		fmt.Fprint(l.w, "\r\x1b[K")
		l.drawn = false
	}
}

// End draws the last text and ends the line.
func (l *Line) End() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended && l.drawn { // else something else was told since
		l.draw()
		fmt.Fprintln(l.w)
	}
	l.ended = true
}
