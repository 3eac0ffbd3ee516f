package bundling

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/hetc/hetc/cmd/internal/accept"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/planir/prefix"
	"github.com/hetc/hetc/runtime/driver/all"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
)

const system = "In the beginning God created the heaven and the earth."

// demo are the options of a bundle of the demo model on one core, and its public key.
func demo(t *testing.T, config string) (*Options, string) {
	t.Helper()
	model, err := models.Open("../../../testdata/models/tiny-llama-kjv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	digest, err := model.Digest()
	if err != nil {
		t.Fatal(err)
	}
	plan := &planir.Plan{
		Schema: planir.Schema, Model: planir.ModelRef{Name: "demo", Digest: digest, BOS: model.BOS, EOS: model.EOS},
		SoC:        planir.SoCRef{Name: "test", Control: "a", Fingerprint: host.Fingerprint()},
		MaxContext: 128, KV: op.F32,
		Procs: []planir.Proc{{
			Name: "a", Kind: "cpu", Driver: "host", Select: "0", Cores: []int{0},
			Set: capability.Set{
				Tile: capability.Tile{K: pack.BlockK, N: pack.TileN}, Schemes: op.Schemes,
				Layouts:     map[string]string{"q8c": pack.N32, "w32": pack.N32},
				DynamicRows: true, StridedInput: true, StridedOutput: true, WeightRanges: true,
			},
		}},
	}
	graph := model.Graph()
	if plan.Decisions, err = lower.Trivial(&graph, "a", []int{1, 16}, plan.MaxContext, op.F32,
		func(string, int) op.Scheme { return op.A8TQ8C }); err != nil {
		t.Fatal(err)
	}
	if err := lower.Lower(plan, &graph); err != nil {
		t.Fatal(err)
	}
	files, err := model.TokenizerFiles()
	if err != nil {
		t.Fatal(err)
	}
	if config != "" {
		files["config"] = []byte(config)
	}
	dir := t.TempDir()
	key, err := emit.GenerateKey(bundle.Ed25519, "k", false)
	if err != nil {
		t.Fatal(err)
	}
	if err := key.Save(filepath.Join(dir, "k")); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(dir, "system.txt")
	if err := os.WriteFile(text, []byte(system+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return &Options{PrefixFile: text, Options: emit.Options{Plan: plan, Model: model, Files: files,
		Signers: []bundle.Signer{key.Signer()}, Product: "demo", Generation: 1}}, filepath.Join(dir, "k.pub")
}

// sparsely has the plan's prompts attend to a third of the positions.
func sparsely(t *testing.T, o *Options) {
	t.Helper()
	plan, graph := o.Plan, o.Model.Graph()
	o.Calibration = calibration.Even(calibration.Model{Name: plan.Model.Name, Digest: plan.Model.Digest}, o.Model.Layers,
		o.Model.Heads, o.Model.KVHeads, 0.3)
	digest, err := o.Calibration.Digest()
	if err != nil {
		t.Fatal(err)
	}
	plan.Inputs = []planir.Input{{Kind: planir.CalibrationInput, Digest: digest}}
	plan.Attention = &planir.Attention{Density: 0.3, Block: 8, Rows: []int{16}}
	if plan.Decisions, err = lower.TrivialOf(plan, &graph, "a", []int{1, 16},
		func(string, int) op.Scheme { return op.A8TQ8C }); err != nil {
		t.Fatal(err)
	}
	if err := lower.Lower(plan, &graph); err != nil {
		t.Fatal(err)
	}
}

// load opens a bundle as hetserve does.
func load(t *testing.T, path, key string) *runcmd.Loaded {
	t.Helper()
	var terms accept.Terms
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	terms.Register(flags)
	if err := flags.Set("trust", key); err != nil {
		t.Fatal(err)
	}
	loaded, err := runcmd.Load(t.Context(), &cli.Streams{Out: io.Discard, Err: io.Discard}, path, terms, false,
		all.Drivers(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { loaded.Close() })
	return loaded
}

// A bundle brings the cache of its system message along, of the tokens that all conversations begin with, and it is what
// the bundle's plan computes of them. The same inputs give the same bytes.
func TestPrefixInTheBundle(t *testing.T) {
	for name, config := range map[string]string{
		"without a template": "",
		"with a template":    `{"chat_template": "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"}`,
	} {
		t.Run(name, func(t *testing.T) {
			options, key := demo(t, config)
			ui := &cli.Streams{Out: io.Discard, Err: io.Discard}
			if err := options.computePrefix(ui, nil); err != nil {
				t.Fatal(err)
			}
			var written [2][]byte
			path := filepath.Join(t.TempDir(), "app.hetb")
			for i := range written {
				if _, err := Emit(t.Context(), path, options.Options, nil); err != nil {
					t.Fatal(err)
				}
				var err error
				if written[i], err = os.ReadFile(path); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(written[0], written[1]) {
				t.Error("emitted twice: other bytes")
			}
			loaded := load(t, path, key)
			if loaded.Prefix == nil {
				t.Fatal("the bundle has no prefix")
			}
			ids := loaded.Prefix.Tokens
			prompt, err := loaded.Tokenizer.Prompt(system)
			if config != "" {
				prompt, err = loaded.Tokenizer.Encode("[system] " + system)
			}
			// the last token of the text may be cut otherwise before what follows
			if err != nil || len(ids) < len(prompt)-1 || !slices.Equal(ids[:len(prompt)-1], prompt[:len(prompt)-1]) {
				t.Errorf("%d tokens %v (%v), want those of the text %v", len(ids), ids, err, prompt)
			}
			err = loaded.Machine.Do(t.Context(), func(control *executor.Control) error {
				if _, err := control.Extend(0, ids, executor.WantNone, nil); err != nil {
					return err
				}
				cache, err := control.Cached(0, len(ids))
				if !bytes.Equal(cache, loaded.Prefix.Cache) {
					t.Error("the plan computes another cache")
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Of a plan with sparse attention the prefix ends with the last whole call, which is what prompts reuse.
func TestPrefixOfSparseAttention(t *testing.T) {
	options, key := demo(t, "")
	sparsely(t, options)
	if err := os.WriteFile(options.PrefixFile, []byte(strings.Repeat(system+" ", 4)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := options.computePrefix(&cli.Streams{Out: io.Discard, Err: io.Discard}, nil); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "app.hetb")
	if _, err := Emit(t.Context(), path, options.Options, nil); err != nil {
		t.Fatal(err)
	}
	loaded := load(t, path, key)
	if loaded.Prefix == nil || len(loaded.Prefix.Tokens) < 32 || len(loaded.Prefix.Tokens)%16 != 0 {
		t.Fatalf("the prefix is %+v, want some calls of 16 tokens", loaded.Prefix)
	}
	prompt, err := loaded.Tokenizer.Prompt(strings.TrimSpace(strings.Repeat(system+" ", 4)) + "\nAnd then?")
	if err != nil {
		t.Fatal(err)
	}
	reuse := prefix.ReuseOf(options.Plan)
	if got := reuse.Of(loaded.Prefix, prompt); got != len(loaded.Prefix.Tokens) {
		t.Errorf("a prompt reuses %d tokens, want the prefix's %d", got, len(loaded.Prefix.Tokens))
	}
	err = loaded.Machine.Do(t.Context(), func(control *executor.Control) error {
		if _, err := control.Extend(0, prompt, executor.WantNone, nil); err != nil {
			return err
		}
		cache, err := control.Cached(0, len(loaded.Prefix.Tokens))
		if !bytes.Equal(cache, loaded.Prefix.Cache) {
			t.Error("the prompt computes another cache")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A file that cannot be read is an error of the system, not of what the user wrote.
func TestUnreadablePrefix(t *testing.T) {
	options := &Options{PrefixFile: strings.Repeat("x", 300)} // longer than file systems take
	err := options.computePrefix(&cli.Streams{Out: io.Discard, Err: io.Discard}, nil)
	if diag.ClassOf(err) != diag.ClassIO {
		t.Errorf("got %v of class %v, want class %v", err, diag.ClassOf(err), diag.ClassIO)
	}
}

// A prefix is refused where nothing here computes what the plan's processors would, and where there is none.
func TestPrefixRefuses(t *testing.T) {
	for want, change := range map[string]func(o *Options){
		"are not here":   func(o *Options) { o.Plan.SoC.Simulated = true },
		"and those of":   func(o *Options) { o.Target.Name = "snapdragon-8gen3" },
		"tokenizer":      func(o *Options) { delete(o.Files, "tokenizer") },
		"is empty":       func(o *Options) { _ = os.WriteFile(o.PrefixFile, []byte(" \n"), 0o600) },
		"no text in UTF": func(o *Options) { _ = os.WriteFile(o.PrefixFile, []byte("\xff"), 0o600) },
		"does not exist": func(o *Options) { o.PrefixFile += "x" },
		"want fewer than": func(o *Options) {
			_ = os.WriteFile(o.PrefixFile, []byte(strings.Repeat("And God said, ", 200)), 0o600)
		},
		"no system role": func(o *Options) {
			o.Files["config"] = []byte(`{"chat_template": "{{ raise_exception('no system role') }}"}`)
		},
		"no prompt could reuse": func(o *Options) {
			sparsely(t, o)
			_ = os.WriteFile(o.PrefixFile, []byte("In the beginning"), 0o600)
		},
		"no beginning in": func(o *Options) { o.Files["config"] = []byte(`{"chat_template": "{{ messages[1].content }}"}`) },
	} {
		options, _ := demo(t, "")
		change(options)
		err := options.computePrefix(&cli.Streams{Out: io.Discard, Err: io.Discard}, nil)
		if err == nil {
			_, err = Emit(t.Context(), filepath.Join(t.TempDir(), "app.hetb"), options.Options, nil)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
