package engines

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/models/gguf"
)

// LlamaCpp are the programs of one build of llama.cpp.
type LlamaCpp struct {
	Dir string
}

// LlamaCppName is llama.cpp's name in tables, and its key in flags.
const LlamaCppName = "llama.cpp"

// Programs of llama.cpp.
const (
	llamaBench      = "llama-bench"
	llamaQuantize   = "llama-quantize"
	llamaPerplexity = "llama-perplexity"
)

// FindLlamaCpp looks for llama-bench in the folders that libraries are looked for in ($HETC_NATIVE_DIR, beside this
// executable, .deps of the checkout it lies in), and in PATH. What it needs of the other programs must lie beside it.
func FindLlamaCpp(perplexity bool) (*LlamaCpp, error) {
	dirs := native.Places("llama.cpp")
	for _, dir := range dirs {
		if st, err := os.Stat(filepath.Join(dir, llamaBench)); err == nil && st.Mode().IsRegular() {
			return complete(dir, perplexity)
		}
	}
	if path, err := exec.LookPath(llamaBench); err == nil {
		return complete(filepath.Dir(path), perplexity)
	}
	return nil, diag.New(diag.ClassUnavailable, "llama.cpp: no %s in %s, nor in PATH", llamaBench,
		strings.Join(dirs, ", ")).
		WithHint("make deps-bench fetches and builds it; or set %s to the folder of one that you have", native.EnvDir)
}

// complete checks that the other programs of llama.cpp lie beside llama-bench, with that for perplexity where it
// is needed.
func complete(dir string, perplexity bool) (*LlamaCpp, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, diag.New(diag.ClassIO, "llama.cpp: %w", err)
	}
	need := []string{llamaQuantize}
	if perplexity {
		need = append(need, llamaPerplexity)
	}
	for _, name := range need {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return nil, diag.New(diag.ClassUnavailable, "llama.cpp: %s lies in %q without %s", llamaBench, dir, name).
				WithHint("make deps-bench builds all of them; or set %s to a folder that has them", native.EnvDir)
		}
	}
	return &LlamaCpp{Dir: dir}, nil
}

// Quantize makes the file to, in one of llama.cpp's formats, from a GGUF file with float weights, unless it is
// there. The file appears complete or not at all.
func (l *LlamaCpp) Quantize(ctx context.Context, lim Limits, from, to, format string, threads int) error {
	if _, err := os.Stat(to); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return diag.New(diag.ClassIO, "quantize: %w", err)
	}
	temp, err := os.MkdirTemp(filepath.Dir(to), "."+filepath.Base(to)+".*")
	if err != nil {
		return diag.New(diag.ClassIO, "quantize: %w", err)
	}
	defer os.RemoveAll(temp)
	part := filepath.Join(temp, "x.gguf")
	if _, err := Run(ctx, lim, filepath.Join(l.Dir, llamaQuantize), from, part, format,
		strconv.Itoa(threads)); err != nil {
		return fmt.Errorf("make %s of %q: %w", format, filepath.Base(from), err)
	}
	if err := os.Rename(part, to); err != nil {
		return diag.New(diag.ClassIO, "make %s of %q: %w", format, filepath.Base(from), err)
	}
	return nil
}

// Engine is llama.cpp with one file, whose format is given.
func (l *LlamaCpp) Engine(file, format string) Engine {
	return &llamaEngine{l, file, format, decodeBytes(file)}
}

// decodeBytes returns how many bytes of the weights in a GGUF file decoding a token reads: all but the embedding, of
// which it reads one row, unless that is the head too. 0 is not known: of experts, and of types that hetc does not read.
func decodeBytes(path string) (bytes int64) {
	file, err := gguf.Open(path)
	if err != nil {
		return 0
	}
	defer file.Close()
	_, separate := file.Tensor("output.weight")
	for _, name := range file.Names() {
		tensor, ok := file.Tensor(name)
		switch {
		case !ok || strings.Contains(name, "_exps"):
			return 0
		case name != "token_embd.weight" || !separate:
			bytes += int64(len(tensor.Data))
		}
	}
	return bytes
}

