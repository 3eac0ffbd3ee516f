package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/clapi"
	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models/safetensors"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/runtime/driver/opencl"
)

// outlierDriver executes products in static scales, beside which the CPU multiplies what exceeds them.
type outlierDriver struct {
	name, proc string // of the product in a plan
	soc        string // flag of profile and solve that names the SoC
	emit       string // flags of emit
	env        string // NAME=VALUE of hetc emit and hetrun, "": none
	missing    func() error
}

// outlierDrivers are all drivers of the scheme. GPU and NPU are those of a described phone, for which a device of OpenCL and
// the vendor's emulator stand here, so that neither needs a profile of this machine.
func outlierDrivers() []outlierDriver {
	intel := filepath.Join(os.Getenv(native.EnvDir), clapi.IntelFolder, clapi.IntelLibrary)
	return []outlierDriver{
		{name: "host", proc: "host:0", soc: "--soc host.yaml"},
		{name: "ort", proc: "ort:0", soc: "--soc ort.yaml", missing: func() error {
			_, err := ortapi.Find("")
			return err
		}},
		{name: "opencl", proc: "gpu", soc: "--target phone.yaml", emit: "--soc phone.yaml --for-emulator", missing: func() error {
			_, err := opencl.New().Devices(context.Background())
			return err
		}},
		{name: "opencl-intel", proc: "gpu", soc: "--target phone.yaml", emit: "--soc phone.yaml --for-emulator",
			env: "HETC_OPENCL_LIBRARY=" + intel, missing: func() error {
				_, err := os.Stat(intel)
				return err
			}},
		{name: "qnn", proc: "npu", soc: "--target phone.yaml", emit: "--soc phone.yaml --for-emulator", missing: func() error {
			_, err := ortapi.FindQNN("")
			return err
		}},
	}
}

// boundless is a token that the calibrated text does not have: where a layer's norm amplifies its embedding, float32 has no
// such number.
const boundless = "0"

// boundlessNorm gives the boundless token alone a first channel, and the first norm of the model a gain for it that float32
// holds, but not times 16, which the norm makes of the only channel of 256. The self-test has values below 8.
func boundlessNorm(header map[string]any, data []byte) {
	const one, most = 0x3f80, 0x7e00 // bfloat16: 1 and 4.3e37
	tensor := func(name string) []byte {
		from := header[name].(map[string]any)["data_offsets"].([]any)
		return data[int(from[0].(float64)):int(from[1].(float64))]
	}
	binary.LittleEndian.PutUint16(tensor("model.layers.0.input_layernorm.weight"), most)
	embedding := tensor("model.embed_tokens.weight")
	clear(embedding[:2*256])
	for row := range len(embedding) / (2 * 256) {
		binary.LittleEndian.PutUint16(embedding[2*256*row:], 0)
	}
	binary.LittleEndian.PutUint16(embedding, one)
}

// narrowed writes a calibration with a hundredth of the ranges, so that nearly every channel of every row exceeds the static
// scales, and counts that say how many a call was seen to have. It names no hot channels.
func narrowed(d *dir, from, to string, counted int) {
	d.Helper()
	cal, err := calibration.Read(d.at(from))
	d.must(err)
	for i := range cal.Activations {
		activation := &cal.Activations[i]
		for channel := range activation.AbsMax {
			activation.AbsMax[channel] /= 100
			activation.MeanSquare[channel] /= 1e4
		}
		activation.Directions = nil
		activation.Summarise()
		for j := range activation.Outliers {
			activation.Outliers[j].Share = 0.5
		}
	}
	for i := range cal.Exceeding {
		exceeding := &cal.Exceeding[i]
		exceeding.Distinct = 0
		for j := range exceeding.Counts {
			exceeding.Counts[j].Most, exceeding.Counts[j].Mean = counted, float64(counted)
		}
	}
	d.must(calibration.Write(d.at(to), cal))
}

// ran runs hetrun and returns what it said; the exit code must be that one.
func (x *outlierDriver) ran(d *dir, code int, line string) (stdout, stderr string) {
	d.Helper()
	c := exec.Command("hetrun", d.words(line)...)
	c.Dir = d.path
	if x.env != "" {
		c.Env = append(os.Environ(), x.env)
	}
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	_ = c.Run() // the exit code says it
	if got := c.ProcessState.ExitCode(); got != code {
		d.Fatalf("hetrun %s: exit code %d, want %d\n%s%s", line, got, code, out.String(), errs.String())
	}
	return out.String(), errs.String()
}

