package emit

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
)

// counted is a bundle that notes what its reader asks for.
type counted struct {
	blobs
	mu   sync.Mutex
	read map[bundle.Part]bool
}

func (c *counted) Range(name string, offset, length int64) ([]byte, error) {
	c.mu.Lock()
	c.read[bundle.Part{Blob: name, Offset: offset, Bytes: length}] = true
	c.mu.Unlock()
	return c.blobs.Range(name, offset, length)
}

// Rows of weights that shadow outliers are multiplied by lie in the bundle as whole rows. All of them are verified before
// a program that may read them computes anything, those of channels that the calibration never saw as outliers too; the
// bundle is mapped, so that of those only what is read later comes into memory. A changed row is refused.
func TestOutlierRowsAreVerified(t *testing.T) {
	m := openModel(t, demo)
	cal := calibrate(t, m, 0)
	plan := planOf(t, m, cal, op.A8OQ8C, false)
	key, err := GenerateKey(bundle.Ed25519, "test", true)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "app.hetb")
	if _, err := Emit(context.Background(), path, Options{Plan: plan, Model: m, Calibration: cal,
		Compilers: []driver.Compiler{hostcompiler.New()}, Signers: []bundle.Signer{key.Signer()}, Product: "test", Generation: 1,
		OS: "any", Arch: "any"}); err != nil {
		t.Fatal(err)
	}
	open := func(path string) *bundle.Bundle {
		ring := &bundle.Keyring{Generation: 1, Keys: []bundle.Key{key.Public}, Threshold: 1}
		b, err := bundle.Open(path, bundle.Options{Trust: ring, Policy: bundle.Policy{AllowDev: true}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		return b
	}
	file := open(path)
	source := &counted{blobs: blobs{file}, read: map[bundle.Part]bool{}}
	logits(t, plan, source, host.New())
	// every layer's rows were asked for as a whole, and Range returns nothing that is not verified
	rows := 0
	for _, weights := range plan.Program.WeightBlobs() {
		for _, at := range weights.Packs {
			if at.Pack.Layout != op.RowsLayout || at.Pack.Scheme != string(op.BF16) || at.Pack.K1 == 1 || strings.HasPrefix(at.Pack.Weight, "embed") {
				continue
			}
			rows++
			if want := int64(at.Pack.K1-at.Pack.K0) * int64(at.Pack.N1-at.Pack.N0) * 2; at.Pack.Bytes != want {
				t.Errorf("pack %q has %d bytes, want %d of whole rows", at.Pack.Name, at.Pack.Bytes, want)
			}
			if !source.read[bundle.Part{Blob: weights.Name, Offset: at.Offset, Bytes: at.Pack.Bytes}] {
				t.Errorf("pack %q of %s was used before its rows were verified", at.Pack.Name, weights.Name)
			}
		}
	}
	if rows != 4*m.Layers+1 {
		t.Fatalf("%d packs of rows, want those of %d products", rows, 4*m.Layers+1)
	}
	// One bit of a row of a channel in the middle, far from where anything is read.
	for _, weights := range plan.Program.WeightBlobs() {
		i := slices.IndexFunc(weights.Packs, func(at planir.Placement) bool {
			return at.Layer == 3 && at.Pack.Weight == "layers.ffn_down" && at.Pack.Scheme == string(op.BF16)
		})
		if i < 0 {
			continue
		}
		at := weights.Packs[i]
		row, err := file.Range(weights.Name, at.Offset+at.Pack.Bytes/2, 512)
		if err != nil {
			t.Fatal(err)
		}
		all, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		where := bytes.Index(all, row)
		if where < 0 || bytes.Contains(all[where+1:], row) {
			t.Fatal("the row is not in the file once")
		}
		all[where+100] ^= 1
		other := filepath.Join(t.TempDir(), "tampered.hetb")
		if err := os.WriteFile(other, all, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err = executor.Open(context.Background(), plan, blobs{open(other)}, executor.Options{Drivers: []driver.Driver{host.New()}})
		if err == nil || !strings.Contains(err.Error(), weights.Name) {
			t.Errorf("a changed row: %v, want an error about %s", err, weights.Name)
		}
		if _, refused := errors.AsType[*bundle.Error](err); !refused {
			t.Errorf("a changed row: %v is no error of verification", err)
		}
		return
	}
	t.Fatal("no rows of the down projection in layer 3")
}