// llamaEngine measures one format with llama-bench.
type llamaEngine struct {
	*LlamaCpp
	file, format string
	weights      int64 // that decoding a token reads; 0: not known
}

// Name is the engine's name in tables.
func (e *llamaEngine) Name() string { return LlamaCppName }

// Form is llama.cpp's name of the weights' format.
func (e *llamaEngine) Form() string { return e.format }

// Files are the weights.
func (e *llamaEngine) Files() []string { return []string{e.file} }

// Command is the command line that measures a task.
func (e *llamaEngine) Command(t Task, threads int) (string, []string) {
	args := []string{"-m", e.file, "-t", strconv.Itoa(threads), "-ngl", "0", "-r", strconv.Itoa(t.Reps), "-o", "json"}
	switch {
	case t.Start > 0:
		args = append(args, "-p", strconv.Itoa(t.Start), "-n", "0", "--no-warmup")
	case t.Prompt > 0:
		args = append(args, "-p", strconv.Itoa(t.Prompt), "-n", "0")
	default:
		args = append(args, "-p", "0", "-n", strconv.Itoa(t.Gen), "-d", strconv.Itoa(t.Depth))
	}
	return filepath.Join(e.Dir, llamaBench), args
}

// Parse reads the JSON of llama-bench, and which backend it says it has loaded.
func (e *llamaEngine) Parse(t Task, threads int, out, complaints []byte) (Reading, error) {
	reading, err := parseLlamaBench(t, threads, out, complaints)
	reading.WeightBytes = e.weights
	return reading, err
}

// benchTest is what is read of one test of llama-bench -o json.
type benchTest struct {
	// of the build
	Commit   string `json:"build_commit"`
	Build    int64  `json:"build_number"`
	Backends string `json:"backends"`
	Threads  int    `json:"n_threads"`
	Prompt   int    `json:"n_prompt"`
	Gen      int    `json:"n_gen"`
	// tokens in the cache before
	Depth int `json:"n_depth"`
	// one per repetition
	SamplesNS []int64 `json:"samples_ns"`
}

var loadedBackend = regexp.MustCompile(`(?m)^load_backend: loaded CPU backend from (.+)$`)

// parseLlamaBench reads the one test that was asked for. What it does not read may change; what it reads must
// be what was asked for.
func parseLlamaBench(task Task, threads int, out, complaints []byte) (Reading, error) {
	fail := func(format string, args ...any) (Reading, error) {
		return Reading{}, diag.New(diag.ClassRun, "llama-bench: "+format, args...).
			WithHint("this version of llama.cpp prints what hetc does not read: make deps-bench fetches one that it " +
				"does")
	}
	var tests []benchTest
	if err := json.Unmarshal(out, &tests); err != nil {
		return fail("its output is no list of tests: %w%s", err, excerpt(out))
	}
	if len(tests) != 1 {
		return fail("got %d tests, want 1", len(tests))
	}
	test := &tests[0]
	// what was measured must be what was asked for
	prompt := task.Start + task.Prompt
	if test.Prompt != prompt || test.Gen != task.Gen || prompt == 0 && test.Depth != task.Depth ||
		test.Threads != threads {
		return fail("it measured prompt %d, generation %d after %d, on %d threads; asked for %d, %d after %d, on %d",
			test.Prompt, test.Gen, test.Depth, test.Threads, prompt, task.Gen, task.Depth, threads)
	}
	if len(test.SamplesNS) != task.Reps {
		return fail("got %d samples, want %d", len(test.SamplesNS), task.Reps)
	}
	reading := Reading{Version: label(test.Commit), Backend: label(test.Backends)}
	if test.Build > 0 {
		reading.Version = strings.TrimSpace(fmt.Sprintf("%s build %d", reading.Version, test.Build))
	}
	for i, ns := range test.SamplesNS {
		if ns < 1 {
			return fail("sample %d is %d ns, want a time", i, ns)
		}
		if task.Start > 0 {
			continue // it counts without the loading
		}
		reading.SecondsPerRep = append(reading.SecondsPerRep, float64(ns)/1e9)
	}
	if m := loadedBackend.FindSubmatch(complaints); m != nil {
		reading.Backend = label(filepath.Base(string(m[1])))
	}
	return reading, nil
}

