package bench

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/runtime/driver/host"
)

// unlessDone has work write some files from a model and other files, unless they exist and the same program wrote them
// from the same inputs on such a machine. A stamp beside the first file says from what they were written and how large
// they are.
func (b *enginesBench) unlessDone(out []string, model string, from []string, work func() error) error {
	stamp, err := b.stamp(model, from)
	if err != nil {
		return err
	}

	stampFile := out[0] + ".stamp"
	const mostBytes = 1 << 16
	old, err := wholefile.Read(stampFile, mostBytes)
	if err == nil && exist(out...) && bytes.Equal(old, append(slices.Clip(stamp), sizes(out)...)) {
		b.s.Notef("%s: used as it is: the same program made it from the same inputs", out[0])
		return nil
	}

	if err := remove(stampFile, out[0]); err != nil {
		return err
	}
	if err := work(); err != nil {
		return err
	}

	// The stamp is written last, so that what was cut short is made anew.
	return wholefile.Write(stampFile, append(stamp, sizes(out)...))
}

// sizes lists how large files are, so that one that was cut off is noticed.
func sizes(paths []string) (list []byte) {
	for _, path := range paths {
		size := int64(-1)
		if info, err := os.Stat(path); err == nil {
			size = info.Size()
		}
		list = fmt.Appendf(list, "made %d bytes\n", size)
	}
	return list
}

// remove removes files that may be there.
func remove(paths ...string) error {
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return ioError(err)
		}
	}
	return nil
}

// exist reports whether all files are there.
func exist(paths ...string) bool {
	for _, path := range paths {
		if _, err := os.Stat(path); err != nil {
			return false
		}
	}
	return true
}

// stamp identifies the program, machine, model, inputs, cores, kernels and budget that something was made with.
func (b *enginesBench) stamp(model string, from []string) ([]byte, error) {
	// Another build may have other kernels, so the program's own bytes are part of the stamp.
	program, err := os.ReadFile(b.self)
	if err != nil {
		return nil, ioError(err)
	}
	files, err := modelFiles(model)
	if err != nil {
		return nil, ioError(err)
	}

	stamp := fmt.Appendf(nil, "program %x\nmachine %s\nmodel %x\ncores %v\nkernels %s\nbudget %v\n",
		sha256.Sum256(program), host.Fingerprint(), sha256.Sum256(files), b.Cores, host.Kernels(), b.profile)
	for _, path := range from {
		const mostBytes = 1 << 30
		text, err := wholefile.Read(path, mostBytes)
		if err != nil {
			return nil, err
		}
		stamp = fmt.Appendf(stamp, "input %x\n", sha256.Sum256(text))
	}
	return stamp, nil
}

// modelFiles lists the files of a model with their sizes and times. Their bytes are not read, because that would count
// as memory of the processes that are measured.
func modelFiles(model string) (list []byte, err error) {
	paths := []string{model}
	entries, err := os.ReadDir(model)
	if err == nil {
		paths = nil
	}
	for _, entry := range entries {
		paths = append(paths, filepath.Join(model, entry.Name()))
	}

	for _, path := range paths {
		path, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist): // a link to nothing is no part of the model
		case err != nil:
			return nil, err
		case !info.IsDir():
			list = fmt.Appendf(list, "%q %d %d\n", path, info.Size(), info.ModTime().UnixNano())
		}
	}
	return list, nil
}
