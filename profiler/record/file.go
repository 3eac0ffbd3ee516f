package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/filelock"
	"github.com/hetc/hetc/internal/wholefile"
)

// Open reads a record file.
func Open(path string) (*Set, error) {
	file, err := wholefile.Open(path)
	if err != nil {
		return nil, diag.New(diag.ClassOf(err), "record: %w", err)
	}
	defer file.Close()
	return Read(path, file)
}

// Read reads a record; name is shown in errors. A last line without its end is left out and
// reported as Set.Truncated; anything else that is not a measurement is an error with its line.
func Read(name string, from io.Reader) (*Set, error) {
	set, _, err := read(name, from)
	if err != nil {
		return nil, err
	}
	if set == nil {
		return nil, diag.New(diag.ClassInput, "record has no header line").WithCode("record.syntax").At("%s:1", name).
			WithHint("the profile was interrupted before it began; run it again")
	}
	return set, nil
}

// read also returns the size of the whole lines. The set is nil when not even the header is whole.
func read(name string, from io.Reader) (*Set, int64, error) {
	br := bufio.NewReaderSize(from, 1<<16)
	var set *Set
	var good int64
	for line := 1; ; line++ {
		text, whole, err := readLine(br)
		if err != nil {
			if errors.Is(err, errLong) {
				return nil, 0, diag.New(diag.ClassInput, "line is longer than %d bytes", maxLine).
					WithCode("record.syntax").At("%s:%d", name, line)
			}
			return nil, 0, diag.New(diag.ClassIO, "read record %q: %w", name, err)
		}
		// What follows the last line end is what a kill has left of a line. It is counted as not there, and Resume cuts
		// it off.
		if !whole {
			if set != nil {
				set.Truncated = len(text) > 0
			}
			return set, good, nil
		}
		good += int64(len(text)) + 1
		if set == nil {
			if set, err = readHeader(name, line, text); err != nil {
				return nil, 0, err
			}
			continue
		}
		if err := set.readMeasurement(name, line, text); err != nil {
			return nil, 0, err
		}
	}
}

// errLong says that a line is longer than any that hetc writes.
var errLong = errors.New("line too long")

// readLine returns a line without its end; whole is false for what follows the last line end.
func readLine(br *bufio.Reader) (text []byte, whole bool, err error) {
	for {
		part, err := br.ReadSlice('\n')
		text = append(text, part...)
		if len(text) > maxLine {
			return nil, false, errLong
		}
		switch {
		// A line longer than the reader's buffer comes in parts, of which ReadSlice says that its buffer is full.
		case err == nil:
			return text[:len(text)-1], true, nil
		case err == io.EOF:
			return text, false, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, false, err
		}
	}
}

// readHeader begins a set with the first line of a record.
func readHeader(name string, line int, text []byte) (*Set, error) {
	document, err := parse(name, line, text)
	if err != nil {
		return nil, err
	}
	if document.Schema() == "" {
		return nil, diag.New(diag.ClassInput, "key \"schema\" is missing, want %q", Schema).
			WithCode("decode.schema").At("%s:%d", name, line).
			WithHint("a record begins with a line that says which machine it is about: fetch the file again, or " +
				"profile anew")
	}
	var header Header
	if err := document.Into(Schema, &header); err != nil {
		return nil, err
	}
	if err := header.validate(); err != nil {
		return nil, diag.New(diag.ClassInput, "%w", err).WithCode("record.header").At("%s:%d", name, line)
	}
	return NewSet(header), nil
}

// parse reads one line as a JSON object.
func parse(name string, line int, text []byte) (*decode.Document, error) {
	if t := bytes.TrimSpace(text); len(t) == 0 || t[0] != '{' {
		failure := diag.New(diag.ClassInput, "line is not a JSON object").
			WithCode("record.syntax").At("%s:%d", name, line)
		if kind, ok := bytes.CutPrefix(t, []byte("schema: hetc.")); ok {
			kind, _, _ = bytes.Cut(kind, []byte("/"))
			return nil, failure.WithHint("this is a %s file, not a record", kind)
		}
		return nil, failure
	}
	return decode.ParseJSON(name, line, text)
}

