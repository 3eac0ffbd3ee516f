package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hetc/hetc/cmd/internal/engines"
	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
)

// peer is an engine that hetc is compared with. A form that it cannot take, or fails with, is skipped with the reason.
type peer interface {
	// engines writes the forms of a model into dir, unless they are there. path is the model's, digest its plan's.
	engines(ctx context.Context, b *enginesBench, dir, path string, model *models.Model, of *EnginesModel) (
		[]engines.Engine, []EnginesSkipped, error)
	// quality measures the forms of a model on a text, with files in the empty folder dir.
	quality(ctx context.Context, b *enginesBench, dir, path string, text *qualityText) (
		[]engines.Quality, []EnginesSkipped, error)
}

// EnginesSkipped says why an engine, or one of its forms, was not measured.
type EnginesSkipped struct {
	Engine string `json:"engine"`
	Form   string `json:"form,omitempty"` // empty: none of its forms
	What   string `json:"what,omitempty"` // "quality"; empty: anything
	Reason string `json:"reason"`
}

// String returns one line of a table's foot.
func (s EnginesSkipped) String() string {
	words := s.Engine
	for _, more := range []string{s.Form, s.What} {
		if more != "" {
			words += " " + more
		}
	}
	return words + ": " + s.Reason
}

// skippedText lists what was skipped.
func skippedText(all []EnginesSkipped) string {
	var lines []string
	for _, one := range all {
		lines = append(lines, one.String())
	}
	return strings.Join(lines, "; ")
}

// peerKeys returns the words of --peers, in the order of the tables.
func peerKeys() []string {
	keys := []string{engines.LlamaCppName}
	for i := range engines.PythonPeers {
		keys = append(keys, engines.PythonPeers[i].Key)
	}
	return keys
}

// checkPeers refuses unknown engines.
func (o *EnginesOptions) checkPeers() error {
	for _, key := range o.Peers {
		if !slices.Contains(peerKeys(), key) {
			return usage("--peers %q: want some of %s", key, strings.Join(peerKeys(), ", "))
		}
	}
	return noRepeats("peers", o.Peers)
}

// findPeers looks for the engines to compare with: all that --peers names, or at least one.
func (b *enginesBench) findPeers(ctx context.Context) error {
	var first error
	for _, key := range peerKeys() {
		if len(b.Peers) > 0 && !slices.Contains(b.Peers, key) {
			continue
		}
		name, found, err := b.findPeer(ctx, key)
		switch {
		case err == nil:
			b.peers = append(b.peers, found)
			continue
		case ctx.Err() != nil || len(b.Peers) > 0:
			return err
		}
		if first == nil {
			first = err
		}
		b.absent = append(b.absent, EnginesSkipped{Engine: name, Reason: engines.Reason(name, err)})
	}

	if len(b.peers) == 0 {
		return first
	}
	for _, one := range b.absent {
		b.s.Notef("not measured: %v", one)
	}
	return nil
}

// findPeer looks for the engine of a key.
func (b *enginesBench) findPeer(ctx context.Context, key string) (name string, found peer, err error) {
	if key == engines.LlamaCppName {
		program, err := engines.FindLlamaCpp(b.Text != "")
		return key, &llamaPeer{program}, err
	}
	const most = time.Minute // to import a package from a cold disk
	at := slices.IndexFunc(engines.PythonPeers, func(p engines.PythonPeer) bool { return p.Key == key })
	row := &engines.PythonPeers[at]
	python, err := engines.FindPython(ctx, engines.Limits{Cores: b.Cores, Time: most}, row,
		filepath.Join(b.dir, "python"))
	return row.Name, &pythonPeer{python}, err
}

const (
	mostConversion = time.Hour
	digestDigits   = 12 // in names of files
)

// llamaPeer is llama.cpp with the formats of --formats.
type llamaPeer struct{ program *engines.LlamaCpp }

// engines makes llama.cpp's files from the weights as stored, unless they exist.
func (p *llamaPeer) engines(
	ctx context.Context, b *enginesBench, dir, path string, _ *models.Model, of *EnginesModel,
) (out []engines.Engine, skipped []EnginesSkipped, err error) {
	for _, format := range b.Formats {
		file := filepath.Join(dir, fmt.Sprintf("%.*s-%s.gguf", digestDigits, of.Digest, format))
		err := p.quantize(ctx, b, path, file, format, of)
		switch {
		case ctx.Err() != nil:
			return nil, nil, ctx.Err()
		case err != nil:
			skipped = append(skipped, b.skip(engines.LlamaCppName, format, err))
		default:
			out = append(out, p.program.Engine(file, format))
		}
	}

	return out, skipped, nil
}

