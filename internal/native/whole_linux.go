//go:build !hetc_static && (amd64 || arm64)

package native

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"runtime"
)

// checkWhole refuses what the loader would map and then crash on: it touches the pages of a truncated file.
func checkWhole(f io.ReaderAt, size int64) error {
	e, err := elf.NewFile(f)
	var bad *elf.FormatError
	if errors.As(err, &bad) {
		return errors.New("no whole ELF file")
	}
	if err != nil {
		return err
	}
	want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	if e.Type != elf.ET_DYN || e.Machine != want {
		return fmt.Errorf("%v for %v, want %v for %v", e.Type, e.Machine, elf.ET_DYN, want)
	}
	for _, p := range e.Progs {
		if p.Filesz > uint64(size) || p.Off > uint64(size)-p.Filesz {
			return fmt.Errorf("truncated: a segment ends at byte %d of %d", p.Off+p.Filesz, size)
		}
	}
	return nil
}
