package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/filelock"
	"github.com/hetc/hetc/internal/wholefile"
)

// Open reads a record file.
func Open(path string) (*Set, error) {
	f, err := wholefile.Open(path)
	if err != nil {
		return nil, diag.New(diag.ClassOf(err), "record: %w", err)
	}
	defer f.Close()
	return Read(path, f)
}

// Read reads a record; name is shown in errors. A last line without its end is left out and
// reported as Set.Truncated; anything else that is not a measurement is an error with its line.
func Read(name string, r io.Reader) (*Set, error) {
	s, _, err := read(name, r)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, diag.New(diag.ClassInput, "record has no header line").WithCode("record.syntax").At("%s:1", name).
			WithHint("the profile was interrupted before it began; run it again")
	}
	return s, nil
}

// read also returns the size of the whole lines. The set is nil when not even the header is whole.
func read(name string, r io.Reader) (*Set, int64, error) {
	br := bufio.NewReaderSize(r, 1<<16)
	var set *Set
	var good int64
	for line := 1; ; line++ {
		text, whole, err := readLine(br)
		if err != nil {
			if errors.Is(err, errLong) {
				return nil, 0, diag.New(diag.ClassInput, "line is longer than %d bytes", maxLine).WithCode("record.syntax").At("%s:%d", name, line)
			}
			return nil, 0, diag.New(diag.ClassIO, "read record %q: %w", name, err)
		}
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
		case err == nil:
			return text[:len(text)-1], true, nil
		case err == io.EOF:
			return text, false, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, false, err
		}
	}
}

func readHeader(name string, line int, text []byte) (*Set, error) {
	d, err := parse(name, line, text)
	if err != nil {
		return nil, err
	}
	var h Header
	if err := d.Into(Schema, &h); err != nil {
		return nil, err
	}
	if err := h.validate(); err != nil {
		return nil, diag.New(diag.ClassInput, "%w", err).WithCode("record.header").At("%s:%d", name, line)
	}
	return NewSet(h), nil
}

func parse(name string, line int, text []byte) (*decode.Document, error) {
	if t := bytes.TrimSpace(text); len(t) == 0 || t[0] != '{' {
		return nil, diag.New(diag.ClassInput, "line is not a JSON object").WithCode("record.syntax").At("%s:%d", name, line)
	}
	return decode.ParseJSON(name, line, text)
}