// bundle solves with a calibration and writes a bundle of its name.
func (x *outlierDriver) bundle(d *dir, name string) {
	d.Helper()
	d.hetc("solve " + x.soc + " --record " + x.name + ".jsonl --accept-noisy --model m --workload w.yaml --only " + x.proc +
		" --calibration " + name + ".cal -o " + name + ".yaml")
	plan := d.read(d.at(name + ".yaml"))
	if !regexp.MustCompile(`(?s)node: layers.ffn_down\n.{0,300}proc: '?` + regexp.QuoteMeta(x.proc) + `\b`).MatchString(plan) {
		d.Fatalf("no product of %s.yaml is on %s:\n%s", name, x.proc, plan)
	}
	flags := x.emit
	if flags == "" {
		flags = x.soc
	}
	c := exec.Command("hetc", d.words("emit --plan "+name+".yaml "+flags+" --model m --calibration "+name+".cal --key k.key "+
		"--with-reference -o "+name+".hetb")...)
	c.Dir = d.path
	if x.env != "" {
		c.Env = append(os.Environ(), x.env)
	}
	if out, err := c.CombinedOutput(); err != nil {
		d.Fatalf("hetc emit of %s: %v\n%s", name, err, out)
	}
}

// flipped copies a bundle with another bit in the row of a weight, of which single rows are read, in some layer: that
// product's, and its k-th row, or the first hot one with k below 0.
func flipped(d *dir, from, to, weight string, layer, k int) {
	d.Helper()
	trust, err := bundle.LoadTrust(d.at("k.pub"))
	d.must(err)
	file, err := bundle.Open(d.at(from), bundle.Options{Trust: trust, Policy: bundle.Policy{}, Mode: bundle.Lazy})
	d.must(err)
	defer file.Close()
	text, err := file.Bytes(emit.PlanBlob)
	d.must(err)
	plan, err := planir.Decode(text)
	d.must(err)
	byRow := plan.Program.ReadByRow()
	for _, blob := range plan.Program.WeightBlobs() {
		for _, at := range blob.Packs {
			if !byRow[at.Pack.Name] || at.Pack.Weight != weight || at.Layer != layer {
				continue
			}
			if k < 0 {
				k = plan.HotRows(weight, layer).Channels[0]
			}
			row := at.Pack.Bytes / int64(at.Pack.K1-at.Pack.K0)
			info, err := bundle.Inspect(d.at(from))
			d.must(err)
			number := slices.IndexFunc(file.Manifest().Blobs, func(x bundle.Blob) bool { return x.Name == blob.Name })
			all := []byte(d.read(d.at(from)))
			all[info.Offsets[number]+at.Offset+int64(k-at.Pack.K0)*row+row/2] ^= 1
			d.must(os.WriteFile(d.at(to), all, 0o600))
			return
		}
	}
	d.Fatalf("%s has no rows of %q in layer %d", from, weight, layer)
}

// Outliers that are damaged, too many, or no numbers, on every driver and as users meet them: refused with the reason, or
// computed right. A changed row of a weight is refused when it is loaded or needed; a call in which nearly all channels
// exceed the scale has the logits of one with room for them; an activation that float32 cannot hold ends the call.
func TestOutliersAreRefusedOrRight(t *testing.T) {
	require.Slow(t)
	require.Deps()
	if runtime.GOOS == "windows" {
		t.Skip("uses links")
	}
	t.Setenv("HETC_CACHE", t.TempDir())
	base := outlierDir(t, func(d *dir) { d.tensors(nil, boundlessNorm) })
	for _, x := range outlierDrivers() {
		t.Run(x.name, func(t *testing.T) {
			of := base
			if x.name == "qnn" { // computes in half precision, which has no such gain
				of = outlierDir(t, func(d *dir) { d.tensors(nil, nil) })
			}
			refusedOrRight(x.profiled(t, of), &x)
		})
	}
}

// profiled is a directory as the driver's test has it, with what solve needs of the driver. Without the driver the test is
// skipped.
func (x *outlierDriver) profiled(t *testing.T, of *dir) *dir {
	t.Helper()
	if x.missing != nil {
		if err := x.missing(); err != nil {
			require.Skip(t, x.name, err)
		}
	}
	d := &dir{T: t, path: of.path, artifacts: of.artifacts, model: of.model}
	switch x.name {
	case "host":
		d.hetc("probe -o host.yaml")
	case "ort":
		d.hetc("probe --driver ort -o ort.yaml")
	}
	budget := ""
	if strings.HasPrefix(x.soc, "--soc") {
		budget = " --budget 3s"
	}
	d.hetc("profile " + x.soc + " --model m --workload w.yaml -o " + x.name + ".jsonl" + budget)
	return d
}