// label is a short word of a program's output, fit to be shown.
func label(text string) string {
	const most = 80 // bytes
	text = strings.ToValidUTF8(strings.TrimSpace(text), "?")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}

// excerpt shows the beginning of an output that cannot be read.
func excerpt(out []byte) string {
	const first = 200 // bytes
	out = bytes.TrimSpace(out)
	if len(out) == 0 {
		return ": it is empty"
	}
	if len(out) > first {
		out = append(bytes.Clone(out[:first]), "..."...)
	}
	return fmt.Sprintf(": it begins with %q", out)
}

// Quality is how far a form is from the same weights in float32, over the positions of a text.
type Quality struct {
	Engine     string  `json:"engine"`
	Form       string  `json:"form"`
	Phase      string  `json:"phase,omitempty"` // "" for both
	MeanKL     float64 `json:"mean_kl"`
	KLError    float64 `json:"mean_kl_error"` // half of a 95 % interval
	SameTop    float64 `json:"same_top_token"`
	Perplexity float64 `json:"perplexity"`
}

// A quality measurement reads at most Windows pieces of a text, of Window tokens each.
const (
	Windows = 60
	Window  = 256
)

// Reference writes the logits of a float model over a text, which Compare compares others with.
func (l *LlamaCpp) Reference(ctx context.Context, lim Limits, file, text, base string, threads int) error {
	_, err := Run(ctx, lim, filepath.Join(l.Dir, llamaPerplexity), "-m", file, "-f", text, "-c", strconv.Itoa(Window),
		"--chunks", strconv.Itoa(Windows), "-t", strconv.Itoa(threads), "-ngl", "0", "--kl-divergence-base", base)
	return err
}

// Compare measures a file against a reference.
func (l *LlamaCpp) Compare(ctx context.Context, lim Limits, file, format, base string, threads int) (Quality, error) {
	done, err := Run(ctx, lim, filepath.Join(l.Dir, llamaPerplexity), "-m", file, "-c", strconv.Itoa(Window),
		"--chunks", strconv.Itoa(Windows), "-t", strconv.Itoa(threads), "-ngl", "0", "--kl-divergence",
		"--kl-divergence-base", base)
	if err != nil {
		return Quality{}, err
	}
	return parsePerplexity(format, done.Out)
}

var perplexityLines = map[string]*regexp.Regexp{
	"perplexity": regexp.MustCompile(`(?m)^Mean PPL\(Q\)\s*:\s*([0-9.]+)`),
	"KL":         regexp.MustCompile(`(?m)^Mean\s+KLD:\s*(-?[0-9.]+)\s*±\s*([0-9.]+)`),
	"top token":  regexp.MustCompile(`(?m)^Same top p:\s*([0-9.]+)`),
}

// parsePerplexity reads divergence, agreement and perplexity with their errors from what llama-perplexity prints.
func parsePerplexity(format string, out []byte) (Quality, error) {
	quality := Quality{Engine: LlamaCppName, Form: format}
	read := func(what string, to ...*float64) error {
		fields := perplexityLines[what].FindSubmatch(out)
		if fields == nil {
			return diag.New(diag.ClassRun, "llama-perplexity: no %s in its output%s", what, excerpt(out))
		}
		for i, number := range to {
			parsed, err := strconv.ParseFloat(string(fields[i+1]), 64)
			if err != nil {
				return diag.New(diag.ClassRun, "llama-perplexity: %s is %q, want a number", what, fields[i+1])
			}
			*number = parsed
		}
		return nil
	}
	if err := errors.Join(read("KL", &quality.MeanKL, &quality.KLError), read("top token", &quality.SameTop),
		read("perplexity", &quality.Perplexity)); err != nil {
		return Quality{}, err
	}
	const sigmas = 1.96 // it prints standard errors
	quality.KLError *= sigmas
	quality.SameTop /= 100
	return quality, nil
}
