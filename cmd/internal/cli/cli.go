// Package cli knows how hetc and hetrun speak: results on standard output, everything else on
// standard error as "TOOL: error:", "TOOL: warning:" and "TOOL: hint:" lines, lower case and without a
// full stop; exit codes from the class of the error; one JSON document per command under --json, also
// for every error; the way out for mistyped commands and flags; what a signal does.
//
// The functions of Streams are the only ones that print.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/tw"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/hetc/hetc/internal/child"
	"github.com/hetc/hetc/internal/diag"
	_ "github.com/hetc/hetc/internal/openfiles" // the first thing that a program does
)

// Streams is where a command reads and speaks.
type Streams struct {
	Tool string // "hetc", "hetrun"
	In   io.Reader
	Out  io.Writer // results
	Err  io.Writer // everything else
	JSON bool      // results and errors as one JSON document on Out

	answered bool     // there was a result: an error that follows has no document of its own
	line     *Line    // of progress, nil: none
	broken   []string // names with line breaks, which take one line in what is said
}

// Printf writes a part of the human result; under --json it is silent. What names of files and texts in them do to a
// terminal is spelled out, line breaks and tabs of the text itself are not.
func (s *Streams) Printf(format string, args ...any) {
	if s.JSON {
		return
	}
	s.line.clear()
	text := s.unbroken(fmt.Sprintf(format, args...))
	_, _ = io.WriteString(s.Out, spell(text, func(char rune) bool {
		return deceives(char) && char != '\n' && char != '\t'
	}))
}

