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

// counted is a bundle that keeps what its reader asks for.
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

// asked returns the parts of a pack that were asked for, with offsets from its beginning.
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
	options := Options{
		Plan:        plan,
		Model:       m,
		Calibration: cal,
		Compilers:   []driver.Compiler{hostcompiler.New()},
		Signers:     []bundle.Signer{key.Signer()},
		Product:     "test",
		Generation:  1,
		OS:          "any",
		Arch:        "any",
	}
	if _, err := Emit(context.Background(), path, options); err != nil {
		t.Fatal(err)
	}
	return path, func(path string) *bundle.Bundle {
		ring := &bundle.Keyring{Generation: 1, Keys: []bundle.Key{key.Public}, Threshold: 1}
		b, err := bundle.Open(path, bundle.Options{
			Trust:  ring,
			Policy: bundle.Policy{AllowDev: true},
			Mode:   bundle.Lazy,
		})
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

// hotChannels are the rows that the tests declare hot in each pack that is read by row.
var hotChannels = []int64{1, 7, 40}

// outliers is a bundle of a plan in which some channels exceed their scale, and hot rows are declared.
type outliers struct {
	model *models.Model
	plan  *planir.Plan
	bare  planir.Plan // without hot rows
	packs int         // of which single rows are read

	path string
	open func(path string) *bundle.Bundle
}

// newOutliers makes the bundle.
func newOutliers(t *testing.T) *outliers {
	t.Helper()
	x := &outliers{model: openModel(t, demo)}
	cal := calibrate(t, x.model, 0)
	for i := range cal.Activations { // so small a scale that some channels exceed it, and some do not
		for j := range cal.Activations[i].AbsMax {
			cal.Activations[i].AbsMax[j] /= 4
		}
		cal.Activations[i].Summarise()
	}
	x.plan = planOf(t, x.model, cal, op.A8OQ8C, false)
	x.bare = *x.plan
	readByRow(x.plan, func(blob string, at planir.Placement) {
		if blob != "weights/rows" {
			t.Errorf("pack %q lies in blob %q beside packs that are read whole", at.Pack.Name, blob)
		}
		hot := planir.Hot{Weight: at.Pack.Weight, Layer: max(0, at.Layer), Others: 9}
		for _, channel := range hotChannels {
			hot.Channels = append(hot.Channels, int(channel))
		}
		x.plan.Hot = append(x.plan.Hot, hot)
		x.packs++
	})
	slices.SortFunc(x.plan.Hot, func(a, b planir.Hot) int {
		return cmp.Or(strings.Compare(a.Weight, b.Weight), a.Layer-b.Layer)
	})
	x.path, x.open = bundleOf(t, x.plan, x.model, cal)
	return x
}

// load loads the plan from a bundle.
func (x *outliers) load(t *testing.T, source executor.Source) (*executor.Machine, error) {
	t.Helper()
	machine, err := executor.Open(t.Context(), x.plan, source, executor.Options{Drivers: []driver.Driver{host.New()}})
	if err == nil {
		t.Cleanup(func() { machine.Close() })
	}
	return machine, err
}

// rowBytes is the size of a row of a pack.
func rowBytes(at planir.Placement) int64 {
	return at.Pack.Bytes / int64(at.Pack.K1-at.Pack.K0)
}

// Of weights that shadow outliers are multiplied by, loading reads the hot rows alone, into memory of the process.
// Every other row is read from the mapped bundle when its channel exceeds the scale, and verified before that: a
// changed row that is needed fails the call, one that is not changes nothing, and a changed hot row is refused when the
// program is loaded. Which rows are hot does not change a bit of the results.
func TestOutlierRowsAreVerified(t *testing.T) {
	x := newOutliers(t)
	if want := 4*x.model.Layers + 1; x.packs != want {
		t.Fatalf("%d packs of rows, want those of %d products", x.packs, want)
	}
	want := logits(t, &x.bare, blobs{x.open(x.path)}, host.New())

	source := &counted{blobs: blobs{x.open(x.path)}}
	machine, err := x.load(t, source)
	if err != nil {
		t.Fatal(err)
	}
	readsHotRowsAlone(t, x, source)
	source.read = nil
	if got := forward(t, machine); !slices.Equal(got, want) {
		t.Error("with hot rows in memory the logits are others")
	}
	countsRows(t, x, machine)

	needed, spared := coldRows(t, x, source)
	broken, err := x.load(t, blobs{x.open(tampered(t, x.path, needed))})
	if err != nil {
		t.Fatalf("a changed cold row: %v before it is needed", err)
	}
	err = forwardOn(broken, func([]float32) {})
	if _, refused := errors.AsType[*bundle.Error](err); !refused || diag.ClassOf(err) != diag.ClassVerify ||
		!strings.Contains(err.Error(), "(outlier_matmul): channel ") {
		t.Errorf("a changed cold row that is needed: %v, want an error of verification that names the channel", err)
	}
	if spared != nil {
		changed := blobs{x.open(tampered(t, x.path, spared))}
		if got := logits(t, x.plan, changed, host.New()); !slices.Equal(got, want) {
			t.Error("a changed row that is not needed changes logits")
		}
	}

	_, err = x.load(t, blobs{x.open(tampered(t, x.path, hotRow(t, x)))})
	if _, refused := errors.AsType[*bundle.Error](err); !refused {
		t.Errorf("a changed hot row: %v, want an error of verification", err)
	}
}

// readsHotRowsAlone expects that loading asked for the hot rows of each pack, and for no other row.
func readsHotRowsAlone(t *testing.T, x *outliers, source *counted) {
	t.Helper()
	readByRow(x.plan, func(blob string, at planir.Placement) {
		var hot []bundle.Part
		for _, channel := range hotChannels {
			hot = append(hot, bundle.Part{Blob: blob, Offset: channel * rowBytes(at), Bytes: rowBytes(at)})
		}
		if got := source.asked(blob, at); !slices.Equal(got, hot) {
			t.Errorf("loading asked for %v of pack %q in layer %d, want its hot rows %v", got, at.Pack.Name, at.Layer,
				hot)
		}
	})
}

// countsRows expects that some channels beyond scales were cold and some were not, and the number of hot rows.
func countsRows(t *testing.T, x *outliers, machine *executor.Machine) {
	t.Helper()
	hot, cold, channels := 0, int64(0), int64(0)
	for _, stat := range machine.Outliers() {
		hot, cold, channels = hot+stat.Hot, cold+stat.Cold, channels+stat.Channels
	}
	t.Logf("%d of %d channels beyond scales were cold, %d hot rows", cold, channels, hot)
	if cold == 0 || cold == channels {
		t.Errorf("%d of %d channels were cold, want some", cold, channels)
	}
	// There are two programs. Both execute the head with one row, and share its hot rows.
	if want := (2*x.packs - 1) * len(hotChannels); hot != want {
		t.Errorf("%d hot rows, want %d", hot, want)
	}
}

// coldRows returns some bytes of a row that the calls needed, and of one that they did not (nil where there is none).
// The bundle is verified in chunks, and each of the two lies in a chunk without other rows that are read.
func coldRows(t *testing.T, x *outliers, source *counted) (needed, spared []byte) {
	t.Helper()
	const chunk = 64 << 10
	file := x.open(x.path)
	readByRow(x.plan, func(blob string, at planir.Placement) {
		behindHot := at.Offset + (hotChannels[len(hotChannels)-1]+1)*rowBytes(at)
		for from := op.RoundUp(at.Offset, chunk); from+chunk <= at.Offset+at.Pack.Bytes; from += chunk {
			if from <= behindHot {
				continue
			}
			data, err := file.Range(blob, from+chunk/2, 512)
			if err != nil {
				t.Fatal(err)
			}
			read := slices.ContainsFunc(source.asked(blob, at), func(part bundle.Part) bool {
				begin := at.Offset + part.Offset
				return begin < from+chunk && from < begin+part.Bytes
			})
			if read {
				needed = data
			} else {
				spared = data
			}
		}
	})
	if needed == nil {
		t.Fatal("no row in a chunk of its own was needed")
	}
	return needed, spared
}

// hotRow returns a hot row of the last weight in the fourth layer.
func hotRow(t *testing.T, x *outliers) (row []byte) {
	t.Helper()
	file := x.open(x.path)
	readByRow(x.plan, func(blob string, at planir.Placement) {
		if at.Layer != 3 || at.Pack.Weight != x.plan.Hot[len(x.plan.Hot)-1].Weight {
			return
		}
		var err error
		if row, err = file.Range(blob, at.Offset+hotChannels[1]*rowBytes(at), rowBytes(at)); err != nil {
			t.Fatal(err)
		}
	})
	return row
}