// quantize makes a file in one of llama.cpp's formats, unless it exists.
func (p *llamaPeer) quantize(ctx context.Context, b *enginesBench, path, file, format string, of *EnginesModel) error {
	if _, err := os.Stat(file); err == nil {
		return nil
	}

	// llama-quantize starts from a float file; both are named after the model's digest, so that they can be used again.
	float := filepath.Join(filepath.Dir(file), fmt.Sprintf("%.*s-%s.gguf", digestDigits, of.Digest, of.Stored))
	if _, err := os.Stat(float); err != nil {
		if err := b.step(ctx, "models", "export", path, "--type", of.Stored, "-o", float); err != nil {
			return err
		}
	}

	b.s.Notef("%s: made by llama-quantize", file)
	return p.program.Quantize(ctx, engines.Limits{Cores: b.Cores, Time: mostConversion}, float, file, format,
		len(b.Cores))
}

// skip notes why a form is not measured.
func (b *enginesBench) skip(engine, form string, why error) EnginesSkipped {
	one := EnginesSkipped{Engine: engine, Form: form, Reason: engines.Reason(engine, why)}
	b.s.Notef("not measured: %v", one)
	return one
}

// quality measures llama.cpp's formats of a model against its own execution in float32.
func (p *llamaPeer) quality(
	ctx context.Context, b *enginesBench, dir, path string, _ *qualityText,
) (list []engines.Quality, skipped []EnginesSkipped, err error) {
	float, base := filepath.Join(dir, "f32.gguf"), filepath.Join(dir, "base")
	limits := engines.Limits{Cores: b.Cores, Time: mostQuality}
	err = b.step(ctx, "models", "export", path, "--type", "f32", "-o", float)
	if err == nil {
		err = p.program.Reference(ctx, limits, float, b.Text, base, len(b.Cores))
	}
	if err != nil {
		return nil, []EnginesSkipped{b.skip(engines.LlamaCppName, "", err)}, ctx.Err()
	}

	for _, format := range b.Formats {
		file := filepath.Join(dir, format+".gguf")
		var quality engines.Quality
		err := p.program.Quantize(ctx, limits, float, file, format, len(b.Cores))
		if err == nil {
			quality, err = p.program.Compare(ctx, limits, file, format, base, len(b.Cores))
		}

		switch {
		case ctx.Err() != nil:
			return nil, nil, ctx.Err()
		case err != nil:
			skipped = append(skipped, b.skip(engines.LlamaCppName, format, err))
		default:
			list = append(list, quality)
		}

		// A format's file may be as large as the model; one at a time is enough.
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, diag.New(diag.ClassIO, "%w", err)
		}
	}

	return list, skipped, nil
}

// pythonPeer is an engine with a Python package, with all forms that differ on this machine.
type pythonPeer struct{ python *engines.Python }

// engines has the peer convert the model. A form that cannot be made is skipped: the others are worth measuring.
func (p *pythonPeer) engines(
	ctx context.Context, b *enginesBench, dir, path string, model *models.Model, of *EnginesModel,
) (out []engines.Engine, skipped []EnginesSkipped, err error) {
	folders, skipped, err := p.convert(ctx, b, dir, path, of.Digest, engines.Calibration(model.Vocab), p.python.Forms)
	for i, form := range p.python.Forms {
		if folders[i] != "" {
			out = append(out, p.python.Engine(folders[i], form))
		}
	}
	return out, skipped, err
}

