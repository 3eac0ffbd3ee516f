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
func checkWhole(file io.ReaderAt, size int64) error {
	parsed, err := elf.NewFile(file)
	if _, ok := errors.AsType[*elf.FormatError](err); ok {
		return errors.New("no whole ELF file")
	}
	if err != nil {
		return err
	}
	want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	if parsed.Type != elf.ET_DYN || parsed.Machine != want {
		return fmt.Errorf("%v for %v, want %v for %v", parsed.Type, parsed.Machine, elf.ET_DYN, want)
	}
	for _, segment := range parsed.Progs {
		if segment.Filesz > uint64(size) || segment.Off > uint64(size)-segment.Filesz {
			return fmt.Errorf("truncated: a segment ends at byte %d of %d", segment.Off+segment.Filesz, size)
		}
	}
	return nil
}
