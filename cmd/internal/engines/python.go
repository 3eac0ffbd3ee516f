package engines

import (
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/native"
)

// A peer that is measured through its Python package has a script of ours, which writes the model in the peer's forms
// and executes tasks. All scripts are called alike and answer alike (python/common.py), so that here a peer is a row.

// PythonPeer is an engine that is measured through its Python package.
type PythonPeer struct {
	Key    string // in flags and names of files
	Name   string // in tables
	script string
	// what the peer says on its error output about the code it has chosen, if it does not know otherwise
	backend *regexp.Regexp
}

// PythonPeers are all there are.
var PythonPeers = []PythonPeer{
	{Key: "openvino", Name: "OpenVINO", script: "openvino_peer.py"},
	{Key: "onnxruntime", Name: "ONNX Runtime", script: "onnxruntime_peer.py"},
	{Key: "ctranslate2", Name: "CTranslate2", script: "ctranslate2_peer.py",
		backend: regexp.MustCompile(`Selected ISA: (\S+)`)},
}

//go:embed python/*.py
var scripts embed.FS

// pythonDeps is the folder of the Python environment that make deps-bench makes.
const pythonDeps = "python-peers"

// Python is a peer that is installed, with its scripts at hand.
type Python struct {
	PythonPeer
	Version string
	Forms   []string // that differ on this machine

	stored               map[string]string // by form, which other form has the same files; a form that is not listed has its own
	interpreter, scripts string
	id                   string // changes with the scripts and with the version of the peer
}

// FindPython looks for the environment of the Python peers where libraries are looked for, unpacks the scripts into
// a folder, and asks the peer for its version and forms.
func FindPython(ctx context.Context, limits Limits, peer *PythonPeer, folder string) (*Python, error) {
	const pythonIn = "bin/python3"
	dirs := native.Places(pythonDeps)
	at := slices.IndexFunc(dirs, func(dir string) bool {
		info, err := os.Stat(filepath.Join(dir, pythonIn))
		return err == nil && info.Mode().IsRegular() && filepath.Base(dir) == pythonDeps
	})
	if at < 0 {
		return nil, diag.New(diag.ClassUnavailable, "%s: no %s in %s", peer.Name, pythonIn, strings.Join(dirs, ", ")).
			WithHint("make deps-bench installs it with pip, where there is python3")
	}
	interpreter, err := filepath.Abs(filepath.Join(dirs[at], pythonIn))
	if err != nil {
		return nil, diag.New(diag.ClassIO, "%s: %w", peer.Name, err)
	}
	found := &Python{PythonPeer: *peer, interpreter: interpreter, scripts: folder}
	sum, err := unpackScripts(folder)
	if err != nil {
		return nil, err
	}
	var about struct {
		Version string            `json:"version"`
		Forms   []string          `json:"forms"`
		Stored  map[string]string `json:"stored"`
	}
	if err := found.ask(ctx, limits, &about, "about", map[string]any{}); err != nil {
		return nil, err
	}
	if about.Version == "" || len(about.Forms) == 0 {
		return nil, diag.New(diag.ClassRun, "%s: version %q with %d forms, want some", peer.Name, about.Version,
			len(about.Forms))
	}
	found.Version, found.Forms, found.stored = about.Version, about.Forms, about.Stored
	found.id = fmt.Sprintf("%.4x", sha256.Sum256([]byte(sum+" "+about.Version)))
	return found, nil
}

// unpackScripts writes the scripts into a folder and returns their digest.
func unpackScripts(folder string) (string, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", diag.New(diag.ClassIO, "bench engines: %w", err)
	}
	hash := sha256.New()
	entries, err := scripts.ReadDir("python")
	if err != nil {
		return "", diag.New(diag.ClassInternal, "bench engines: %w", err)
	}
	for _, entry := range entries {
		text, err := scripts.ReadFile("python/" + entry.Name())
		if err != nil {
			return "", diag.New(diag.ClassInternal, "bench engines: %w", err)
		}
		hash.Write(text)
		if err := os.WriteFile(filepath.Join(folder, entry.Name()), text, 0o644); err != nil {
			return "", diag.New(diag.ClassIO, "bench engines: %w", err)
		}
	}
	return fmt.Sprintf("%x", hash.Sum(nil)), nil
}

// ask has the peer's script execute one command and decodes its answer. A refusal of the script is an error of
// class input.
func (p *Python) ask(ctx context.Context, limits Limits, answer any, command string, request map[string]any) error {
	program, args, err := p.command(command, request)
	if err != nil {
		return err
	}
	done, err := Run(ctx, limits, program, args...)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", p.Name, command, err)
	}
	return p.decode(command, done.Out, answer)
}

// command is the command line of one request.
func (p *Python) command(command string, request map[string]any) (string, []string, error) {
	text, err := json.Marshal(request)
	if err != nil {
		return "", nil, diag.New(diag.ClassInternal, "%s: %s: %w", p.Name, command, err)
	}
	// neither the environment's settings for Python nor the user's packages; and no files beside the scripts
	return p.interpreter, []string{"-E", "-s", "-B", filepath.Join(p.scripts, p.script), command, string(text)}, nil
}

