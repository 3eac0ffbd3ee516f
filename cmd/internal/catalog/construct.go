package catalog

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/models/induction"
	"github.com/hetc/hetc/runtime/tokenizer"
)

// UnseenName is the file in a constructed model's directory that holds the part of the text that was not counted.
const UnseenName = "unseen.txt"

// countedShare is how much of the text is counted. The rest is for measuring quality, for which it has to be unseen.
const countedShare = 0.5

// maxText is how long a text may be, in bytes.
const maxText = 8 << 20

// Construct writes a model whose attention uses 8192 tokens of context: with the tokenizer of the model directory from,
// and word pairs counted in the first half of a text. The other half is written beside it.
func Construct(ctx context.Context, ui *cli.Streams, from, text, out string, seed uint64) error {
	if err := emptyDirectory(out); err != nil {
		return err
	}
	model, err := models.Open(from)
	if err != nil {
		return err
	}
	defer model.Close()
	files, err := model.TokenizerFiles()
	if err != nil {
		return err
	}
	if len(files["tokenizer"]) == 0 {
		return diag.New(diag.ClassInput, "construct model %q: %q has no tokenizer", out, from).
			WithHint("give the directory of a model with tokenizer.json")
	}

	encoder, err := tokenizer.New(files["tokenizer"], files["config"], model.BOS)
	if err != nil {
		return err
	}
	data, err := wholefile.Read(text, maxText)
	if err != nil {
		return err
	}
	counted, unseen := split(data)
	ids, err := encoder.Encode(string(counted))
	if err != nil {
		return err
	}
	tensors, err := induction.Build(ids, model.Vocab, seed)
	if err != nil {
		return err
	}

	if err := ctx.Err(); err != nil {
		return diag.New(diag.ClassInterrupted, "construct model %q: %w", out, err)
	}
	err = wholefile.Directory(out, func(dir string) error {
		beside := map[string][]byte{
			"tokenizer.json": files["tokenizer"], "tokenizer_config.json": files["config"], UnseenName: unseen,
		}
		if err := writeFiles(dir, beside); err != nil {
			return err
		}
		return induction.Write(dir, tensors, induction.Config(model.Vocab, model.BOS, endOf(model)))
	})
	if err != nil {
		return diag.New(diag.ClassOr(err, diag.ClassIO), "construct model %q: %w", out, err)
	}
	ui.Printf("%s: constructed for %d tokens of context, from %d tokens of %s; the rest of it is %s\n", out,
		induction.MaxContext, len(ids), text, UnseenName)
	return ui.Result(map[string]any{"dir": out, "context": induction.MaxContext, "counted_tokens": len(ids), "seed": seed})
}

// emptyDirectory refuses a directory that cannot be written to, or that holds files already.
func emptyDirectory(out string) error {
	if err := wholefile.WritableDirectory(out); err != nil {
		return err
	}
	if entries, err := os.ReadDir(out); err == nil && len(entries) > 0 {
		return diag.New(diag.ClassInput, "construct model %q: the directory is not empty", out).
			WithHint("remove it, or give another one")
	}
	return nil
}

// writeFiles writes files by their names, but for those without content.
func writeFiles(dir string, files map[string][]byte) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if len(files[name]) == 0 {
			continue
		}
		if err := wholefile.Write(filepath.Join(dir, name), files[name]); err != nil {
			return err
		}
	}
	return nil
}

// endOf is the token that ends a text of the model, or -1.
func endOf(model *models.Model) int {
	if len(model.EOS) == 0 {
		return -1
	}
	return model.EOS[0]
}

// split divides a text at the end of a line.
func split(text []byte) (counted, unseen []byte) {
	at := int(countedShare * float64(len(text)))
	for at < len(text) && text[at] != '\n' {
		at++
	}
	at = min(at+1, len(text))
	return text[:at], text[at:]
}
