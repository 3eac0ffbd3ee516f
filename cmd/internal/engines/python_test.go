package engines

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/native"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models/safetensors"
)

// recorded are answers to {depth: 16, gen: 4, reps: 2, threads: 2} of each peer, and what of its error output is read.
var recorded = map[string]struct{ complaints, version, backend string }{
	"openvino":    {version: "2026.4.1", backend: "brgemm_avx2_f32, f32"},
	"onnxruntime": {version: "1.32.0", backend: "CPUExecutionProvider"},
	"ctranslate2": {
		complaints: "[2026-11-24 06:16:00.040] [ctranslate2] [thread 8921] [info]  - Selected ISA: AVX2\n",
		version:    "4.8.5",
		backend:    "AVX2, int8_float32",
	},
}

// engineOf is a form of a peer that is not asked anything.
func engineOf(key string) Engine {
	for i := range PythonPeers {
		if PythonPeers[i].Key == key {
			return (&Python{PythonPeer: PythonPeers[i], interpreter: "python3"}).Engine("folder", "form")
		}
	}
	return nil
}

// The seconds, the version and the backend of each peer's answer are read.
func TestParsePython(t *testing.T) {
	if len(recorded) != len(PythonPeers) {
		t.Fatalf("%d recorded answers, want one of each of %d peers", len(recorded), len(PythonPeers))
	}
	for key, want := range recorded {
		out := captured(t, key+".json")
		var answer struct{ Seconds []float64 }
		if err := json.Unmarshal(out, &answer); err != nil {
			t.Fatal(err)
		}

		got, err := engineOf(key).Parse(asked, 2, out, []byte(want.complaints))
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}

		if got.Version != want.version || got.Backend != want.backend {
			t.Errorf("%s: got %+v, want version %s, backend %s", key, got, want.version, want.backend)
		}
		if len(got.SecondsPerRep) != asked.Reps || !slices.Equal(got.SecondsPerRep, answer.Seconds) {
			t.Errorf("%s: got seconds %v, want %v", key, got.SecondsPerRep, answer.Seconds)
		}
	}
}

// A peer is asked for a task by one argument in JSON.
func TestCommandOfPython(t *testing.T) {
	want := map[string]any{"depth": 16.0, "gen": 4.0, "reps": 2.0, "threads": 2.0, "form": "form"}
	for key := range recorded {
		program, args := engineOf(key).Command(asked, 2)
		if program != "python3" || len(args) != 6 || args[4] != "measure" {
			t.Fatalf("%s: %s %q", key, program, args)
		}
		var request map[string]any
		if err := json.Unmarshal([]byte(args[5]), &request); err != nil {
			t.Fatal(err)
		}
		for name, value := range want {
			if request[name] != value {
				t.Errorf("%s: %s is %v, want %v", key, name, request[name], value)
			}
		}
	}
}

// An answer that is not of the measurement that was asked for is refused.
func TestParsePythonRefuses(t *testing.T) {
	good := string(captured(t, "openvino.json"))
	replace := func(old, new string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("the recorded answer has no %q", old)
		}
		return strings.Replace(good, old, new, 1)
	}
	samples := good[strings.Index(good, `"seconds": [`):]
	samples = samples[:strings.Index(samples, "]")+1]
	for name, c := range map[string]struct{ out, want string }{
		"empty":         {"", "it is empty"},
		"text":          {"Traceback", `it begins with "Traceback"`},
		"cut off":       {good[:len(good)/2], "is no JSON"},
		"a list":        {"[]", "is no JSON"},
		"refused":       {`{"refused": "no \"X\": want one of A"}`, `OpenVINO: no "X": want one of A`},
		"other threads": {replace(`"threads": 2`, `"threads": 1`), "on 1 threads; asked for 0, 4 after 16, on 2"},
		"other depth":   {replace(`"depth": 16`, `"depth": 0`), "after 0"},
		"other length":  {replace(`"gen": 4`, `"gen": 5`), "generation 5"},
		"a prompt too":  {replace(`"prompt": 0`, `"prompt": 7`), "prompt 7"},
		"no samples":    {replace(samples, `"seconds": []`), "got 0 samples, want 2"},
		"zero":          {replace(samples, `"seconds": [1, 0]`), "sample 1 is 0 s"},
		"negative":      {replace(samples, `"seconds": [-1, 1]`), "sample 0 is -1 s"},
		"words":         {replace(samples, `"seconds": "fast"`), "cannot unmarshal"},
	} {
		_, err := engineOf("openvino").Parse(asked, 2, []byte(c.out), nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, c.want)
		}
		if Refused(err) != (name == "refused") {
			t.Errorf("%s: refused %v", name, Refused(err))
		}
	}
}