// decode reads the answer of a script.
func (p *Python) decode(command string, out []byte, answer any) error {
	var refusal struct {
		Refused string `json:"refused"`
	}
	if err := json.Unmarshal(out, &refusal); err != nil {
		return diag.New(diag.ClassRun, "%s: %s: its answer is no JSON: %w%s", p.Name, command, err, excerpt(out))
	}
	if refusal.Refused != "" {
		return diag.New(diag.ClassInput, "%s: %w", p.Name, refused(label(refusal.Refused)))
	}
	if err := json.Unmarshal(out, answer); err != nil {
		return diag.New(diag.ClassRun, "%s: %s: %w%s", p.Name, command, err, excerpt(out))
	}
	return nil
}

// refused is why a peer's script does not take a model or a form.
type refused string

// Error is the reason.
func (r refused) Error() string { return string(r) }

// Refused reports whether a peer cannot take a model or a form, as opposed to having failed.
func Refused(err error) bool {
	var why refused
	return errors.As(err, &why)
}

// Convert writes a Hugging Face model in one form into a folder named after digest, unless it is there, and returns
// the folder. It appears complete or not at all. Calibration are sequences of tokens for forms with static scales.
func (p *Python) Convert(
	ctx context.Context, limits Limits, model, dir, digest, form string, calibration [][]int,
) (folder string, err error) {
	folder = filepath.Join(dir, fmt.Sprintf("%s-%s-%s-%s", digest, p.Key, cmp.Or(p.stored[form], form), p.id))
	switch _, err = os.Stat(folder); {
	case errors.Is(err, fs.ErrNotExist):
		if err := p.write(ctx, limits, model, folder, form, calibration); err != nil {
			return "", err
		}
	case err != nil:
		return "", diag.New(diag.ClassIO, "convert: %w", err)
	}
	prepared := filepath.Join(folder, "prepared-"+form)
	if _, err := os.Stat(prepared); err == nil {
		return folder, nil
	}
	// what the peer keeps beside the model, such as compiled code, may depend on the folder's name
	request := map[string]any{"out": folder, "form": form, "threads": len(limits.Cores)}
	if err := p.ask(ctx, limits, &struct{}{}, "prepare", request); err != nil {
		return "", err
	}
	if err := os.WriteFile(prepared, nil, 0o644); err != nil {
		return "", diag.New(diag.ClassIO, "convert: %w", err)
	}
	return folder, nil
}

// write converts a model into a folder that is not there.
func (p *Python) write(
	ctx context.Context, limits Limits, model, folder, form string, calibration [][]int,
) (err error) {
	if model, err = filepath.Abs(model); err != nil {
		return diag.New(diag.ClassIO, "convert: %w", err)
	}
	temp, err := os.MkdirTemp(filepath.Dir(folder), "."+p.Key+".*")
	if err != nil {
		return diag.New(diag.ClassIO, "convert: %w", err)
	}
	defer os.RemoveAll(temp)
	tokens, err := listFile(temp, "tokens.json", calibration)
	if err != nil {
		return diag.New(diag.ClassIO, "convert: %w", err)
	}
	request := map[string]any{"model": model, "out": temp, "form": form, "tokens_file": tokens}
	if err := p.ask(ctx, limits, &struct{}{}, "convert", request); err != nil {
		return err
	}
	if err := os.Rename(temp, folder); err != nil {
		return diag.New(diag.ClassIO, "convert: %w", err)
	}
	return nil
}

// RemoveUnfinished removes what Convert and Quantize were making in a folder when their process was killed. Nobody may be
// at work there.
func RemoveUnfinished(dir string) error {
	patterns := []string{".*.gguf.*"}
	for i := range PythonPeers {
		patterns = append(patterns, "."+PythonPeers[i].Key+".*")
	}
	for _, pattern := range patterns {
		if err := RemoveMatching(dir, pattern); err != nil {
			return err
		}
	}
	return nil
}

// RemoveMatching removes what in a folder has a name of the pattern. The folder's own name is no pattern.
func RemoveMatching(dir, pattern string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return diag.New(diag.ClassIO, "remove unfinished files: %w", err)
	}
	for _, entry := range entries {
		if matches, err := filepath.Match(pattern, entry.Name()); err != nil || !matches {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return diag.New(diag.ClassIO, "remove unfinished files: %w", err)
		}
	}
	return nil
}

// listFile writes sequences of tokens into a file: a command line, which messages show, has not enough room for them.
func listFile(folder, name string, sequences [][]int) (string, error) {
	text, err := json.Marshal(sequences)
	if err != nil {
		return "", err
	}
	file := filepath.Join(folder, name)
	return file, os.WriteFile(file, text, 0o644)
}

// Engine measures a form that Convert has written.
func (p *Python) Engine(folder, form string) Engine { return &pythonEngine{p, folder, form} }

// pythonEngine is one form of a model in a Python peer.
type pythonEngine struct {
	*Python
	folder, form string
}