// readMeasurement adds what one line holds: a measurement, or the facts of a compiler.
func (s *Set) readMeasurement(name string, number int, text []byte) error {
	document, err := parse(name, number, text)
	if err != nil {
		return err
	}
	// A line with a schema is a header. A second one comes of files that were joined by hand.
	if schema := document.Schema(); schema != "" {
		var head Header
		if err := document.Into(Schema, &head); err != nil {
			return err
		}
		if err := s.Header.Compatible(&head); err != nil {
			if failed, ok := errors.AsType[*diag.Diagnostic](err); ok {
				return failed.At("%s:%d", name, number)
			}
			return err
		}
		return diag.New(diag.ClassInput, "second header line").WithCode("record.syntax").At("%s:%d", name, number).
			WithHint("records cannot be joined: keep one, and measure what it lacks with hetc profile --resume -o %q",
				name)
	}
	// The kind decides what a line is read as, and a line of facts has other fields than a measurement.
	var line struct {
		Kind Kind `json:"kind"`
	}
	if json.Unmarshal(text, &line) == nil && line.Kind == CompilerFacts {
		var facts Facts
		if err := document.Into("", &facts); err != nil {
			return err
		}
		if err := s.AddFacts(&facts); err != nil {
			return diag.New(diag.ClassInput, "%w", err).WithCode("record.facts").At("%s:%d", name, number)
		}
		return nil
	}
	var what Measurement
	if err := document.Into("", &what); err != nil {
		return err
	}
	if err := s.Add(&what); err != nil {
		return diag.New(diag.ClassInput, "%w", err).WithCode("record.measurement").At("%s:%d", name, number)
	}
	return nil
}

// syncFile is replaced by tests that write thousands of files.
var syncFile = (*os.File).Sync

// Writer appends measurements to a record file, one at a time.
type Writer struct {
	f    *os.File
	set  *Set
	size int64
}

// Write stores a whole set at path, replacing the file as a whole or not at all.
func Write(path string, set *Set) error {
	if err := set.Header.validate(); err != nil {
		return diag.New(diag.ClassInput, "write record %q: %w", path, err)
	}
	lines := []any{&set.Header}
	for _, what := range set.all {
		lines = append(lines, what)
	}
	for _, facts := range set.facts {
		lines = append(lines, facts)
	}
	return wholefile.Stream(path, func(to io.Writer) error {
		for _, line := range lines {
			text, err := encode(line)
			if err != nil {
				return err
			}
			if _, err := to.Write(text); err != nil {
				return err
			}
		}
		return nil
	})
}

