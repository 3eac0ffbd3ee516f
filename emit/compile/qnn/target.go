package qnn

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/cas"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/runtime/driver"
)

// target is the NPU to compile for, and the libraries to compile with.
type target struct {
	soc, arch    int64  // numbers of the vendor: soc_model, htp_arch
	vtcm         int64  // MiB of the NPU's own memory
	opt          int64  // level of optimisation, 0 to 3
	library, ort string // files; "": found by their usual names
}

// readTarget reads a target's options: soc_model, htp_arch and vtcm_mb are needed; opt is 0 to 3, default 3; library
// and onnxruntime name files. A wrong option is an error of class ClassInput.
func readTarget(asked driver.Target) (target, error) {
	to := target{opt: 3}
	fields := map[string]*int64{"soc_model": &to.soc, "htp_arch": &to.arch, "vtcm_mb": &to.vtcm, "opt": &to.opt}
	files := map[string]*string{"library": &to.library, "onnxruntime": &to.ort}
	for _, key := range slices.Sorted(maps.Keys(asked.Options)) {
		if file := files[key]; file != nil {
			*file = asked.Options[key]
			continue
		}
		to, ok := fields[key]
		if !ok {
			return target{}, diag.New(diag.ClassInput,
				"target option %q is unknown, want soc_model, htp_arch, vtcm_mb, opt, library, onnxruntime", key)
		}
		number, err := strconv.ParseInt(asked.Options[key], 10, 32)
		if err != nil || number < 0 {
			return target{}, diag.New(diag.ClassInput, "target option %s is %q, want a number", key, asked.Options[key])
		}
		*to = number
	}
	for _, key := range []string{"soc_model", "htp_arch", "vtcm_mb"} {
		if *fields[key] == 0 {
			return target{}, diag.New(diag.ClassInput, "target option %q is missing", key).
				WithHint("write it into target: of the SoC's processor")
		}
	}
	if to.opt > 3 {
		return target{}, diag.New(diag.ClassInput, "target option opt is %d, want 0 to 3", to.opt)
	}
	return to, nil
}

// Identity returns the digests of the vendor's libraries, on which compiled graphs of a target depend. The error is
// ErrUnavailable where a library is missing.
func (c *compiler) Identity(ctx context.Context, asked driver.Target) (string, error) {
	to, err := readTarget(asked)
	if err != nil {
		return "", err
	}
	cache, err := c.cache()
	if err != nil {
		return "", err
	}
	if cache != nil {
		defer cache.Close()
	}
	tools, err := c.tools(ctx, to, cache)
	if err != nil {
		return "", err
	}
	return tools.key, nil
}

// options returns the provider's options for compiling. The size of VTCM is always given, because without it the
// library notes another size than it uses.
func (t target) options() [][2]string {
	text := func(number int64) string { return strconv.FormatInt(number, 10) }
	return [][2]string{
		{"soc_model", text(t.soc)}, {"htp_arch", text(t.arch)}, {"vtcm_mb", text(t.vtcm)},
		{"htp_graph_finalization_optimization_mode", text(t.opt)},
		{"offload_graph_io_quantization", "1"}, {"enable_htp_spill_fill_buffer", "1"},
	}
}

// matches returns an error if a binary is for another device than the target. The library assumes one architecture for
// an unknown SoC, and its compatibility string repeats the request, not the result.
func (t target) matches(a *answer, token string) error {
	parts := strings.Split(token, ":")
	switch {
	case a.SoC != t.soc || a.Arch != t.arch:
		return diag.New(diag.ClassInput,
			"the compiler made a binary for soc_model %d, htp_arch %d, want soc_model %d, htp_arch %d",
			a.SoC, a.Arch, t.soc, t.arch).
			WithHint("the SoC's target: does not fit the device; see the vendor's table of SoCs")
	case len(parts) < 6 || parts[4] != strconv.FormatInt(t.arch, 10) || parts[5] != strconv.FormatInt(t.soc, 10):
		return diag.New(diag.ClassInput,
			"the binary's compatibility string is %q, want one of htp_arch %d, soc_model %d", token, t.arch, t.soc)
	}
	return nil
}

// toolchain is the program and the libraries that compile.
type toolchain struct {
	program string // this program, which becomes the compiler's process when it is started with workerArg
	ort     *ortapi.Library
	qnn     *ortapi.QNN
	system  string // the library that reads binaries
	key     string // digests of all libraries
}

// tools finds a target's libraries. It keeps them for the compiler's life, because reading them for their digests takes
// long.
func (c *compiler) tools(ctx context.Context, to target, cache *cas.Cache) (*toolchain, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := [2]string{to.library, to.ort}
	if found := c.toolchains[key]; found != nil {
		return found, nil
	}
	qnn, err := ortapi.FindQNN(to.library)
	if err != nil {
		problem := &driver.Unavailable{Driver: name, Override: ortapi.EnvQNN, Get: ortapi.GetQNN}
		if qe, ok := errors.AsType[*ortapi.QNNError](err); ok {
			problem.Tried = qe.Tried
			if qe.Cause != nil {
				problem.Found = qe.Cause.Error()
			}
		}
		return nil, problem
	}
	ort, err := ortapi.Find(to.ort)
	if err != nil {
		problem := &driver.Unavailable{Driver: name, Found: err.Error(), Override: ortapi.EnvLibrary,
			Get: "make deps fetches ONNX Runtime"}
		if le, ok := errors.AsType[*ortapi.LoadError](err); ok {
			problem.Tried = le.Tried
		}
		return nil, problem
	}
	found := &toolchain{ort: ort, qnn: qnn,
		system: filepath.Join(filepath.Dir(qnn.Provider), native.FileNames("QnnSystem")[0])}
	found.program, err = os.Executable()
	if err != nil {
		return nil, diag.New(diag.ClassUnavailable, "the program's own file is not known: %w", err)
	}

	// Another library may compile other bytes, so that all digests are part of the cache's key.
	list := []string{ort.Version}
	for _, path := range []string{ort.Path, qnn.Provider, qnn.Backend, found.system} {
		sum, err := digest(ctx, path, cache)
		if err != nil {
			return nil, err
		}
		list = append(list, sum)
	}
	found.key = strings.Join(list, " ")
	c.toolchains[key] = found
	return found, nil
}

// digest returns the digest of a library's file. The cache remembers it by path, size and time of modification, because
// these files are large.
func digest(ctx context.Context, path string, cache *cas.Cache) (string, error) {
	fail := func(err error) (string, error) {
		return "", &driver.Unavailable{Driver: name, Found: fmt.Sprintf("library %q: %v", path, err),
			Override: ortapi.EnvQNN, Get: ortapi.GetQNN}
	}

	// A path without a folder was found by the system's loader, and the name has its version.
	if !strings.ContainsAny(path, `/\`) {
		return path, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return fail(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fail(err)
	}
	key := cas.KeyOf("library", path, fmt.Sprint(info.Size()), fmt.Sprint(info.ModTime().UnixNano()))
	if cache != nil {
		sum, _, known, err := cache.Sum(key)
		if err == nil && known {
			return sum.String(), nil
		}
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return fail(err)
	}
	var sum cas.Digest
	hash.Sum(sum[:0])
	if cache != nil {
		if err := cache.Note(key, sum, info.Size()); err != nil {
			return "", err
		}
	}
	return sum.String(), nil
}