// Result writes v under --json and is silent otherwise.
func (s *Streams) Result(v any) error {
	if !s.JSON {
		return nil
	}
	s.answered = true
	enc := json.NewEncoder(s.Out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// Warnf tells about something that did not stop the command.
func (s *Streams) Warnf(format string, args ...any) {
	s.say("warning: ", fmt.Sprintf(format, args...))
}

// Notef tells what is going on.
func (s *Streams) Notef(format string, args ...any) {
	s.say("", fmt.Sprintf(format, args...))
}

// say writes each line of a text to standard error after the program's name and what it is.
func (s *Streams) say(kind, text string) {
	s.line.clear()
	for line := range strings.SplitSeq(s.unbroken(text), "\n") {
		fmt.Fprintf(s.Err, "%s: %s%s\n", s.Tool, kind, visible(line))
	}
}

// unbroken spells out the line breaks in names that a text mentions.
func (s *Streams) unbroken(text string) string {
	for _, name := range s.broken {
		text = strings.ReplaceAll(text, name, visible(name))
	}
	return text
}

// Terminal reports whether standard error is a terminal: progress is shown only there.
func (s *Streams) Terminal() bool {
	file, ok := s.Err.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// tableWidth is how many columns a terminal needs for tables that Table fits into it.
const tableWidth = 120

// Table writes rows under a header, silent under --json. Columns whose header starts with ">" are
// aligned right. When the last one's starts with "<", its texts go on in further lines where the table would be wider
// than tableWidth.
func (s *Streams) Table(header []string, rows [][]string) {
	if s.JSON {
		return
	}
	s.line.clear()
	// markers of the header: "<" wraps the last column, ">" aligns right
	if last := len(header) - 1; strings.HasPrefix(header[last], "<") {
		header = slices.Clone(header)
		header[last] = header[last][1:]
		rows = wrapLast(header, rows)
	}
	names := make([]string, len(header))
	align := make([]tw.Align, len(header))
	for i, h := range header {
		names[i], align[i] = h, tw.AlignLeft
		if right, ok := strings.CutPrefix(h, ">"); ok {
			names[i], align[i] = right, tw.AlignRight
		}
	}
	table := tablewriter.NewTable(s.Out,
		tablewriter.WithRendition(tw.Rendition{
			Borders:  tw.Border{Left: tw.Off, Right: tw.Off, Top: tw.Off, Bottom: tw.Off},
			Settings: tw.Settings{Separators: tw.Separators{BetweenColumns: tw.Off, BetweenRows: tw.Off}},
		}),
		tablewriter.WithHeaderAutoFormat(tw.Off),
		tablewriter.WithTrimSpace(tw.Off),
		tablewriter.WithRowAutoWrap(tw.WrapNone),
		tablewriter.WithHeaderAlignmentConfig(tw.CellAlignment{PerColumn: align}),
		tablewriter.WithRowAlignmentConfig(tw.CellAlignment{PerColumn: align}),
	)
	table.Header(names)
	for _, row := range rows {
		shown := make([]string, len(row)) // names of keys and tensors come from files
		for i := range row {
			shown[i] = visible(row[i])
		}
		_ = table.Append(shown)
	}
	_ = table.Render()
}

// wrapLast continues texts of the last column in rows of their own.
func wrapLast(header []string, rows [][]string) (out [][]string) {
	const least, pad = 40, 2
	last := len(header) - 1
	// what the other columns leave of the line
	width := tableWidth - pad
	for c := range last {
		most := utf8.RuneCountInString(strings.TrimPrefix(header[c], ">"))
		for _, row := range rows {
			most = max(most, utf8.RuneCountInString(visible(row[c])))
		}
		width -= most + pad
	}
	width = max(least, width)
	for _, row := range rows {
		row, line := slices.Clone(row), ""
		// greedy line breaking; further lines have empty cells in front
		words := strings.Fields(row[last])
		for i, word := range words {
			if i > 0 && utf8.RuneCountInString(visible(line))+1+utf8.RuneCountInString(visible(word)) > width {
				row[last] = line
				out = append(out, row)
				row, line = make([]string, len(header)), ""
			}
			if line != "" {
				line += " "
			}
			line += word
		}
		row[last] = line
		out = append(out, row)
	}
	return out
}

// errorDocument is what --json prints when a command fails. Message, code and path are those of the
// whole error; Diagnostics has every finding, outermost first.
type errorDocument struct {
	Error struct {
		// one of diag's classes, on which the exit code depends
		Class       string    `json:"class"`
		ExitCode    int       `json:"exit_code"`
		Message     string    `json:"message"`
		Code        string    `json:"code,omitempty"`
		Path        string    `json:"path,omitempty"`
		Hints       []string  `json:"hints,omitempty"`
		Diagnostics []finding `json:"diagnostics,omitempty"`
	} `json:"error"`
}

// finding is one diagnostic of an error.
type finding struct {
	Severity string `json:"severity"`
	Class    string `json:"class"`
	Code     string `json:"code,omitempty"`
	// place within a document, such as "procs[0].kind"
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// noteBreaks keeps those parts of file names that contain line breaks. A text has several lines where it tells of
// several things, and a name must not look like one of them.
func (s *Streams) noteBreaks(names ...string) {
	for _, name := range names {
		for _, part := range strings.FieldsFunc(name, func(r rune) bool { return r == '/' || r == '=' }) {
			if strings.Contains(part, "\n") && strings.TrimSpace(part) != "" {
				s.broken = append(s.broken, part)
			}
		}
	}
}

// pathsOf lists the files that the operating system's errors in err's chain name.
func pathsOf(err error) (paths []string) {
	switch of := err.(type) {
	case *os.PathError:
		paths = []string{of.Path}
	case *os.LinkError:
		paths = []string{of.Old, of.New}
	}
	switch wrapper := err.(type) {
	case interface{ Unwrap() error }:
		return append(paths, pathsOf(wrapper.Unwrap())...)
	case interface{ Unwrap() []error }:
		for _, cause := range wrapper.Unwrap() {
			paths = append(paths, pathsOf(cause)...)
		}
	}
	return paths
}

// report prints an error and returns the exit code.
func (s *Streams) report(err error) int {
	s.noteBreaks(pathsOf(err)...)
	class := diag.ClassOf(err)
	switch {
	// what the system refuses is no defect of this program
	case errors.Is(err, syscall.ENOMEM) &&
		(class == diag.ClassInternal || class == diag.ClassIO || class == diag.ClassRun):
		class = diag.ClassUnavailable
	case class == diag.ClassInternal && isIO(err):
		class = diag.ClassIO
	}
	hints := diag.HintsOf(err)
	if len(hints) == 0 {
		if h := wayOut(class, err); h != "" {
			hints = append(hints, h)
		}
	}
	// one document per run: an answer that was printed already stays the only one
	if s.JSON && !s.answered {
		var doc errorDocument
		body := &doc.Error
		body.Class, body.ExitCode, body.Message, body.Hints = class.String(), int(class), err.Error(), hints
		for i, diagnostic := range diag.All(err) {
			if i == 0 {
				body.Code, body.Path = diagnostic.Code, diagnostic.Path
			}
			body.Diagnostics = append(body.Diagnostics,
				finding{diagnostic.Severity.String(), diagnostic.Class.String(), diagnostic.Code, diagnostic.Path,
					diagnostic.Summary, diagnostic.Hint})
		}
		_ = s.Result(doc)
	}
	s.say("error: ", err.Error())
	for _, h := range hints {
		s.say("hint: ", h)
	}
	return int(class)
}

// visible spells out what would reach the terminal as something else than itself; names of files may hold it.
func visible(text string) string { return spell(text, deceives) }

// deceives reports whether a character acts on a terminal or on the order in which it shows a line.
func deceives(char rune) bool {
	const lineSeparator, paragraphSeparator = '\u2028', '\u2029'
	return unicode.IsControl(char) || unicode.Is(unicode.Bidi_Control, char) ||
		char == lineSeparator || char == paragraphSeparator
}

// spell writes the characters that are hidden as their numbers.
func spell(text string, hidden func(char rune) bool) string {
	if strings.IndexFunc(text, hidden) < 0 {
		return text
	}
	var spelled strings.Builder
	for _, char := range text {
		switch {
		case !hidden(char):
			spelled.WriteRune(char)
		case char <= 0xff:
			fmt.Fprintf(&spelled, "\\x%02x", char)
		default:
			fmt.Fprintf(&spelled, "\\u%04x", char)
		}
	}
	return spelled.String()
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:=,@%+-]+$`)

// Quote writes the words of a command line so that a shell reads them back.
func Quote(words ...string) string {
	out := make([]string, len(words))
	for i, word := range words {
		if out[i] = word; !plainWord.MatchString(word) {
			out[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(out, " ")
}

// wayOut returns the hint of an error that brings none.
func wayOut(class diag.Class, err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return "free space on the device, or write elsewhere"
	case errors.Is(err, syscall.EROFS):
		return "the file system is read-only: write elsewhere"
	case errors.Is(err, syscall.ENOMEM):
		return "free memory, raise the limits of this process (ulimit -v), or use a machine with more; hetc doctor " +
			"shows what there is"
	case errors.Is(err, syscall.EFBIG):
		return "this process may not write files of that size: raise the limit (ulimit -f), or write to another " +
			"file system"
	case errors.Is(err, syscall.ENAMETOOLONG):
		return "give a shorter name"
	case errors.Is(err, syscall.EISDIR), class == diag.ClassIO && errors.Is(err, os.ErrExist):
		return "a directory is there: give the name of a file"
	case errors.Is(err, os.ErrPermission):
		return "change the permissions, or use another file"
	case errors.Is(err, os.ErrNotExist):
		return "check the path: the file or its directory does not exist"
	case class == diag.ClassInput:
		return "correct what the error names, or make or fetch the file again"
	case class == diag.ClassVerify:
		return "do not use the file; fetch it again from whom you trust"
	case class == diag.ClassUsage:
		return "--help lists the flags and what they accept"
	case class == diag.ClassInterrupted:
		return "no output was left behind; run the same command again"
	case class == diag.ClassIO:
		return "check the path and its permissions; hetc doctor looks at disk space and limits"
	case class == diag.ClassUnavailable:
		return "hetc drivers lists what this build and this machine have, hetc doctor what is missing"
	case class == diag.ClassIllegal:
		return "make the plan again with hetc solve"
	case class == diag.ClassInternal:
		return "this should not happen: please report it with the command line"
	}
	return ""
}

// isIO reports whether an error comes from the operating system.
func isIO(err error) bool {
	var path *os.PathError
	var link *os.LinkError
	var sys *os.SyscallError
	var no syscall.Errno
	return errors.As(err, &path) || errors.As(err, &link) || errors.As(err, &sys) || errors.As(err, &no)
}

// ExitCodes is the table shown in every help text.
const ExitCodes = `Exit codes:
  0    success
  1    internal error
  2    wrong command line
  3    an input file is missing, malformed or inconsistent
  4    a library, device, feature or memory is not available here
  5    a signature, digest or trust check failed
  6    no plan satisfies the limits
  7    the plan is not legal
  8    execution failed, or its check against the reference or the self-test of a device did
  9    reading or writing failed (disk full, permissions)
  130  interrupted`

// Main runs a command line: it builds the root command, runs it under a context that SIGINT, SIGTERM
// and SIGHUP cancel, reports the error if any, and returns the exit code. A second signal ends the
// process at once.
func Main(
	tool string, args []string, in io.Reader, out, errw io.Writer, root func(*Streams) *cobra.Command,
) (code int) {
	results := &stickyWriter{w: out}
	ui := &Streams{Tool: tool, In: in, Out: results, Err: errw}
	ui.noteBreaks(args...)
	defer func() {
		if p := recover(); p != nil {
			code = ui.report(diag.New(diag.ClassInternal, "a defect of %s: %v", tool, p).
				WithHint("please report it with the command line and what follows"))
			fmt.Fprintf(errw, "%s\n", debug.Stack())
		}
	}()
	// out of the environment before any child process is started
	child.TakeSigningKey()
	cmd := Prepare(ui, root, args...)
	ctx, stop := signalContext()
	defer stop()
	context.AfterFunc(ctx, stop) // from now on a signal does what it does by default
	if err := cmd.ExecuteContext(ctx); err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = interrupted(err)
		}
		ui.JSON = ui.JSON || wantsJSON(args)
		return ui.report(err)
	}
	if results.err != nil {
		return ui.report(diag.New(diag.ClassIO, "write results: %w", results.err))
	}
	// Help and versions are text, also under --json; every other success is a document.
	if ui.JSON && !results.began {
		return ui.report(diag.New(diag.ClassInternal, "%s ended without a result to print under --json", tool))
	}
	return 0
}

// Prepare builds the root command of a program for a command line, with the flags and manners that all
// commands have.
func Prepare(ui *Streams, root func(*Streams) *cobra.Command, args ...string) *cobra.Command {
	cmd := root(ui)
	cmd.SetArgs(append([]string{}, args...)) // never those of the process
	cmd.SetIn(ui.In)
	cmd.SetOut(ui.Out)
	cmd.SetErr(ui.Err)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.Version = Version
	cmd.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	cmd.PersistentFlags().BoolVar(&ui.JSON, "json", ui.JSON, "print the result, or the error, as one JSON document")
	manners(cmd, args)
	return cmd
}

// signalContext is cancelled by the first signal that asks the process to end.
func signalContext() (context.Context, context.CancelFunc) {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		signals = append(signals, syscall.SIGHUP)
	}
	return signal.NotifyContext(context.Background(), signals...)
}

// interrupted says what a signal ended, where the command can tell, and how to go on.
func interrupted(err error) error {
	what := strings.TrimSuffix(strings.TrimSuffix(err.Error(), context.Canceled.Error()), ": ")
	finding := diag.New(diag.ClassInterrupted, "interrupted")
	if what != "" {
		finding = diag.New(diag.ClassInterrupted, "interrupted: %s", what)
	}
	if hints := diag.HintsOf(err); len(hints) > 0 {
		return finding.WithHint("%s", hints[0])
	}
	return finding
}

// wantsJSON finds --json on a command line that was not understood up to it.
func wantsJSON(args []string) bool {
	for _, arg := range args {
		switch value, set := strings.CutPrefix(arg, "--json="); {
		case arg == "--":
			return false
		case arg == "--json":
			return true
		case set:
			on, err := strconv.ParseBool(value)
			return on && err == nil
		}
	}
	return false
}

// stickyWriter remembers the first failure, so that a result that could not be written is not a success, and whether
// there was something to write.
type stickyWriter struct {
	w     io.Writer
	err   error
	began bool
}

// Write passes on what it is given until the first failure.
func (w *stickyWriter) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	w.began = true
	n, err := w.w.Write(p)
	w.err = err
	return n, err
}

// Required refuses a command line that lacks one of the named flags.
func Required(cmd *cobra.Command, names ...string) error {
	var missing []string
	for _, n := range names {
		if flag := cmd.Flags().Lookup(n); flag == nil || !flag.Changed {
			missing = append(missing, "--"+n)
		}
	}
	if len(missing) > 0 {
		return diag.New(diag.ClassUsage, "%s: missing %s", cmd.CommandPath(), strings.Join(missing, ", ")).
			WithHint("usage: %s", cmd.UseLine())
	}
	return nil
}