// Shadow outliers lose next to nothing on text that the calibration has not seen, on every driver: of a model with planted
// outlier channels and, with HETC_LONG=1, of the trained one as it is. Nothing is folded.
func TestShadowsLoseNextToNothing(t *testing.T) {
	require.Slow(t)
	require.Deps()
	if runtime.GOOS == "windows" {
		t.Skip("uses links")
	}
	t.Setenv("HETC_CACHE", t.TempDir())
	models := map[string]func(*dir){"planted": func(d *dir) { plantedModel(d, 1) }}
	if os.Getenv("HETC_LONG") != "" {
		models["plain"] = func(d *dir) { d.tensors(nil, nil) }
	}
	for name, model := range models {
		t.Run(name, func(t *testing.T) {
			base := outlierDir(t, model)
			lines := strings.SplitAfter(base.read(filepath.Join(base.model, "valid.txt")), "\n")
			base.write("unseen.txt", strings.Join(lines[len(lines)-400:], ""))
			for _, x := range outlierDrivers() {
				if x.env != "" {
					continue // another library of the same driver
				}
				t.Run(x.name, func(t *testing.T) {
					d := x.profiled(t, base)
					x.bundle(d, "app")
					said := d.hetc("quality --bundle app.hetb --trust k.pub --model m --text unseen.txt --windows 8 " +
						"--window-tokens 64 --max-kl 0.0012")
					t.Log(said)
				})
			}
		})
	}
}

// outlierDir is a directory with a model, calibrations and all else that does not depend on the driver.
func outlierDir(t *testing.T, model func(*dir)) *dir {
	t.Helper()
	made := artifacts(t)
	base := &dir{T: t, path: t.TempDir(), artifacts: made.path, model: made.model}
	model(base)
	base.hetc("calibrate --model m --text $M/valid.txt --windows 4 --schemes a8o/q8c --no-folds -o app.cal")
	narrowed(base, "app.cal", "tight.cal", 1)
	narrowed(base, "app.cal", "roomy.cal", 768)
	base.hetc("keygen --out k")
	base.write("w.yaml", header+"buckets: [16]\ncontext: 64\nschemes: {prefill: [a8o/q8c], decode: [a8o/q8c]}\n")
	base.write("phone.yaml", "schema: hetc.soc/1\nname: phone\ninherit: snapdragon-8gen3\nprocessors:\n  - name: gpu\n"+
		"    schemes: [a32/w32, a8t/q8c, a8t/q4b32, a8o/q8c]\n    layouts: {w32: n32, q8c: n32, q4b32: n32}\n"+
		"    target: {driver: opencl}\n    sim:\n      schemes:\n        a8o/q8c: {peak_gops: 1000}\n")
	return base
}

// refusedOrRight tries one driver.
func refusedOrRight(d *dir, x *outlierDriver) {
	const prompt = " --trust k.pub --tokens 1,5,7,9,900,33,20,11,45,1200,77,3"
	for _, name := range []string{"app", "tight", "roomy"} {
		x.bundle(d, name)
	}
	_, stderr := x.ran(d, 0, "app.hetb"+prompt+" --max-tokens 2 --check")
	if !strings.Contains(stderr, "check: 12 positions against the reference") {
		d.Errorf("app: %s", stderr)
	}

	// Too many channels in every row: several passes, the bits of one.
	x.ran(d, 0, "tight.hetb"+prompt+" --max-tokens 2 --check")
	stdout, _ := x.ran(d, 0, "tight.hetb"+prompt+" --max-tokens 2 --stats --json")
	var said struct {
		Stats struct {
			Outliers []struct {
				Node                string
				Bound               int
				Calls, Beyond, Most int64
			}
		}
	}
	if err := json.Unmarshal([]byte(stdout), &said); err != nil || len(said.Stats.Outliers) == 0 {
		d.Fatalf("tight: %v\n%s", err, stdout)
	}
	for _, product := range said.Stats.Outliers {
		if product.Bound != 4 || product.Calls == 0 || product.Beyond != product.Calls {
			d.Errorf("tight: %+v, want all calls beyond 4 channels", product)
		}
	}
	for _, name := range []string{"tight", "roomy"} {
		x.ran(d, 0, name+".hetb"+prompt+" --dump-logits "+name+".safetensors")
	}
	if d.read(d.at("tight.safetensors")) != d.read(d.at("roomy.safetensors")) {
		d.Error("logits depend on how many channels are multiplied at once")
	}

	// Changed rows.
	for _, changed := range []struct {
		bundle, what string
		layer, row   int
		want         string
	}{
		{"tight", "a cold row", 3, 500, `\(outlier_matmul\): channel \d+: .*digest`},
		{"app", "a hot row", 4, -1, `digest`},
	} {
		flipped(d, changed.bundle+".hetb", "changed.hetb", downWeight, changed.layer, changed.row)
		stdout, stderr := x.ran(d, 5, "changed.hetb"+prompt+" --max-tokens 1")
		if stdout != "" || !regexp.MustCompile(changed.want).MatchString(stderr) {
			d.Errorf("%s: said %q and %s, want %s", changed.what, stdout, stderr, changed.want)
		}
		d.must(os.Remove(d.at("changed.hetb")))
	}

	if x.name == "qnn" {
		return
	}
	// No number: in a prompt, and after one.
	for _, ids := range []string{"1,5,7," + boundless + ",33", boundless} {
		stdout, stderr := x.ran(d, 8, "app.hetb --trust k.pub --max-tokens 2 --tokens "+ids)
		if stdout != "" || !regexp.MustCompile(`infinit|Inf|NaN`).MatchString(stderr) {
			d.Errorf("tokens %s: said %q and %s, want that a value is no number", ids, stdout, stderr)
		}
	}
}