// Name is the engine's name in tables.
func (e *pythonEngine) Name() string { return e.Python.Name }

// Form is what the form is called in tables and in the scripts.
func (e *pythonEngine) Form() string { return e.form }

// Files are the form's folder.
func (e *pythonEngine) Files() []string { return []string{e.folder} }

// Command is the command line that measures a task.
func (e *pythonEngine) Command(task Task, threads int) (string, []string) {
	program, args, err := e.command("measure", map[string]any{"out": e.folder, "form": e.form, "threads": threads,
		"start": task.Start, "prompt": task.Prompt, "depth": task.Depth, "gen": task.Gen, "reps": task.Reps})
	if err != nil {
		return program, []string{err.Error()} // numbers and texts can always be written as JSON
	}
	return program, args
}

// Parse reads the answer. A start is timed by the script, from when Python has loaded the peer's package.
func (e *pythonEngine) Parse(task Task, threads int, out, complaints []byte) (Reading, error) {
	var got struct {
		Version string    `json:"version"`
		Backend string    `json:"backend"`
		Threads int       `json:"threads"`
		Prompt  int       `json:"prompt"`
		Depth   int       `json:"depth"`
		Gen     int       `json:"gen"`
		Weights int64     `json:"weights"`
		Seconds []float64 `json:"seconds"`
	}
	if err := e.decode("measure", out, &got); err != nil {
		return Reading{}, err
	}
	fail := func(format string, args ...any) (Reading, error) {
		return Reading{}, diag.New(diag.ClassRun, e.Python.Name+": "+format, args...)
	}
	if want := task.Start + task.Prompt; got.Threads != threads || got.Prompt != want || got.Depth != task.Depth ||
		got.Gen != task.Gen {
		return fail("it measured prompt %d, generation %d after %d, on %d threads; asked for %d, %d after %d, on %d",
			got.Prompt, got.Gen, got.Depth, got.Threads, want, task.Gen, task.Depth, threads)
	}
	if len(got.Seconds) != task.Reps {
		return fail("got %d samples, want %d", len(got.Seconds), task.Reps)
	}
	for i, seconds := range got.Seconds {
		if !(seconds > 0) {
			return fail("sample %d is %g s, want a time", i, seconds)
		}
	}
	reading := Reading{SecondsPerRep: got.Seconds, WeightBytes: got.Weights, Version: label(got.Version),
		Backend: label(got.Backend)}
	if task.Start > 0 {
		reading.SecondsPerRep, reading.StartSeconds = nil, got.Seconds[0]
	}
	if e.backend != nil {
		if found := e.backend.FindSubmatch(complaints); found != nil {
			reading.Backend = label(string(found[1]) + ", " + reading.Backend)
		}
	}
	return reading, nil
}

// Compare measures how far a form is from the same peer with the same weights in float32, both written by Convert.
func (p *Python) Compare(
	ctx context.Context, limits Limits, reference, folder, form string, windows [][]int,
) (Quality, error) {
	file, err := listFile(folder, "windows.json", windows)
	if err != nil {
		return Quality{}, diag.New(diag.ClassIO, "quality: %w", err)
	}
	var got struct {
		Windows    int     `json:"windows"`
		MeanKL     float64 `json:"mean_kl"`
		KLError    float64 `json:"mean_kl_error"`
		SameTop    float64 `json:"same_top_token"`
		Perplexity float64 `json:"perplexity"`
	}
	err = p.ask(ctx, limits, &got, "quality", map[string]any{"reference": reference, "out": folder, "form": form,
		"threads": len(limits.Cores), "windows_file": file})
	if err != nil {
		return Quality{}, err
	}
	if got.Windows != len(windows) {
		return Quality{}, diag.New(diag.ClassRun, "%s: quality of %d windows, want %d", p.Name, got.Windows, len(windows))
	}
	return Quality{Engine: p.Name, Form: form, MeanKL: got.MeanKL, KLError: got.KLError, SameTop: got.SameTop,
		Perplexity: got.Perplexity}, nil
}

// Logits are those of every position of sequences of tokens, [sequence][position][token].
func (p *Python) Logits(ctx context.Context, limits Limits, folder, form string, sequences [][]int) ([][][]float64, error) {
	var got struct {
		Logits [][][]float64 `json:"logits"`
	}
	err := p.ask(ctx, limits, &got, "logits", map[string]any{"out": folder, "form": form,
		"threads": max(1, len(limits.Cores)), "windows": sequences})
	return got.Logits, err
}

// Float32 is the form that the others are compared with.
const Float32 = "float32"

// Calibration are sequences of tokens for forms with static scales of a model that comes without a text: such weights
// are random, and so may be the tokens.
func Calibration(vocabulary int) [][]int {
	const sequences, length = 8, 64
	state := uint64(1)
	all := make([][]int, sequences)
	for i := range all {
		for range length {
			state = state*6364136223846793005 + 1442695040888963407 // Knuth's generator: the same tokens everywhere
			all[i] = append(all[i], int((state>>33)%uint64(vocabulary)))
		}
	}
	return all
}
