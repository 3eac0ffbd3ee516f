package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Wrap joins words, which sep ends, into lines of readable width.
func Wrap(words []string, sep string) (lines []string) {
	const width = 72
	line := ""
	for i, word := range words {
		if i < len(words)-1 {
			word += sep
		}
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// Count writes a number with what is counted: 1 plan, 2 plans.
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Enumerate joins words as a sentence does: a, b and c.
func Enumerate(list []string) string {
	switch count := len(list); {
	case count == 0:
		return "nothing"
	case count == 1:
		return list[0]
	default:
		return strings.Join(list[:count-1], ", ") + " and " + list[count-1]
	}
}

// Progress returns what shows on a terminal how much of the work is done and how long the rest will take.
func Progress(s *Streams, what string) func(done, all int, part string) {
	line := s.Line(false)
	return func(done, all int, part string) {
		line.Bar(what, done, all, part)
		if done == all {
			line.End()
		}
	}
}

// Program returns how the user calls a program that lies beside this one.
func Program(name string) string {
	if dir, _ := filepath.Split(os.Args[0]); dir != "" {
		return Quote(filepath.Join(dir, name))
	}
	return name
}

// Kept tells that an output already is what the command would write.
func Kept(s *Streams, path, why string) error {
	s.Printf("%s: unchanged (%s)\n", path, why)
	return s.Result(map[string]any{"file": path, "unchanged": true, "why": why})
}

// Wrote tells what a file that was written holds.
func Wrote(s *Streams, path, format string, args ...any) {
	s.Printf("%s: %s\n", path, fmt.Sprintf(format, args...))
}