func (s *Set) readMeasurement(name string, number int, text []byte) error {
	d, err := parse(name, number, text)
	if err != nil {
		return err
	}
	if schema := d.Schema(); schema != "" {
		var h Header
		if err := d.Into(Schema, &h); err != nil {
			return err
		}
		if err := s.Header.Compatible(&h); err != nil {
			var e *diag.Diagnostic
			if errors.As(err, &e) {
				return e.At("%s:%d", name, number)
			}
			return err
		}
		return diag.New(diag.ClassInput, "second header line").WithCode("record.syntax").At("%s:%d", name, number).
			WithHint("records of one machine are merged by naming both files, not by joining them")
	}
	var line struct {
		Kind Kind `json:"kind"`
	}
	if json.Unmarshal(text, &line) == nil && line.Kind == CompilerFacts {
		var f Facts
		if err := d.Into("", &f); err != nil {
			return err
		}
		if err := s.AddFacts(&f); err != nil {
			return diag.New(diag.ClassInput, "%w", err).WithCode("record.facts").At("%s:%d", name, number)
		}
		return nil
	}
	var m Measurement
	if err := d.Into("", &m); err != nil {
		return err
	}
	if err := s.Add(&m); err != nil {
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
func Write(path string, s *Set) error {
	if err := s.Header.validate(); err != nil {
		return diag.New(diag.ClassInput, "write record %q: %w", path, err)
	}
	lines := []any{&s.Header}
	for _, m := range s.all {
		lines = append(lines, m)
	}
	for _, f := range s.facts {
		lines = append(lines, f)
	}
	return wholefile.Stream(path, func(w io.Writer) error {
		for _, x := range lines {
			text, err := encode(x)
			if err != nil {
				return err
			}
			if _, err := w.Write(text); err != nil {
				return err
			}
		}
		return nil
	})
}

// Create begins a new record file. It refuses to touch an existing one.
func Create(path string, h Header) (*Writer, error) {
	path, err := wholefile.Target(path)
	if err != nil {
		return nil, diag.New(diag.ClassOf(err), "record: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		if errors.Is(err, os.ErrExist) {
			return nil, diag.New(diag.ClassInput, "create record %q: it exists", path).WithHint("continue it with --resume, or name another file")
		}
		return nil, diag.New(diag.ClassIO, "create record %q: %w", path, err)
	}
	w, err := begin(f, h)
	if err != nil {
		f.Close()
		os.Remove(path)
		return nil, err
	}
	return w, nil
}

// Resume opens a record file to append to, or begins it when it is missing or has no whole header.
// A last line that was cut off is removed. A record of another SoC, machine or kernel set is refused.
func Resume(path string, h Header) (*Writer, error) {
	path, err := wholefile.Target(path)
	if err != nil {
		return nil, diag.New(diag.ClassOf(err), "record: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, diag.New(diag.ClassIO, "open record %q: %w", path, err)
	}
	w, err := resume(path, f, h)
	if err != nil {
		f.Close()
		return nil, err
	}
	return w, nil
}

func resume(path string, f *os.File, h Header) (*Writer, error) {
	if err := own(f); err != nil {
		return nil, err
	}
	set, good, err := read(path, f)
	if err != nil {
		return nil, err
	}
	if set == nil {
		// Only what this package could have begun to write may be replaced.
		if err := onlyHeaderPiece(f, path); err != nil {
			return nil, err
		}
		if err := f.Truncate(0); err != nil {
			return nil, diag.New(diag.ClassIO, "truncate record %q: %w", path, err)
		}
		return begin(f, h)
	}
	if err := set.Header.Compatible(&h); err != nil {
		var e *diag.Diagnostic
		if errors.As(err, &e) {
			return nil, e.At("%s:1", path)
		}
		return nil, err
	}
	if err := f.Truncate(good); err != nil {
		return nil, diag.New(diag.ClassIO, "truncate record %q: %w", path, err)
	}
	return &Writer{f: f, set: set, size: good}, nil
}

// onlyHeaderPiece reports an error unless the file is empty or a piece of a header line, so that
// --resume on a wrong file destroys nothing.
func onlyHeaderPiece(f *os.File, path string) error {
	const start = `{"schema":"` + Schema + `"`
	head := make([]byte, len(start))
	n, err := f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return diag.New(diag.ClassIO, "read record %q: %w", path, err)
	}
	if string(head[:n]) != start[:n] {
		return diag.New(diag.ClassInput, "file is not a record").WithCode("record.syntax").At("%s:1", path).WithHint("name another file")
	}
	return nil
}

const lockPause = 50 * time.Millisecond

// lockTries times lockPause is how long a writer waits for the one before: a process that was killed
// keeps its lock until its memory, which may be large, is taken down. Tests wait less.
var lockTries = 60

// own keeps other writers out until the file is closed or this process dies.
func own(f *os.File) error {
	var err error
	for range lockTries {
		if err = filelock.Try(f); err == nil || errors.Is(err, errors.ErrUnsupported) {
			return nil
		}
		time.Sleep(lockPause)
	}
	return diag.New(diag.ClassIO, "open record %q: another hetc writes it: %w", f.Name(), err).WithHint("wait for it, or name another file")
}

func begin(f *os.File, h Header) (*Writer, error) {
	h.Schema = Schema
	if err := h.validate(); err != nil {
		return nil, diag.New(diag.ClassInput, "begin record %q: %w", f.Name(), err)
	}
	if err := own(f); err != nil {
		return nil, err
	}
	w := &Writer{f: f, set: NewSet(h)}
	line, err := encode(&h)
	if err != nil {
		return nil, err
	}
	if err := w.write(line); err != nil {
		return nil, err
	}
	wholefile.SyncDir(filepath.Dir(f.Name()))
	return w, nil
}

// Append adds a measurement: one write of one whole line, then fsync. When it fails the file ends
// where it did before.
func (w *Writer) Append(m *Measurement) error {
	if err := w.set.check(m); err != nil {
		return diag.New(diag.ClassInput, "append to record %q: %w", w.f.Name(), err)
	}
	line, err := encode(m)
	if err != nil {
		return err
	}
	if len(line) > maxLine {
		return diag.New(diag.ClassInput, "append to record %q: measurement is %d bytes, want at most %d", w.f.Name(), len(line), maxLine)
	}
	if err := w.write(line); err != nil {
		return err
	}
	return w.set.Add(m)
}

func (w *Writer) write(line []byte) error {
	_, err := w.f.WriteAt(line, w.size)
	if err == nil {
		err = syncFile(w.f)
	}
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
