package qnn

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/onnx"
)

// result holds the answer and files of a process, as the cache keeps them.
type result struct {
	Answer             answer
	Models             [][]byte // compiled, in the order of the jobs
	Shared             []byte   // the binary that all models refer to; nil: each holds its own
	Emulated, Portable [][]byte // results of the first graph's sample

	cached bool // no process ran
}

// graphError is an error about one of the graphs of a process.
type graphError struct {
	graph int
	err   error
}

// Error returns the message without the graph, which callers take from the field.
func (e *graphError) Error() string { return e.err.Error() }

func (e *graphError) Unwrap() error { return e.err }

// resultHeader is the beginning of a kept result. The parts follow it, one behind the other.
type resultHeader struct {
	Answer answer
	Parts  [4][]int64 // bytes of the models, the shared binary, results of the emulator, and of the source
}

// parts returns the contents of a result.
func (r *result) parts() [4][][]byte {
	return [4][][]byte{r.Models, {r.Shared}, r.Emulated, r.Portable}
}

// decode reads a kept result back, without copying its parts. A result of another format is an error, after which the
// caller compiles again.
func decode(data []byte, graphs int) (*result, error) {
	short := errors.New("it is too short")
	if len(data) < 8 {
		return nil, short
	}
	size := binary.LittleEndian.Uint64(data)
	data = data[8:]
	if size > uint64(len(data)) {
		return nil, short
	}
	var header resultHeader
	if err := json.Unmarshal(data[:size], &header); err != nil {
		return nil, err
	}
	data = data[size:]
	var parts [4][][]byte
	for i, list := range header.Parts {
		for _, size := range list {
			if size < 0 || size > int64(len(data)) {
				return nil, short
			}
			parts[i], data = append(parts[i], data[:size:size]), data[size:]
		}
	}
	made := &result{Answer: header.Answer, Models: parts[0], Emulated: parts[2], Portable: parts[3]}
	if len(made.Models) != graphs || len(made.Answer.Graphs) != graphs || len(parts[1]) != 1 {
		return nil, errors.New("it is of other graphs")
	}
	if len(parts[1][0]) > 0 {
		made.Shared = parts[1][0]
	}
	return made, nil
}

// readBack reads the files that the process wrote for jobs: the models, in their canonical form, the shared binary, and
// the results of the first job's sample.
func (r *result) readBack(dir string, jobs []*job, shared bool) (err error) {
	for i := range jobs {
		code, err := os.ReadFile(filepath.Join(dir, contextFile(i)))
		if err != nil {
			return diag.New(diag.ClassIO, "read what was compiled: %w", err)
		}
		model, err := onnx.Read(code)
		if err != nil {
			return err
		}
		r.Models = append(r.Models, model.Marshal())
	}
	if shared {
		if r.Shared, err = os.ReadFile(filepath.Join(dir, outFolder, sharedFile)); err != nil {
			return diag.New(diag.ClassIO, "read what was compiled: %w", err)
		}
	}
	if jobs[0].sample == nil {
		return nil
	}
	for what, to := range map[string]*[][]byte{"emulated": &r.Emulated, "portable": &r.Portable} {
		for at, output := range jobs[0].outputs {
			raw, err := os.ReadFile(filepath.Join(dir, resultFile(0, at, what)))
			if err != nil {
				return diag.New(diag.ClassIO, "read the sample's result: %w", err)
			}
			if int64(len(raw)) != output.bytes() {
				return diag.New(diag.ClassIO, "read the sample's result: got %d bytes, want %d", len(raw),
					output.bytes())
			}
			*to = append(*to, raw)
		}
	}
	return nil
}

// write keeps a result in a file: the length of a header, the header, the parts.
func (r *result) write(path string) error {
	header := resultHeader{Answer: r.Answer}
	var all [][]byte
	for i, list := range r.parts() {
		for _, part := range list {
			header.Parts[i], all = append(header.Parts[i], int64(len(part))), append(all, part)
		}
	}
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	return writeNew(filepath.Dir(path), filepath.Base(path),
		slices.Concat([][]byte{binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text}, all)...)
}