// downWeight is the weight of the down projection.
const downWeight = "layers.ffn_down"

// planted are the channels that are outliers of plantedModel.
var planted = []int{3, 17, 60, 61, 130, 255}

// plantedModel writes model m, which computes what the small one does. Planted channels of what enters qkv and the
// feed-forward products are 32 times as large, their weights as much smaller: powers of two, which change no result.
// Columns of feed-forward blocks are so many columns apart, with zeros between.
func plantedModel(d *dir, apart int) {
	d.Helper()
	file, err := safetensors.Open(filepath.Join(d.model, "model.safetensors"))
	d.must(err)
	defer file.Close()
	var out []safetensors.Tensor
	for _, name := range file.Names() {
		tensor, _ := file.Tensor(name)
		tensor.Data = slices.Clone(tensor.Data)
		parts := strings.Split(name, ".")
		plant(&tensor, parts[len(parts)-2])
		spread(&tensor, parts[len(parts)-2], apart)
		out = append(out, tensor)
	}
	d.config(`"intermediate_size": 768`, fmt.Sprintf(`"intermediate_size": %d`, 768*apart))
	d.must(safetensors.Write(d.at("planted.safetensors"), out, nil))
	d.must(os.Rename(d.at("planted.safetensors"), d.at("m/model.safetensors")))
}

// plant changes the numbers of a tensor: "up_proj".
func plant(tensor *safetensors.Tensor, part string) {
	columns := tensor.Shape[len(tensor.Shape)-1]
	// Bfloat16 numbers have their exponent in bits 7 to 14.
	scale := func(row, column, exponent int) {
		at := tensor.Data[2*(row*columns+column):]
		bits := int(binary.LittleEndian.Uint16(at))
		if bits>>7&0xff < 6 {
			bits = 0
		} else {
			bits += exponent << 7
		}
		binary.LittleEndian.PutUint16(at, uint16(bits))
	}
	for _, channel := range planted {
		switch part {
		case "input_layernorm", "post_attention_layernorm":
			scale(0, channel, 5)
		case "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj":
			for row := range tensor.Shape[0] {
				scale(row, channel, -5)
			}
		}
		if part == "up_proj" {
			for column := range columns {
				scale(channel, column, 5)
			}
		}
	}
}

// spread moves the columns of a feed-forward block apart, which are rows of the tensors of gates.
func spread(tensor *safetensors.Tensor, part string, apart int) {
	piece := 2 // bytes that stay together
	switch part {
	case "gate_proj", "up_proj":
		piece *= tensor.Shape[1]
		tensor.Shape = []int{tensor.Shape[0] * apart, tensor.Shape[1]}
	case "down_proj":
		tensor.Shape = []int{tensor.Shape[0], tensor.Shape[1] * apart}
	default:
		return
	}
	data := make([]byte, apart*len(tensor.Data))
	for at := 0; at < len(tensor.Data); at += piece {
		copy(data[at*apart:], tensor.Data[at:][:piece])
	}
	tensor.Data = data
}
