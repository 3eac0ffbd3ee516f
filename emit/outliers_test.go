package emit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
)

// counted is a bundle that notes what its reader asks for.
type counted struct {
	blobs
	mu   sync.Mutex
	read []bundle.Part
}

func (c *counted) Range(name string, offset, length int64) ([]byte, error) {
	c.mu.Lock()
	c.read = append(c.read, bundle.Part{Blob: name, Offset: offset, Bytes: length})
	c.mu.Unlock()
	return c.blobs.Range(name, offset, length)
}

func (c *counted) CopyRange(name string, offset int64, out []byte) error {
	c.mu.Lock()
	c.read = append(c.read, bundle.Part{Blob: name, Offset: offset, Bytes: int64(len(out))})
	c.mu.Unlock()
	return c.blobs.CopyRange(name, offset, out)
}

// asked are the parts of a pack that were asked for, from its beginning.
func (c *counted) asked(blob string, at planir.Placement) (out []bundle.Part) {
	for _, part := range c.read {
		if part.Blob == blob && part.Offset >= at.Offset && part.Offset < at.Offset+at.Pack.Bytes {
			part.Offset -= at.Offset
			out = append(out, part)
		}
	}
	return out
}

// readByRow calls visit for every pack of which single rows are read.
func readByRow(plan *planir.Plan, visit func(blob string, at planir.Placement)) {
	byRow := plan.Program.ReadByRow()
	for _, weights := range plan.Program.WeightBlobs() {
		for _, at := range weights.Packs {
			if byRow[at.Pack.Name] {
				visit(weights.Name, at)
			}
		}
	}
}

// bundleOf is a signed bundle of a plan, with a function that opens it, or a changed copy of it.
func bundleOf(t *testing.T, plan *planir.Plan, m *models.Model, cal *calibration.Calibration) (path string,
	open func(path string) *bundle.Bundle) {
	t.Helper()
	key, err := GenerateKey(bundle.Ed25519, "test", true)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "app.hetb")
	if _, err := Emit(context.Background(), path, Options{Plan: plan, Model: m, Calibration: cal,
		Compilers: []driver.Compiler{hostcompiler.New()}, Signers: []bundle.Signer{key.Signer()}, Product: "test", Generation: 1,
		OS: "any", Arch: "any"}); err != nil {
		t.Fatal(err)
	}
	return path, func(path string) *bundle.Bundle {
		ring := &bundle.Keyring{Generation: 1, Keys: []bundle.Key{key.Public}, Threshold: 1}
		b, err := bundle.Open(path, bundle.Options{Trust: ring, Policy: bundle.Policy{AllowDev: true}, Mode: bundle.Lazy})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		return b
	}
}

// tampered is a copy of a bundle in which one bit of some bytes, which are in it once, is another.
func tampered(t *testing.T, path string, of []byte) string {
	t.Helper()
	all, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	where := bytes.Index(all, of)
	if where < 0 || bytes.Contains(all[where+1:], of) {
		t.Fatal("the bytes are not in the file once")
	}
	all[where+len(of)/2] ^= 1
	changed := filepath.Join(t.TempDir(), "tampered.hetb")
	if err := os.WriteFile(changed, all, 0o600); err != nil {
		t.Fatal(err)
	}
	return changed
}