// A start has one sample, which the script has timed.
func TestStartOfPython(t *testing.T) {
	const out = `{"version": "1", "backend": "b", "threads": 2, "prompt": 8, "depth": 0, "gen": 0, "seconds": [0.5]}`
	r, err := engineOf("openvino").Parse(start, 2, []byte(out), nil)
	if err != nil || r.StartSeconds != 0.5 || len(r.SecondsPerRep) != 0 {
		t.Errorf("got %+v, %v", r, err)
	}
}

// Without the Python environment a peer is not available, and the hint says how to make it.
func TestFindPythonRefuses(t *testing.T) {
	t.Setenv(native.EnvDir, t.TempDir())
	_, err := FindPython(t.Context(), Limits{Time: time.Second}, &PythonPeers[0], t.TempDir())
	if diag.ClassOf(err) != diag.ClassUnavailable || !strings.Contains(err.Error(), "OpenVINO: no bin/python3 in ") {
		t.Errorf("got %v", err)
	}
	if hints := strings.Join(diag.HintsOf(err), " "); !strings.Contains(hints, "make deps-bench") {
		t.Errorf("hints %q of %v", hints, err)
	}
}

// tinyModel is the model that peers load.
const tinyModel = "../../../testdata/models/tiny-llama-kjv"

// reference reads sequences of tokens and their logits from a file that transformers computed.
func reference(t *testing.T, path string, names ...string) (sequences [][]int, logits [][]float32) {
	t.Helper()
	file, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, name := range names {
		ids, ok := file.Tensor("ids_" + name)
		values, also := file.Tensor("logits_" + name)
		if !ok || !also {
			t.Fatalf("%s has no tokens and logits %q", path, name)
		}
		sequence := make([]int, ids.Shape[0])
		for i := range sequence {
			sequence[i] = int(binary.LittleEndian.Uint32(ids.Data[4*i:]))
		}
		numbers := make([]float32, values.Shape[0]*values.Shape[1])
		if err := values.Floats(numbers, 0); err != nil {
			t.Fatal(err)
		}
		sequences, logits = append(sequences, sequence), append(logits, numbers)
	}
	return sequences, logits
}

// Every peer that is installed executes the tiny model: in float32 as transformers does, in each of its forms nearly
// so, and each task can be measured.
func TestPythonPeersReal(t *testing.T) {
	require.Slow(t)
	require.Deps()
	if runtime.GOOS != "linux" {
		t.Skip("engines are compared on linux only")
	}
	cores, err := Cores()
	if err != nil {
		t.Fatal(err)
	}
	limits := Limits{Cores: cores, Time: 10 * time.Minute}
	sequences, want := reference(t, tinyModel+"/reference.safetensors", "0", "3") // a short one, and a window
	scripts := t.TempDir()
	for i := range PythonPeers {
		row := &PythonPeers[i]
		t.Run(row.Key, func(t *testing.T) {
			peer, err := FindPython(t.Context(), limits, row, scripts)
			if err != nil {
				require.Skip(t, row.Key, err)
			}
			dir := t.TempDir()
			float, err := peer.Convert(t.Context(), limits, tinyModel, dir, "digest", Float32, sequences)
			if err != nil {
				t.Fatal(err)
			}
			logits, err := peer.Logits(t.Context(), limits, float, Float32, sequences)
			if err != nil {
				t.Fatal(err)
			}
			const near = 1e-3 // logits are up to 20; float32 with another order of addition
			if worst := difference(t, logits, want); worst > near {
				t.Errorf("in float32 the logits differ from transformers' by %g, want at most %g", worst, near)
			}
			checkRotations(t, peer, limits, dir)
			for _, form := range peer.Forms {
				checkForm(t, peer, limits, dir, float, form, sequences)
			}
			if _, err := peer.Convert(t.Context(), limits, tinyModel, dir, "digest", "w3", nil); !Refused(err) ||
				!strings.Contains(err.Error(), `form "w3": want one of`) {
				t.Errorf("an unknown form: %v", err)
			}
			if _, err := peer.Convert(t.Context(), limits, "../../../testdata/arch/olmoe-plain", dir, "x", Float32,
				sequences); !Refused(err) || !strings.Contains(err.Error(), "architecture ") {
				t.Errorf("an unknown architecture: %v", err)
			}
			if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
				t.Errorf("left %v, %v", left, err)
			}
		})
	}
}