// convert writes some forms of a model into dir; the folder of a form that was skipped is empty.
func (p *pythonPeer) convert(
	ctx context.Context, b *enginesBench, dir, path, digest string, tokens [][]int, forms []string,
) (folders []string, skipped []EnginesSkipped, err error) {
	folders = make([]string, len(forms))
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		reason := errors.New("it is converted from a Hugging Face directory, which the model is not")
		return folders, []EnginesSkipped{b.skip(p.python.Name, "", reason)}, nil
	}

	for i, form := range forms {
		b.s.Notef("%s: %s %s", dir, p.python.Name, form)
		limits := engines.Limits{Cores: b.Cores, Time: mostConversion}
		name := fmt.Sprintf("%.*s", digestDigits, digest)
		folders[i], err = p.python.Convert(ctx, limits, path, dir, name, form, tokens)
		switch {
		case ctx.Err() != nil:
			return folders, skipped, ctx.Err()
		case err != nil:
			folders[i] = ""
			skipped = append(skipped, b.skip(p.python.Name, form, err))
		}
	}

	return folders, skipped, nil
}

// quality compares every form with the same peer in float32.
func (p *pythonPeer) quality(
	ctx context.Context, b *enginesBench, dir, path string, text *qualityText,
) (list []engines.Quality, skipped []EnginesSkipped, err error) {
	forms := append([]string{engines.Float32}, p.python.Forms...)
	folders, skipped, err := p.convert(ctx, b, dir, path, text.digest, text.calibration, forms)
	if err != nil || folders[0] == "" {
		return nil, skipped, err
	}

	limits := engines.Limits{Cores: b.Cores, Time: mostQuality}
	for i, form := range forms[1:] {
		if folders[i+1] == "" {
			continue
		}
		quality, err := p.python.Compare(ctx, limits, folders[0], folders[i+1], form, text.windows)
		switch {
		case ctx.Err() != nil:
			return nil, nil, ctx.Err()
		case err != nil:
			skipped = append(skipped, b.skip(p.python.Name, form, err))
		default:
			list = append(list, quality)
		}
	}

	return list, skipped, nil
}

// qualityText is a text as tokens of one model.
type qualityText struct {
	digest      string
	windows     [][]int
	calibration [][]int // for static scales; part of the text too, behind the windows where it is long enough
}

// qualityFolder begins the names of the temporary folders in which the quality of an engine is measured.
const qualityFolder = ".quality"

// peersQuality is the quality of the forms of the other engines with one model.
type peersQuality struct {
	list    []engines.Quality
	skipped []EnginesSkipped
}

// peersQuality measures the forms of all other engines with one model.
func (b *enginesBench) peersQuality(ctx context.Context, model *models.Model, path string) (*peersQuality, error) {
	text, err := b.readText(ctx, model)
	if err != nil {
		return nil, err
	}

	all := &peersQuality{}
	for _, other := range b.peers {
		dir, err := os.MkdirTemp(b.dir, qualityFolder)
		if err != nil {
			return nil, diag.New(diag.ClassIO, "%w", err)
		}
		list, skipped, err := other.quality(ctx, b, dir, path, text)
		if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
			return nil, fmt.Errorf("quality of other engines: %w", err)
		}
		for i := range skipped {
			skipped[i].What = "quality"
		}
		all.list, all.skipped = append(all.list, list...), append(all.skipped, skipped...)
	}
	return all, nil
}

// readText reads the text with the tokenizer of a model, as hetc quality does.
func (b *enginesBench) readText(ctx context.Context, model *models.Model) (*qualityText, error) {
	on, err := trial.Open(ctx, model)
	if err != nil {
		return nil, err
	}
	windows, err := b.readWindows(on, engines.Windows)
	if err != nil {
		return nil, err
	}

	// The last windows of the whole text lie behind the measured ones where the text is long enough.
	const all = 0
	calibration, err := b.readWindows(on, all)
	if err != nil {
		return nil, err
	}

	const calibrationWindows = 8
	calibration = calibration[max(0, len(calibration)-calibrationWindows):]
	return &qualityText{digest: on.Digest, windows: windows, calibration: calibration}, nil
}

// readWindows returns the tokens of the first windows of the text, or of all its windows if their number is 0.
func (b *enginesBench) readWindows(on *trial.Model, windows int) (tokens [][]int, err error) {
	text, err := on.ReadText(b.Text, windows, min(engines.Window, on.MaxContext))
	if err != nil {
		return nil, err
	}

	for _, window := range text.Windows {
		ids := make([]int, len(window.Tokens))
		for i, id := range window.Tokens {
			ids[i] = int(id)
		}
		tokens = append(tokens, ids)
	}
	return tokens, nil
}