// Of weights that shadow outliers are multiplied by, loading reads the hot rows alone, into memory of the process.
// Every other row is read from the mapped bundle when its channel exceeds the scale, and verified before that: a
// changed row that is needed fails the call, one that is not changes nothing, and a changed hot row is refused when the
// program is loaded. Which rows are hot does not change a bit of the results.
func TestOutlierRowsAreVerified(t *testing.T) {
	m := openModel(t, demo)
	cal := calibrate(t, m, 0)
	for i := range cal.Activations { // so small a scale that some channels exceed it, and some do not
		for j := range cal.Activations[i].AbsMax {
			cal.Activations[i].AbsMax[j] /= 4
		}
		cal.Activations[i].Summarise()
	}
	plan := planOf(t, m, cal, op.A8OQ8C, false)
	bare := *plan
	count := 0
	readByRow(plan, func(blob string, at planir.Placement) {
		if blob != "weights/rows" {
			t.Errorf("pack %q lies in blob %q beside packs that are read whole", at.Pack.Name, blob)
		}
		plan.Hot = append(plan.Hot, planir.Hot{Weight: at.Pack.Weight, Layer: max(0, at.Layer), Channels: []int{1, 7, 40}, Others: 9})
		count++
	})
	if count != 4*m.Layers+1 {
		t.Fatalf("%d packs of rows, want those of %d products", count, 4*m.Layers+1)
	}
	slices.SortFunc(plan.Hot, func(x, y planir.Hot) int {
		return cmp.Or(strings.Compare(x.Weight, y.Weight), x.Layer-y.Layer)
	})
	path, open := bundleOf(t, plan, m, cal)
	want := logits(t, &bare, blobs{open(path)}, host.New())

	source := &counted{blobs: blobs{open(path)}}
	machine, err := executor.Open(context.Background(), plan, source, executor.Options{Drivers: []driver.Driver{host.New()}})
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	readByRow(plan, func(blob string, at planir.Placement) {
		row := at.Pack.Bytes / int64(at.Pack.K1-at.Pack.K0)
		var hot []bundle.Part
		for _, channel := range []int64{1, 7, 40} {
			hot = append(hot, bundle.Part{Blob: blob, Offset: channel * row, Bytes: row})
		}
		if got := source.asked(blob, at); !slices.Equal(got, hot) {
			t.Errorf("loading asked for %v of pack %q in layer %d, want its hot rows %v", got, at.Pack.Name, at.Layer, hot)
		}
	})
	source.read = nil
	if got := forward(t, machine); !slices.Equal(got, want) {
		t.Error("with hot rows in memory the logits are others")
	}
	hot, cold, channels := 0, int64(0), int64(0)
	for _, stat := range machine.Outliers() {
		hot, cold, channels = hot+stat.Hot, cold+stat.Cold, channels+stat.Channels
	}
	t.Logf("%d of %d channels beyond scales were cold, %d hot rows", cold, channels, hot)
	if cold == 0 || cold == channels || hot != 2*3*count-3 { // two programs; the head is executed by both, with one row
		t.Errorf("%d of %d channels were cold with %d hot rows, want some, and %d rows", cold, channels, hot, 2*3*count-3)
	}

	// A block of rows that was needed, one that was not, and a hot row, each far from what else is read.
	var needed, spared []byte
	file := open(path)
	readByRow(plan, func(blob string, at planir.Placement) {
		const chunk = 64 << 10
		first := op.RoundUp(at.Offset, chunk)
		for from := first; from+chunk <= at.Offset+at.Pack.Bytes; from += chunk {
			read := slices.ContainsFunc(source.asked(blob, at), func(part bundle.Part) bool {
				return at.Offset+part.Offset < from+chunk && from < at.Offset+part.Offset+part.Bytes
			})
			row := at.Pack.Bytes / int64(at.Pack.K1-at.Pack.K0)
			if !read && from < at.Offset+41*row { // hot rows are there
				continue
			}
			data, err := file.Range(blob, from+chunk/2, 512)
			if err != nil {
				t.Fatal(err)
			}
			if read && from > at.Offset+41*row {
				needed = data
			} else if !read {
				spared = data
			}
		}
	})
	if needed == nil {
		t.Fatal("no row in a chunk of its own was needed")
	}
	broken, err := executor.Open(context.Background(), plan, blobs{open(tampered(t, path, needed))},
		executor.Options{Drivers: []driver.Driver{host.New()}})
	if err != nil {
		t.Fatalf("a changed cold row: %v before it is needed", err)
	}
	defer broken.Close()
	err = forwardOn(broken, func([]float32) {})
	if _, refused := errors.AsType[*bundle.Error](err); !refused || !strings.Contains(err.Error(), "(outlier_matmul): channel ") || diag.ClassOf(err) != diag.ClassVerify {
		t.Errorf("a changed cold row that is needed: %v, want an error of verification that names the channel", err)
	}
	if spared != nil {
		if got := logits(t, plan, blobs{open(tampered(t, path, spared))}, host.New()); !slices.Equal(got, want) {
			t.Error("a changed row that is not needed changes logits")
		}
	}
	var changed string
	readByRow(plan, func(blob string, at planir.Placement) {
		if at.Layer == 3 && at.Pack.Weight == plan.Hot[len(plan.Hot)-1].Weight {
			row := at.Pack.Bytes / int64(at.Pack.K1-at.Pack.K0)
			data, err := file.Range(blob, at.Offset+7*row, row)
			if err != nil {
				t.Fatal(err)
			}
			changed = tampered(t, path, data)
		}
	})
	_, err = executor.Open(context.Background(), plan, blobs{open(changed)}, executor.Options{Drivers: []driver.Driver{host.New()}})
	if _, refused := errors.AsType[*bundle.Error](err); !refused {
		t.Errorf("a changed hot row: %v, want an error of verification", err)
	}
}