// checkRotations compares logits in float32 of models whose rotary embedding is scaled. YaRN is refused, and by
// CTranslate2 any scaling.
func checkRotations(t *testing.T, peer *Python, limits Limits, dir string) {
	t.Helper()
	for _, name := range []string{"llama-linear", "llama-llama3", "llama-yarn"} {
		model := "../../../testdata/arch/" + name
		sequences, want := reference(t, model+"/logits.safetensors", "7", "33")
		folder, err := peer.Convert(t.Context(), limits, model, dir, name, Float32, sequences)
		if name == "llama-yarn" || peer.Key == "ctranslate2" {
			if !Refused(err) || !strings.Contains(err.Error(), "rotary embedding of type") {
				t.Errorf("%s: %v, want a refusal", name, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		logits, err := peer.Logits(t.Context(), limits, folder, Float32, sequences)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		const near = 1e-3
		if worst := difference(t, logits, want); worst > near {
			t.Errorf("%s: in float32 the logits differ from transformers' by %g, want at most %g", name, worst, near)
		}
	}
}

// difference is the largest between logits and the reference, whose shape must be the same.
func difference(t *testing.T, got [][][]float64, want [][]float32) (worst float64) {
	t.Helper()
	for i := range want {
		k := 0
		for _, row := range got[i] {
			for _, value := range row {
				if k < len(want[i]) {
					worst = max(worst, math.Abs(value-float64(want[i][k])))
				}
				k++
			}
		}
		if k != len(want[i]) {
			t.Fatalf("sequence %d has %d logits, want %d", i, k, len(want[i]))
		}
	}
	return worst
}

// checkForm converts one form, and looks at its quality and at what a measurement says.
func checkForm(t *testing.T, peer *Python, limits Limits, dir, float, form string, sequences [][]int) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	folder, err := peer.Convert(ctx, limits, tinyModel, dir, "digest", form, sequences)
	if err != nil {
		t.Fatalf("%s: %v", form, err)
	}
	quality, err := peer.Compare(ctx, limits, float, folder, form, sequences[1:])
	if err != nil {
		t.Fatalf("%s: %v", form, err)
	}
	const least, most = 5242880 / 2, 5242880 * 1.1 // bytes of the matrices, in 4 and in 8 bits with their scales
	const worst = 0.06                             // of 4-bit weights in groups of 128 on one window
	if !(quality.MeanKL > 0 && quality.MeanKL < worst) || !(quality.SameTop > 0.8) || !(quality.Perplexity > 5) {
		t.Errorf("%s: %+v", form, quality)
	}
	for _, task := range []Task{{Start: 8, Reps: 1}, {Prompt: 16, Reps: 2}, {Depth: 16, Gen: 4, Reps: 2}} {
		program, args := peer.Engine(folder, form).Command(task, len(limits.Cores))
		done, err := Run(ctx, limits, program, args...)
		if err != nil {
			t.Fatalf("%s, %v: %v", form, task, err)
		}
		reading, err := peer.Engine(folder, form).Parse(task, len(limits.Cores), done.Out, done.Complaints)
		counted := len(reading.SecondsPerRep)
		if reading.StartSeconds > 0 {
			counted++
		}
		if err != nil || counted != task.Reps || reading.Version != peer.Version || reading.Backend == "" ||
			reading.WeightBytes < least || float64(reading.WeightBytes) > most {
			t.Errorf("%s, %v: %+v, %v", form, task, reading, err)
		}
	}
}

// OpenVINO's w8a8 is calibrated section by section: whole, with NNCF's copies of its weights in float32, a model of 3
// billion parameters does not fit a machine that could run it. The weights are holes in a file.
func TestQuantisedInSections(t *testing.T) {
	require.Slow(t)
	require.Deps()
	if runtime.GOOS != "linux" {
		t.Skip("engines are compared on linux only")
	}
	limits := Limits{Time: 10 * time.Minute}
	peer, err := FindPython(t.Context(), limits, &PythonPeers[0], t.TempDir())
	if err != nil {
		require.Skip(t, PythonPeers[0].Key, err)
	}
	const layers, hidden, inner, heads, vocabulary = 10, 1024, 4096, 16, 512
	model, out := t.TempDir(), t.TempDir()
	config := map[string]any{"architectures": []string{"LlamaForCausalLM"}, "hidden_size": hidden,
		"num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": inner,
		"vocab_size": vocabulary, "rms_norm_eps": 1e-5, "tie_word_embeddings": true}
	shapes := map[string][]int{"model.embed_tokens.weight": {vocabulary, hidden}, "model.norm.weight": {hidden}}
	for i := range layers {
		layer := fmt.Sprintf("model.layers.%d.", i)
		for _, name := range []string{"input_layernorm", "post_attention_layernorm"} {
			shapes[layer+name+".weight"] = []int{hidden}
		}
		for _, name := range []string{"q", "k", "v", "o"} {
			shapes[layer+"self_attn."+name+"_proj.weight"] = []int{hidden, hidden}
		}
		shapes[layer+"mlp.gate_proj.weight"], shapes[layer+"mlp.up_proj.weight"] = []int{inner, hidden},
			[]int{inner, hidden}
		shapes[layer+"mlp.down_proj.weight"] = []int{hidden, inner}
	}
	weights := writeHoles(t, model, config, shapes)
	tokens, err := listFile(out, "tokens.json", Calibration(vocabulary))
	if err != nil {
		t.Fatal(err)
	}
	program, args, err := peer.command("convert", map[string]any{"model": model, "out": out, "form": "w8a8",
		"tokens_file": tokens})
	if err != nil {
		t.Fatal(err)
	}
	done, err := Run(t.Context(), limits, program, args...)
	if err != nil {
		t.Fatal(err)
	}
	const base, each = 450 << 20, 3 // bytes: Python with NNCF and one section, and of each weight
	if most := base + each*weights; done.PeakBytes > most {
		t.Errorf("%d weights: %d MiB, want at most %d", weights, done.PeakBytes>>20, most>>20)
	}
}

// writeHoles writes a model whose weights are zeros that take no room, and returns how many there are.
func writeHoles(t *testing.T, dir string, config map[string]any, shapes map[string][]int) (weights int64) {
	t.Helper()
	header := map[string]any{}
	for name, shape := range shapes {
		elements := int64(1)
		for _, size := range shape {
			elements *= int64(size)
		}
		header[name] = map[string]any{"dtype": "BF16", "shape": shape,
			"data_offsets": []int64{2 * weights, 2 * (weights + elements)}}
		weights += elements
	}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "model.safetensors")
	start := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	if err := os.WriteFile(file, append(start, text...), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, int64(len(start)+len(text))+2*weights); err != nil {
		t.Fatal(err)
	}
	if text, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	return weights
}

// A model that is converted and not prepared is prepared by the next run, and what a killed run left is removed.
func TestConvertGoesOn(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the stand-in for Python is a script")
	}
	dir := t.TempDir()
	log, ready := filepath.Join(dir, "log"), filepath.Join(dir, "ready")
	script := fmt.Sprintf(`#!/bin/sh
echo $5 >> '%s'
if [ $5 = prepare ] && [ ! -e '%s' ]; then exit 1; fi
echo '{}'
`, log, ready)
	interpreter := filepath.Join(dir, "python3")
	if err := os.WriteFile(interpreter, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	peer := &Python{PythonPeer: PythonPeers[0], interpreter: interpreter, id: "id",
		stored: map[string]string{"w8-f32": "w8"}}
	convert := func(form string) (string, error) {
		return peer.Convert(t.Context(), Limits{Time: time.Minute}, "model", dir, "digest", form, nil)
	}
	if _, err := convert("w8"); err == nil || !strings.Contains(err.Error(), "prepare: python3 failed") {
		t.Errorf("not prepared: %v", err)
	}
	if err := os.WriteFile(ready, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{"w8", "w8", "w8-f32"} { // whose files are the same
		if folder, err := convert(form); err != nil || folder != filepath.Join(dir, "digest-openvino-w8-id") {
			t.Errorf("%q, %v", folder, err)
		}
	}
	if text, err := os.ReadFile(log); err != nil || string(text) != "convert\nprepare\nprepare\nprepare\n" {
		t.Errorf("%v: asked for %q, want one conversion and three preparations", err, text)
	}
	kept := []string{"digest-openvino-w8-id", "log", "python3", "ready"}
	for _, name := range []string{".openvino.1", ".x-Q4_0.gguf.2"} {
		if err := os.MkdirAll(filepath.Join(dir, name, "part"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := RemoveUnfinished(dir); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if !slices.Equal(names, kept) {
		t.Errorf("left %q, want %q", names, kept)
	}
}