// Create begins a new record file. It refuses to touch an existing one.
func Create(path string, header Header) (*Writer, error) {
	path, err := wholefile.Target(path)
	if err != nil {
		return nil, diag.New(diag.ClassOf(err), "record: %w", err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		if errors.Is(err, os.ErrExist) {
			return nil, diag.New(diag.ClassInput, "create record %q: it exists", path).
				WithHint("continue it with --resume, or name another file")
		}
		return nil, diag.New(diag.ClassIO, "create record %q: %w", path, err)
	}
	writer, err := begin(file, header)
	if err != nil {
		// Nothing of use is in the file: it was made by this very call.
		file.Close()
		os.Remove(path)
		return nil, err
	}
	return writer, nil
}

// Resume opens a record file to append to, or begins it when it is missing or has no whole header.
// A last line that was cut off is removed. A record of another SoC, machine or kernel set is refused.
func Resume(path string, header Header) (*Writer, error) {
	path, err := wholefile.Target(path)
	if err != nil {
		return nil, diag.New(diag.ClassOf(err), "record: %w", err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, diag.New(diag.ClassIO, "open record %q: %w", path, err)
	}
	writer, err := resume(path, file, header)
	if err != nil {
		file.Close()
		return nil, err
	}
	return writer, nil
}

// resume reads an open record and cuts off a last line that is not whole. What is not a record is left alone.
func resume(path string, file *os.File, header Header) (*Writer, error) {
	// Locked before it is read: a writer at work would be taken for one that was killed in the middle of a line.
	if err := own(file); err != nil {
		return nil, err
	}
	set, good, err := read(path, file)
	if err != nil {
		return nil, err
	}
	if set == nil {
		// Only what this package could have begun to write may be replaced.
		if err := onlyHeaderPiece(file, path); err != nil {
			return nil, err
		}
		if err := file.Truncate(0); err != nil {
			return nil, diag.New(diag.ClassIO, "truncate record %q: %w", path, err)
		}
		return begin(file, header)
	}
	if err := set.Header.Compatible(&header); err != nil {
		if failed, ok := errors.AsType[*diag.Diagnostic](err); ok {
			return nil, failed.At("%s:1", path)
		}
		return nil, err
	}
	// Lines are appended at this place from now on, so nothing may stand behind it.
	if err := file.Truncate(good); err != nil {
		return nil, diag.New(diag.ClassIO, "truncate record %q: %w", path, err)
	}
	return &Writer{f: file, set: set, size: good}, nil
}

// onlyHeaderPiece reports an error unless the file is empty or a piece of a header line, so that
// --resume on a wrong file destroys nothing.
func onlyHeaderPiece(file *os.File, path string) error {
	const start = `{"schema":"` + Schema + `"`
	head := make([]byte, len(start))
	size, err := file.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return diag.New(diag.ClassIO, "read record %q: %w", path, err)
	}
	if string(head[:size]) != start[:size] {
		return diag.New(diag.ClassInput, "file is not a record").
			WithCode("record.syntax").At("%s:1", path).WithHint("name another file")
	}
	return nil
}

// lockPatience is how long a writer waits for the one before. Tests wait less.
var lockPatience = filelock.OfTheKilled

// own keeps other writers out until the file is closed or this process dies.
func own(file *os.File) error {
	err := filelock.TryFor(file, lockPatience)
	if err == nil || errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return diag.New(diag.ClassIO, "open record %q: another hetc writes it: %w", file.Name(), err).
		WithHint("wait for it, or name another file")
}

// begin takes hold of an empty file and writes the header.
func begin(file *os.File, header Header) (*Writer, error) {
	header.Schema = Schema
	if err := header.validate(); err != nil {
		return nil, diag.New(diag.ClassInput, "begin record %q: %w", file.Name(), err)
	}
	if err := own(file); err != nil {
		return nil, err
	}
	writer := &Writer{f: file, set: NewSet(header)}
	line, err := encode(&header)
	if err != nil {
		return nil, err
	}
	if err := writer.write(line); err != nil {
		return nil, err
	}
	// The file's name must be on disk too, or a loss of power would leave a record without a name.
	wholefile.SyncDir(filepath.Dir(file.Name()))
	return writer, nil
}

// Append adds a measurement: one write of one whole line, then fsync. When it fails the file ends
// where it did before.
func (w *Writer) Append(what *Measurement) error {
	// Checked before it is written: what the set would refuse must not be in the file either.
	if err := w.set.check(what); err != nil {
		return diag.New(diag.ClassInput, "append to record %q: %w", w.f.Name(), err)
	}
	line, err := encode(what)
	if err != nil {
		return err
	}
	if len(line) > maxLine {
		return diag.New(diag.ClassInput, "append to record %q: measurement is %d bytes, want at most %d", w.f.Name(),
			len(line), maxLine)
	}
	if err := w.write(line); err != nil {
		return err
	}
	return w.set.Add(what)
}

// write appends one whole line.
func (w *Writer) write(line []byte) error {
	_, err := w.f.WriteAt(line, w.size)
	if err == nil {
		err = syncFile(w.f)
	}
	// Half a line would be the last one only until the next is appended behind it.
	if err != nil {
		if terr := w.f.Truncate(w.size); terr != nil {
			err = errors.Join(err, terr)
		}
		return diag.New(diag.ClassIO, "append to record %q: %w", w.f.Name(), err)
	}
	w.size += int64(len(line))
	return nil
}

// Set is everything in the file so far. It is shared with the writer.
func (w *Writer) Set() *Set { return w.set }

// Close closes the file.
func (w *Writer) Close() error {
	if err := w.f.Close(); err != nil {
		return diag.New(diag.ClassIO, "close record %q: %w", w.f.Name(), err)
	}
	return nil
}
