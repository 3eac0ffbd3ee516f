package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/planir/bundle"
)

// broken is a command line that must be refused.
type broken struct {
	name string
	// args are words of the command line; $A is the directory of whole artifacts, $M the demo model.
	args string
	// make prepares the directory the command runs in.
	make func(d *dir)
	env  string // one NAME=VALUE
	// limit is a shell's command before the program is executed: ulimit -f 1
	limit string

	code int    // exit code
	want string // regular expression in the errors
	hint string // regular expression in the hints
}

// dir is the directory of one case, which fails the test when it cannot be prepared.
type dir struct {
	*testing.T
	path, artifacts, model string
}

func (d *dir) at(name string) string { return filepath.Join(d.path, name) }

func (d *dir) must(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

func (d *dir) write(name, text string) {
	d.Helper()
	d.must(os.MkdirAll(filepath.Dir(d.at(name)), 0o755))
	d.must(os.WriteFile(d.at(name), []byte(text), 0o644))
	d.must(os.Chmod(d.at(name), 0o644)) // whatever the umask is: others may read it
}

func (d *dir) read(path string) string {
	d.Helper()
	b, err := os.ReadFile(path)
	d.must(err)
	return string(b)
}

// edited copies an artifact with every old replaced.
func (d *dir) edited(artifact, old, new string) {
	d.Helper()
	text := d.read(filepath.Join(d.artifacts, artifact))
	if !strings.Contains(text, old) {
		d.Fatalf("%s does not contain %q", artifact, old)
	}
	d.write(artifact, strings.ReplaceAll(text, old, new))
}

// modelWith makes directory m: the demo model with one file replaced, or without it when text is nil.
func (d *dir) modelWith(file string, text []byte) {
	d.Helper()
	d.must(os.MkdirAll(d.at("m"), 0o755))
	for _, name := range []string{"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} {
		if name != file {
			d.must(os.Symlink(filepath.Join(d.model, name), d.at("m/"+name)))
		}
	}
	if text != nil {
		d.must(os.WriteFile(d.at("m/"+file), text, 0o644))
	}
}

// config makes model m with an edited config.json.
func (d *dir) config(old, new string) {
	d.Helper()
	text := d.read(filepath.Join(d.model, "config.json"))
	if !strings.Contains(text, old) {
		d.Fatalf("config.json does not contain %q", old)
	}
	d.modelWith("config.json", []byte(strings.Replace(text, old, new, 1)))
}

// tensors makes model m with an edited safetensors header, and edited data.
func (d *dir) tensors(header func(map[string]any), data func(header map[string]any, b []byte)) {
	d.Helper()
	file := []byte(d.read(filepath.Join(d.model, "model.safetensors")))
	n := binary.LittleEndian.Uint64(file)
	h := map[string]any{}
	d.must(json.Unmarshal(file[8:8+n], &h))
	body := file[8+n:]
	if data != nil {
		data(h, body)
	}
	if header != nil {
		header(h)
	}
	text, err := json.Marshal(h)
	d.must(err)
	d.modelWith("model.safetensors", slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text, body))
}

// index makes model m of one shard, named as the weights of the index say.
func (d *dir) index(shard string) {
	d.Helper()
	d.modelWith("model.safetensors", nil)
	d.write("m/model.safetensors.index.json", fmt.Sprintf(`{"weight_map": {"model.embed_tokens.weight": %q}}`, shard))
}

// bits overwrites the first value of a tensor of 2 bytes an element.
func bits(tensor string, value uint16) func(map[string]any, []byte) {
	return func(h map[string]any, b []byte) {
		from := h[tensor].(map[string]any)["data_offsets"].([]any)[0].(float64)
		binary.LittleEndian.PutUint16(b[int(from):], value)
	}
}

// Command lines that several cases share.
const (
	show    = "hetc models show m"
	emitM   = "hetc emit --plan $A/plan.yaml --model m --key $A/k.key -o x.hetb"
	emitIt  = "hetc emit --plan plan.yaml --model $M --key $A/k.key -o x.hetb"
	fitIt   = "hetc fit --soc snapdragon-8gen3 --record rec.jsonl -o x.yaml"
	solveIt = "hetc solve --soc snapdragon-8gen3 --costs costs.yaml --model $M -o x.yaml"
	solveA  = "hetc solve --soc snapdragon-8gen3 --costs $A/costs.yaml --model $M -o "
	planFor = "hetc profile --soc snapdragon-8gen3 --model $M --workload w.yaml --dry-run"
	runIt   = "hetc run x.hetb --trust $A/k.pub --tokens 1"
	runA    = "hetc run $A/app.hetb --trust $A/k.pub "
	header  = "schema: hetc.workload/1\n"
)

var brokenInputs = []broken{
	// Command lines
	{name: "unknown command", args: "hetc solv", code: 2, want: `unknown command "solv"`, hint: `did you mean "solve"`},
	{name: "unknown subcommand", args: "hetc models lst", code: 2, want: `hetc models: unknown command "lst"`, hint: `did you mean "list"`},
	{name: "unknown help topic", args: "hetc help models shw", code: 2, want: `unknown command "shw"`, hint: `did you mean "show"`},
	{name: "unknown flag", args: "hetc solve --sock x", code: 2, want: `unknown flag: --sock`, hint: `did you mean --soc\?`},
	{name: "flag of another command", args: "hetc emit --trust x", code: 2, want: `unknown flag: --trust`, hint: `--trust is a flag of hetc quality, hetc run, hetc verify`},
	{name: "flag of an unknown command", args: "hetc docter --model x", code: 2, want: `unknown command "docter"`, hint: `did you mean "doctor"`},
	{name: "one dash", args: "hetc solve -output x.yaml", code: 2, want: `unexpected argument "x.yaml"`, hint: `two dashes: --output`},
	{name: "flag without its value", args: "hetc solve --soc --model $M -o x.yaml", code: 2, want: `--soc has no value`, hint: `usage: hetc solve`},
	{name: "number that is none", args: "hetc profile --held-out many", code: 2, want: `--held-out "many": want a whole number`, hint: `held-out`},
	{name: "stray argument", args: "hetc verify a.hetb b.hetb --trust k.pub", code: 2, want: `got 2 arguments, want 1`, hint: `usage: hetc verify`},
	{name: "flags that exclude each other", args: runA + "--tokens 1 --bench", code: 2, want: `--bench makes its own prompt`, hint: `--prompt-len`},
	{name: "journal of nothing", args: "hetc quality --bundle $A/app.hetb --trust $A/k.pub --model $M --text $M/valid.txt --journal j", code: 2, want: `--journal needs --attention`, hint: `leave it out`},
	{name: "text that is compressed", make: func(d *dir) { d.write("t.gz", "\x1f\x8b\x08\x00"+strings.Repeat("text ", 1000)) }, args: "hetc calibrate --model $M --text t.gz -o x.yaml", code: 3, want: `text "t.gz": byte 0x8b at offset 1 is no UTF-8`, hint: `iconv`},
	{name: "limit that is not compared", args: "hetc quality --model $M --text $M/valid.txt --drop 0.5 --max-kl 0.1", code: 2, want: `--max-kl needs --bundle or --plan`, hint: `leave it out`},
	{name: "flag that would change nothing", args: runA + "--tokens 1 --rounds 3", code: 2, want: `--rounds needs --bench`, hint: `add --bench`},
	{name: "key without a name", args: "hetc keygen --out keys/", code: 2, want: `--out "keys/" names no file`, hint: `--out keys/release`},
	{name: "unknown type of key", args: "hetc keygen --out k --type rsa", code: 2, want: `unknown algorithm "rsa"`, hint: `ed25519`},
	{name: "unknown element type", args: "hetc models export $M -o x.gguf --type f61", code: 2, want: `got "f61"`, hint: `did you mean "f16"`},
	{name: "unknown kernels", args: "hetc probe -o x.yaml", env: "HETC_HOST_KERNELS=avx9", code: 2, want: `"avx9" from HETC_HOST_KERNELS is not available`, hint: `portable`},
	{name: "unknown operator", args: "hetc explain $A/plan.yaml ffn_dwn@64", code: 2, want: `no such operator`, hint: `ffn_down`},
	{name: "unknown model", args: "hetc models show tinylama-1.1b", code: 3, want: `no such directory and no such catalog entry`, hint: `did you mean "tinyllama-1.1b"`},
	{name: "unknown SoC", args: "hetc socs show snapdragon-8gen", code: 3, want: `neither a file nor a catalog name`, hint: `snapdragon-8gen3`},
	{name: "absurd numbers", args: runA + "--bench --prompt-len 1099511627776", code: 2, want: `exceed the plan's context`, hint: `measure fewer tokens`},

	// Weights
	{name: "truncated weights", make: func(d *dir) {
		file := d.read(filepath.Join(d.model, "model.safetensors"))
		d.modelWith("model.safetensors", []byte(file[:len(file)/2]))
	}, args: emitM, code: 3, want: `model.safetensors: open safetensors: truncated: got 5249232 bytes, want 10498464`, hint: `fetch the file again`},
	{name: "weights of no bytes", make: func(d *dir) { d.modelWith("model.safetensors", []byte{}) }, args: emitM, code: 3, want: `got 0 bytes`, hint: `fetch the file again`},
	{name: "header longer than any", make: func(d *dir) {
		d.modelWith("model.safetensors", binary.LittleEndian.AppendUint64(nil, 1<<62))
	}, args: show, code: 3, want: `header length 4611686018427387904 bytes, want at most`, hint: `fetch the file again`},
	{name: "overlapping tensors", make: func(d *dir) {
		d.tensors(func(h map[string]any) {
			a, b := h["model.embed_tokens.weight"].(map[string]any), h["model.layers.0.mlp.up_proj.weight"].(map[string]any)
			b["data_offsets"], b["shape"] = a["data_offsets"], a["shape"]
		}, nil)
	}, args: show, code: 3, want: `inside another one`, hint: `fetch the file again`},
	{name: "impossible shape", make: func(d *dir) {
		d.tensors(func(h map[string]any) { h["model.norm.weight"].(map[string]any)["shape"] = []int64{1 << 40, 1 << 40} }, nil)
	}, args: show, code: 3, want: `tensor "model.norm.weight": shape .* is impossible`, hint: `fetch the file again`},
	{name: "missing tensor", make: func(d *dir) {
		d.tensors(func(h map[string]any) { h["other"] = h["model.norm.weight"]; delete(h, "model.norm.weight") }, nil)
	}, args: show, code: 3, want: `tensors its graph needs are missing: "model.norm.weight"`, hint: `a shard may be missing`},
	{name: "sparse file of 4 TiB", make: func(d *dir) {
		d.modelWith("model.safetensors", []byte{})
		if err := os.Truncate(d.at("m/model.safetensors"), 1<<42); err != nil {
			d.Skipf("this file system has no sparse files: %v", err)
		}
	}, args: show, code: 3, want: `header does not begin with {`, hint: `fetch the file again`},
	{name: "NaN weight", make: nanPlan(bits("model.layers.2.mlp.up_proj.weight", 0x7fc0)), args: "hetc emit --plan plan.yaml --model m --key $A/k.key -o x.hetb",
		code: 3, want: `model.layers.2.mlp.up_proj.weight.*value NaN at row 0`, hint: `diverged model`},
	{name: "infinite weight", make: nanPlan(bits("model.layers.0.self_attn.k_proj.weight", 0x7f80)), args: "hetc emit --plan plan.yaml --model m --key $A/k.key -o x.hetb",
		code: 3, want: `model.layers.0.self_attn.k_proj.weight.*value \+Inf`, hint: `diverged model`},
	{name: "doctor finds NaN", make: func(d *dir) { d.tensors(nil, bits("model.layers.5.mlp.down_proj.weight", 0x7fc0)) }, args: "hetc doctor --model m", code: 3,
		want: `1 of 5 checks found a problem: weights`, hint: `beside each`},

	// Shards and names
	{name: "shard in another directory", make: func(d *dir) { d.index("../secret.safetensors") }, args: show, code: 3, want: `got "../secret.safetensors", want the plain name`, hint: `correct what`},
	{name: "shard by absolute path", make: func(d *dir) { d.index("/etc/passwd") }, args: show, code: 3, want: `got "/etc/passwd", want the plain name`, hint: `correct what`},
	{name: "shard that is a device", make: func(d *dir) {
		d.index("s.safetensors")
		d.must(os.Symlink("/dev/zero", d.at("m/s.safetensors")))
	}, args: show, code: 3, want: `s.safetensors": it is a device, want a file`, hint: `into a file first`},
	{name: "shard that is missing", make: func(d *dir) { d.index("s.safetensors") }, args: show, code: 3, want: `s.safetensors": file does not exist`, hint: `check the path`},
	{name: "shard that links to itself", make: func(d *dir) {
		d.index("s.safetensors")
		d.must(os.Symlink("s.safetensors", d.at("m/s.safetensors")))
	}, args: show, code: 3, want: `a link to "s.safetensors", which leads nowhere`, hint: `fetch the file again`},

	// config.json
	{name: "no layers", make: func(d *dir) { d.config(`"num_hidden_layers": 6`, `"num_hidden_layers": 0`) }, args: show, code: 3, want: `key "num_hidden_layers": got 0, want an integer in 1..4096`, hint: `correct what`},
	{name: "negative layers", make: func(d *dir) { d.config(`"num_hidden_layers": 6`, `"num_hidden_layers": -6`) }, args: show, code: 3, want: `key "num_hidden_layers": got -6`, hint: `correct what`},
	{name: "1e9 layers", make: func(d *dir) { d.config(`"num_hidden_layers": 6`, `"num_hidden_layers": 1000000000`) }, args: show, code: 3, want: `got 1000000000, want an integer in 1..4096`, hint: `correct what`},
	{name: "4000 layers", make: func(d *dir) { d.config(`"num_hidden_layers": 6`, `"num_hidden_layers": 4000`) }, args: show, code: 3, want: `35946 of the tensors its graph needs are missing`, hint: `a shard may be missing`},
	{name: "huge vocabulary", make: func(d *dir) { d.config(`"vocab_size": 2048`, `"vocab_size": 4611686018427387904`) }, args: show, code: 3, want: `key "vocab_size": got 4611686018427387904`, hint: `correct what`},
	{name: "another architecture", make: func(d *dir) { d.config(`LlamaForCausalLM`, `MambaForCausalLM`) }, args: show, code: 3, want: `MambaForCausalLM.* is not supported`, hint: `LlamaForCausalLM`},
	{name: "deep nesting", make: func(d *dir) { d.modelWith("config.json", bytes.Repeat([]byte(`{"a":`), 1<<20)) }, args: show, code: 3, want: `exceeded max depth`, hint: `correct what`},
	{name: "duplicate key", make: func(d *dir) { d.config(`"hidden_size": 256`, `"hidden_size": 256, "hidden_size": 512`) }, args: show, code: 3, want: `key "hidden_size" appears twice`, hint: `remove one of them`},
	{name: "UTF-16", make: func(d *dir) { d.modelWith("config.json", []byte("\xff\xfe{\x00}\x00")) }, args: show, code: 3, want: `config.json:1: decode.syntax: not valid UTF-8`, hint: `correct what`},
	{name: "NUL bytes", make: func(d *dir) { d.config(`"hidden_size"`, "\"hidden\x00size\"") }, args: show, code: 3, want: `invalid character '\\x00'`, hint: `correct what`},
	{name: "number beyond any", make: func(d *dir) { d.config(`"rms_norm_eps": 1e-05`, `"rms_norm_eps": 1e999`) }, args: show, code: 3, want: `number 1e999 is not finite`, hint: `correct what`},
	{name: "config without end", make: func(d *dir) {
		d.modelWith("config.json", nil)
		d.must(os.Symlink("/dev/zero", d.at("m/config.json")))
	}, args: show, code: 3, want: `config.json": it is a device`, hint: `into a file first`},
	{name: "no config", make: func(d *dir) { d.write("m/x.txt", "") }, args: show, code: 3, want: `open model "m": no config.json in the directory`, hint: `give the directory`},
	{name: "weights of another kind", make: func(d *dir) { d.modelWith("model.safetensors", nil); d.write("m/pytorch_model.bin", "") }, args: show, code: 3, want: `found neither model.safetensors nor`, hint: `safetensors`},

	// Tokenizers
	{name: "broken tokenizer", make: func(d *dir) { d.modelWith("tokenizer.json", []byte(`{"model": {"type": "BPE"`)) }, args: emitM, code: 3, want: `tokenizer`, hint: `--tokens|tokenizer`},
	{name: "tokenizer that leads nowhere", make: func(d *dir) {
		d.modelWith("tokenizer.json", nil)
		d.must(os.Symlink("../blobs/gone", d.at("m/tokenizer.json")))
	}, args: emitM, code: 3, want: `tokenizer.json": a link to "../blobs/gone", which leads nowhere`, hint: `fetch the file again`},

	// SoC files
	{name: "unknown key of a SoC", make: func(d *dir) { d.write("s.yaml", "schema: hetc.soc/1\nname: x\nprocesors: []\n") }, args: "hetc socs show s.yaml", code: 3, want: `s.yaml:3: decode.unknown-key: unknown key "procesors"`, hint: `did you mean "processors"`},
	{name: "no processors", make: func(d *dir) { d.write("s.yaml", "schema: hetc.soc/1\nname: x\nprocessors: []\n") }, args: "hetc socs show s.yaml", code: 3, want: `0 processors, want 1..64`, hint: `correct what`},
	{name: "SoC that inherits itself", make: func(d *dir) { d.write("s.yaml", "schema: hetc.soc/1\nname: x\ninherit: s.yaml\n") }, args: "hetc socs show s.yaml", code: 3, want: `inherits from itself: s.yaml > s.yaml`, hint: `correct what`},
	{name: "a plan as SoC", args: "hetc socs show $A/plan.yaml", code: 3, want: `schema is "hetc.plan/2", want "hetc.soc/1"`, hint: `this is a plan file, not a soc file`},
	{name: "SoC of another machine", make: func(d *dir) { d.write("s.yaml", boardSoC("host")) }, args: "hetc profile --soc s.yaml --model $M -o x.jsonl", code: 3, want: `it was probed on another machine`, hint: `hetc probe`},
	{name: "bomb of aliases", make: func(d *dir) {
		text := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
		for c := 'b'; c <= 'i'; c++ {
			text += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", c-1), 10), ","))
		}
		d.write("s.yaml", text)
	}, args: "hetc socs show s.yaml", code: 3, want: `more than 1048576 values`, hint: `correct what`},
	{name: "misspelt file", make: func(d *dir) { d.write("machine.yaml", "") }, args: "hetc solve --soc machine.yml --costs $A/costs.yaml --model $M -o x.yaml", code: 3, want: `machine.yml`, hint: `.`},

	// Workloads
	{name: "negative share", make: func(d *dir) { d.write("w.yaml", header+"prompts: [{tokens: 5, share: -1}]\n") }, args: planFor, code: 3, want: `prompts\[0\].share: workload.value: share is -1`, hint: `correct what`},
	{name: "percentage", make: func(d *dir) { d.write("w.yaml", header+"prompts: [{tokens: 5, share: 150%}]\n") }, args: planFor, code: 3, want: `w.yaml:2: decode.type: prompts\[0\].share is a text "150%", want a finite number`, hint: `correct what`},
	{name: "no shares", make: func(d *dir) { d.write("w.yaml", header+"prompts: [{tokens: 5, share: 0}]\n") }, args: planFor, code: 3, want: `no length has a share above 0`, hint: `correct what`},
	{name: "empty workload", make: func(d *dir) { d.write("w.yaml", "") }, args: planFor, code: 3, want: `w.yaml:1: decode.syntax: document is empty`, hint: `correct what`},
	{name: "unknown phase", make: func(d *dir) { d.write("w.yaml", header+"schemes: {prefil: [a8t/q8c]}\n") }, args: planFor, code: 3, want: `unknown key "prefil" in schemes`, hint: `did you mean "prefill"`},
	{name: "context beyond the model's", make: func(d *dir) { d.write("w.yaml", header+"context: 4000000\n") }, args: planFor, code: 3, want: `context is 4000000 positions, and the model has 1024`, hint: `at most 1024`},
	{name: "workload that is a directory", make: func(d *dir) { d.must(os.Mkdir(d.at("w.yaml"), 0o755)) }, args: planFor, code: 3, want: `w.yaml": it is a directory, want a file`, hint: `name of a file`},

	// Records and costs
	{name: "garbage in a record", make: func(d *dir) {
		d.edited("rec.jsonl", "\n{\"kind\":\"op\",\"proc\":\"npu\"", "\ngarbage{\"kind\":\"op\",\"proc\":\"npu\"")
	}, args: fitIt, code: 3, want: `rec.jsonl:\d+: record.syntax: line is not a JSON object`, hint: `correct what`},
	{name: "NaN in a record", make: func(d *dir) { d.edited("rec.jsonl", `"samples":[`, `"samples":[NaN,`) }, args: fitIt, code: 3, want: `rec.jsonl:2: .*invalid character 'N'`, hint: `correct what`},
	{name: "negative time", make: func(d *dir) { d.edited("rec.jsonl", `"samples":[`, `"samples":[-1,`) }, args: fitIt, code: 3, want: `sample 0 is -1 ns, want a positive finite time`, hint: `correct what`},
	{name: "record of the future", make: func(d *dir) { d.edited("rec.jsonl", `hetc.record/1`, `hetc.record/2`) }, args: fitIt, code: 3, want: `schema is "hetc.record/2"`, hint: `update hetc`},
	{name: "record cut in its header", make: func(d *dir) { d.write("rec.jsonl", d.read(d.artifacts + "/rec.jsonl")[:40]) }, args: fitIt, code: 3, want: `record has no header line`, hint: `run it again`},
	{name: "record of another SoC", args: "hetc fit --soc apple-m2-ultra --record $A/rec.jsonl -o x.yaml", code: 3, want: `the record is about SoC "snapdragon-8gen3"`, hint: `the record was made with`},
	{name: "costs for a record", args: "hetc solve --soc snapdragon-8gen3 --record $A/costs.yaml --model $M -o x.yaml", code: 3, want: `record.syntax: line is not a JSON object`, hint: `this is a costs file, not a record`},
	{name: "a record for costs", args: "hetc solve --soc snapdragon-8gen3 --costs $A/rec.jsonl --model $M -o x.yaml", code: 3, want: `rec.jsonl:2: decode.syntax: not valid JSON`, hint: `this is a record of hetc profile`},
	{name: "resuming a file that is no record", make: func(d *dir) { d.write("notes.txt", "keep me\n") }, args: "hetc profile --soc snapdragon-8gen3 --model $M -o notes.txt --resume", code: 3, want: `notes.txt:1: record.syntax`, hint: `.`},
	{name: "edited costs", make: func(d *dir) { d.edited("costs.yaml", "sharpness: ", "sharpness: -") }, args: solveIt, code: 3, want: `costs.value: .*sharpness -\d+, want`, hint: `hetc fit`},
	{name: "costs that deny the simulation", make: func(d *dir) { d.edited("costs.yaml", "simulated: true\n", "simulated: false\n") }, args: solveIt, code: 3, want: `costs say simulated: false`, hint: `fit the costs again`},
	{name: "costs cut off", make: func(d *dir) {
		text := d.read(d.artifacts + "/costs.yaml")
		d.write("costs.yaml", text[:strings.LastIndex(text[:len(text)/2], "[")+1])
	}, args: solveIt, code: 3, want: `costs.yaml`, hint: `.`},
	{name: "costs cut off between two entries", make: func(d *dir) {
		text := d.read(d.artifacts + "/costs.yaml")
		d.write("costs.yaml", text[:strings.LastIndex(text[:len(text)/2], "\n  - ")+1])
	}, args: solveIt, code: 3, want: `costs lack their last line, "end: true"`, hint: `hetc fit`},

	// Limits
	{name: "quality without a calibration", make: func(d *dir) { d.write("w.yaml", header+"buckets: [64]\ncontext: 64\nquality: {max_kl: 0.1}\n") }, args: solveA + "x.yaml --workload w.yaml", code: 3, want: `no calibration says what the schemes cost`, hint: `hetc calibrate .* --calibration`},
	{name: "a negative loss", make: func(d *dir) { d.write("w.yaml", header+"quality: {max_kl: -1}\n") }, args: solveA + "x.yaml --workload w.yaml", code: 3, want: `quality.max_kl.prefill: .*want 0..1e6`, hint: `correct what`},
	{name: "a calibration that is a plan", args: solveA + "x.yaml --calibration $A/plan.yaml", code: 3, want: `schema is "hetc.plan/2"`, hint: `.`},
	{name: "no calibration of that name", args: solveA + "x.yaml --calibration cal.yaml", code: 3, want: `cal.yaml`, hint: `.`},
	{name: "no number of bytes", args: solveA + "x.yaml --max-memory lots", code: 2, want: `--max-memory "lots" is no number of bytes`, hint: `1.5GiB`},
	{name: "no memory at all", args: solveA + "x.yaml --max-memory 0", code: 2, want: `--max-memory "0" is no number of bytes above 0`, hint: `1.5GiB`},
	{name: "too little memory for any plan", args: solveA + "x.yaml --max-memory 1MiB", code: 6, want: `the smallest plan found holds .* at most 1 MiB are permitted: .* of weights`, hint: `permit at least \d+ bytes`},
	{name: "memory of a plan edited", make: func(d *dir) { d.edited("plan.yaml", "  weights_bytes: ", "  weights_bytes: 1") }, args: emitIt, code: 7, want: `memory.weights_bytes: P028`, hint: `rule P028`},

	// Plans
	{name: "edited share", make: func(d *dir) { d.edited("plan.yaml", ", to: ", ", to: 1") }, args: emitIt, code: 7, want: `P0\d\d`, hint: `rule P0`},
	{name: "edited scheme", make: func(d *dir) { d.edited("plan.yaml", "scheme: a32/w32\n", "scheme: a32/w33\n") }, args: emitIt, code: 7, want: `P0\d\d: .*"a32/w33"`, hint: `rule P0`},
	{name: "unknown key of a plan", make: func(d *dir) { d.edited("plan.yaml", "max_context: 64\nkv", "max_contxt: 64\nkv") }, args: emitIt, code: 3, want: `unknown key "max_contxt"`, hint: `did you mean "max_context"`},
	{name: "plan cut off", make: func(d *dir) {
		text := d.read(d.artifacts + "/plan.yaml")
		d.write("plan.yaml", text[:strings.LastIndex(text, "{")+5])
	}, args: emitIt, code: 3, want: `plan.yaml:\d+: decode.syntax`, hint: `correct what`},
	{name: "plan for another model", make: func(d *dir) { d.config(`"rms_norm_eps": 1e-05`, `"rms_norm_eps": 1e-06`) }, args: emitM, code: 7, want: `P020`, hint: `solve again`},

	// Bundles and keys
	{name: "bundle cut off", make: func(d *dir) { text := d.read(d.artifacts + "/app.hetb"); d.write("x.hetb", text[:len(text)-1]) }, args: runIt, code: 5, want: `bundle.layout: file of \d+ bytes, its manifest says`, hint: `fetch it again`},
	{name: "bundle with a flipped bit", make: func(d *dir) {
		text := []byte(d.read(d.artifacts + "/app.hetb"))
		text[len(text)-70000] ^= 1
		d.write("x.hetb", string(text))
	}, args: "hetc verify x.hetb --trust $A/k.pub", code: 5, want: `bundle\.(code|weights)`, hint: `fetch it again`},
	{name: "padding between blobs", make: inPadding(func(at []int64) int64 { return at[0] }), args: runIt, code: 5, want: `bundle.layout: padding byte at offset \d+ is 0x80, want 0`, hint: `fetch it again`},
	{name: "padding at the end", make: inPadding(func(at []int64) int64 { return at[len(at)-1] }), args: runIt, code: 5, want: `bundle.layout: padding byte at offset \d+ is 0x80, want 0`, hint: `fetch it again`},
	{name: "padding of a bundle to verify", make: inPadding(func(at []int64) int64 { return at[len(at)/2] }), args: "hetc verify x.hetb --trust $A/k.pub", code: 5, want: `bundle.layout: padding byte at offset \d+ is 0x80, want 0`, hint: `fetch it again`},
	{name: "bundle of no bytes", make: func(d *dir) { d.write("x.hetb", "") }, args: runIt, code: 5, want: `bundle.header: file of 0 bytes`, hint: `give the \.hetb that hetc emit wrote`},
	{name: "bundle that is a plan", args: "hetc inspect $A/plan.yaml", code: 5, want: `begins with "schema: ", want .*: not a bundle, or one damaged in transfer`, hint: `give the \.hetb that hetc emit wrote`},
	{name: "bundle that is a directory", make: func(d *dir) { d.must(os.Mkdir(d.at("x.hetb"), 0o755)) }, args: runIt, code: 3, want: `a directory that holds no bundle`, hint: `give the .hetb file`},
	{name: "signed by another", args: "hetc run $A/app.hetb --trust $A/other.pub --tokens 1", code: 5, want: `bundle.signature`, hint: `.`},
	{name: "of a simulation", args: "hetrun $A/app.hetb --trust $A/k.pub --tokens 1", code: 5, want: `a simulation of simulated:\S+, which runs on no device`, hint: `hetc run`},
	{name: "driver that is not linked", args: "hetrun $A/app.hetb --trust $A/k.pub --tokens 1 --any-machine", code: 4, want: `driver "sim" is not part of this program`, hint: `.`},
	{name: "kernels that do not exist", make: func(d *dir) {
		soc := strings.Replace(boardSoC("host"), "cpu-0000000000000000", hostFingerprint(), 1)
		d.write("s.yaml", strings.Replace(soc, "driver: host", "driver: host, options: {kernels: abacus}", 1))
	}, args: "hetc profile --soc s.yaml --model $M -o x.jsonl", code: 3, want: `"abacus" is not available`, hint: `portable`},
	{name: "driver that does not exist", make: func(d *dir) { d.write("s.yaml", boardSoC("vulkan")) }, args: "hetc profile --soc s.yaml --model $M -o x.jsonl", code: 4, want: `driver "vulkan" is not available`, hint: `hetc drivers`},
	{name: "secret key as trust", args: "hetc run $A/app.hetb --trust $A/k.key --tokens 1", code: 3, want: `it is a private key, which only signs: want the PEM block "PUBLIC KEY"`, hint: `hetc keygen`},
	{name: "public key that signs", args: "hetc emit --plan $A/plan.yaml --model $M --key $A/k.pub -o x.hetb", code: 3, want: `is a public key`, hint: `.key file`},
	{name: "key that others read", make: func(d *dir) { d.write("k.key", d.read(d.artifacts+"/k.key")) }, args: "hetc emit --plan $A/plan.yaml --model $M --key k.key -o x.hetb", code: 3, want: `has permissions 0644: others may read it`, hint: `chmod 600`},
	{name: "no key", args: "hetc emit --plan $A/plan.yaml --model $M -o x.hetb", code: 2, want: `no signing key`, hint: `hetc keygen --out NAME`},
	{name: "product that no bundle can state", args: "hetc emit --plan $A/plan.yaml --model $M --key $A/k.key --product MyApp -o x.hetb", code: 3, want: `a bundle cannot state this: product: name "MyApp" holds 'M', want only a-z`, hint: `.`},
	{name: "security version that no bundle can state", args: "hetc emit --plan $A/plan.yaml --model $M --key $A/k.key --security-version -1 -o x.hetb", code: 3, want: `a bundle cannot state this: security_version: number -1, want 0 to`, hint: `.`},
	{name: "token outside the vocabulary", args: runA + "--tokens 1,99999", code: 3, want: `token 1 is id 99999, want 0..2047`, hint: `ids are those of the model's tokenizer`},
	{name: "prompt without end", args: runA + "--prompt-file /dev/zero", code: 3, want: `/dev/zero": it is a device`, hint: `into a file first`},

	// Pipes never block
	{name: "config that is a pipe", make: func(d *dir) { d.modelWith("config.json", nil); d.pipe("m/config.json") }, args: show, code: 3, want: `config.json": it is a pipe`, hint: `into a file first`},
	{name: "weights that are a pipe", make: func(d *dir) { d.modelWith("model.safetensors", nil); d.pipe("m/model.safetensors") }, args: show, code: 3, want: `model.safetensors": it is a pipe`, hint: `into a file first`},
	{name: "SoC that is a pipe", make: func(d *dir) { d.pipe("s.yaml") }, args: "hetc socs show s.yaml", code: 3, want: `it is a pipe`, hint: `into a file first`},
	{name: "record that is a pipe", make: func(d *dir) { d.pipe("rec.jsonl") }, args: fitIt, code: 3, want: `it is a pipe`, hint: `into a file first`},
	{name: "key that is a pipe", make: func(d *dir) { d.pipe("k.key") }, args: "hetc emit --plan $A/plan.yaml --model $M --key k.key -o x.hetb", code: 3, want: `it is a pipe`, hint: `into a file first`},
	{name: "trust that is a pipe", make: func(d *dir) { d.pipe("k.pub") }, args: "hetc run $A/app.hetb --trust k.pub --tokens 1", code: 3, want: `it is a pipe`, hint: `into a file first`},
	{name: "bundle that is a pipe", make: func(d *dir) { d.pipe("x.hetb") }, args: runIt, code: 3, want: `no file but a device, a pipe`, hint: `path of a bundle`},
	{name: "prompt that is a pipe", make: func(d *dir) { d.pipe("p") }, args: runA + "--prompt-file p", code: 3, want: `it is a pipe`, hint: `into a file first`},

	// Outputs
	{name: "output is a directory", make: func(d *dir) { d.must(os.Mkdir(d.at("out"), 0o755)) }, args: solveA + "out", code: 9, want: `write "out": it is a directory, want a file`, hint: `name a file`},
	{name: "output is /dev/full", args: solveA + "/dev/full", code: 9, want: `/dev/full": it is a device, want a file`, hint: `name a file`},
	{name: "bundle to /dev/null", args: "hetc emit --plan $A/plan.yaml --model $M --key $A/k.key -o /dev/null", code: 9, want: `/dev/null": it is a device, want a file`, hint: `name a file`},
	{name: "output is a pipe", make: func(d *dir) { d.pipe("out") }, args: solveA + "out", code: 9, want: `it is a pipe, want a file`, hint: `name a file`},
	{name: "output in no directory", args: solveA + "no/such/x.yaml", code: 9, want: `directory "no/such" does not exist`, hint: `mkdir -p`},
	{name: "output below a file", make: func(d *dir) { d.write("f", "") }, args: solveA + "f/x.yaml", code: 9, want: `write "f/x.yaml"`, hint: `.`},
	{name: "output is an input", make: func(d *dir) { d.edited("costs.yaml", "schema", "schema") }, args: "hetc solve --soc snapdragon-8gen3 --costs costs.yaml --model $M -o costs.yaml", code: 2, want: `--output "costs.yaml" would replace what --costs reads`, hint: `another file`},
	{name: "output is the record", make: func(d *dir) { d.edited("rec.jsonl", "schema", "schema") }, args: "hetc fit --soc snapdragon-8gen3 --record rec.jsonl -o ./rec.jsonl", code: 2, want: `would replace what --record reads`, hint: `another file`},
	{name: "output is the model", make: func(d *dir) { d.modelWith("", nil) }, args: "hetc emit --plan $A/plan.yaml --model m --key $A/k.key -o m/model.safetensors", code: 2, want: `would replace what --model reads`, hint: `another file`},
	{name: "output that leads nowhere", make: func(d *dir) { d.must(os.Symlink("gone/x", d.at("out"))) }, args: solveA + "out", code: 9, want: `a link that leads nowhere`, hint: `remove the link`},
	{name: "key in a directory that is not there", args: "hetc keygen --out keys/k", code: 9, want: `write key "keys/k.key": `, hint: `make it: mkdir -p "keys"`},
	{name: "existing key", make: func(d *dir) { d.write("k.key", "mine") }, args: "hetc keygen --out k", code: 3, want: `write key "k.key": it exists`, hint: `never overwritten`},
	{name: "existing model", make: func(d *dir) { d.write("m/x", "") }, args: "hetc models synth tinyllama-1.1b -o m", code: 3, want: `not empty`, hint: `remove it`},

	// GGUF
	{name: "truncated GGUF", make: gguf(func(b []byte) []byte { return b[:len(b)/2] }), args: "hetc models show m.gguf", code: 3, want: `tensor ".*": truncated: its data ends at byte`, hint: `fetch the file again`},
	{name: "GGUF of the future", make: gguf(func(b []byte) []byte { b[4] = 99; return b }), args: "hetc models show m.gguf", code: 3, want: `GGUF version 99 is not supported`, hint: `current converter`},
	{name: "GGUF of 2^60 tensors", make: gguf(func(b []byte) []byte { b[15] = 0x10; return b }), args: "hetc models show m.gguf", code: 3, want: `number of tensors is \d+, want at most`, hint: `fetch the file again`},
	{name: "GGUF that is a pipe", make: func(d *dir) { d.pipe("m.gguf") }, args: "hetc models show m.gguf", code: 3, want: `it is a pipe`, hint: `into a file first`},
	{name: "export over itself", make: gguf(func(b []byte) []byte { return b }), args: "hetc models export m.gguf -o m.gguf", code: 2, want: `would replace what argument 1 reads`, hint: `another file`},

	// Build and quick
	{name: "unknown key of a matrix", make: func(d *dir) {
		d.write("hetc.yaml", "schema: hetc.build/1\nmodels: [{model: x}]\nsocs: []\nworkload: []\n")
	}, args: "hetc build", code: 3, want: `unknown key "workload"`, hint: `did you mean "workloads"`},
	{name: "matrix that is a pipe", make: func(d *dir) { d.pipe("hetc.yaml") }, args: "hetc build", code: 3, want: `it is a pipe`, hint: `into a file first`},
	{name: "quick without weights", args: "hetc quick tinyllama-1.1b", code: 3, want: `it has shapes and no weights`, hint: `hetc models synth tinyllama-1.1b`},
	{name: "quick with an unknown scheme", args: "hetc quick $M --schemes a8t/q8d", code: 2, want: `--schemes "a8t/q8d": no such scheme`, hint: `did you mean "a8t/q8c"`},
	{name: "quick into a file", make: func(d *dir) { d.write("x", "") }, args: "hetc quick $M -o x", code: 9, want: `it is there and no directory`, hint: `.`},

	// Limits
	{name: "plan above the file size limit", limit: "ulimit -f 8", args: solveA + "x.yaml", code: 9, want: `write "x.yaml": file too large`, hint: `ulimit -f`},
	{name: "bundle above the file size limit", limit: "ulimit -f 64", args: "hetc emit --plan $A/plan.yaml --model $M --key $A/k.key -o x.hetb", code: 9, want: `file too large`, hint: `ulimit -f`},
	{name: "calibration above the file size limit", limit: "ulimit -f 1", args: "hetc calibrate --model $M --text $M/valid.txt -o x.yaml", code: 9, want: `write "x.yaml": file too large`, hint: `ulimit -f`},
	{name: "model above the file size limit", limit: "ulimit -f 64", args: "hetc models synth qwen2-0.5b -o m", code: 9, want: `file too large`, hint: `ulimit -f`},
	{name: "constructed model above the file size limit", limit: "ulimit -f 64", args: "hetc models construct --tokenizer $M --text $M/valid.txt -o m", code: 9, want: `file too large`, hint: `ulimit -f`},
	{name: "cache larger than the address space", limit: "ulimit -v 4000000", args: "hetc run $A/long.hetb --trust $A/k.pub --tokens 1", code: 4, want: `needs 24 GiB of memory, and .* are free`, hint: `smaller context`},
	{name: "output that nobody takes", limit: "exec >/dev/full", args: "hetc models list", code: 9, want: `no space left on device`, hint: `free space`},
}

// gguf makes m.gguf, the demo model, changed.
func gguf(change func([]byte) []byte) func(d *dir) {
	return func(d *dir) {
		d.hetc("models export $M -o m.gguf")
		d.must(os.WriteFile(d.at("m.gguf"), change([]byte(d.read(d.at("m.gguf")))), 0o644))
	}
}

// inPadding makes x.hetb, the whole bundle with one bit changed in its padding: choose picks one of the places between and
// behind its blobs.
func inPadding(choose func(places []int64) int64) func(d *dir) {
	return func(d *dir) {
		path := filepath.Join(d.artifacts, "app.hetb")
		found, err := bundle.Inspect(path)
		d.must(err)
		var places []int64
		for i, blob := range found.Manifest.Blobs {
			behind, next := found.Offsets[i]+blob.Bytes, found.Bytes
			if i+1 < len(found.Offsets) {
				next = found.Offsets[i+1]
			}
			if behind < next {
				places = append(places, behind, next-1)
			}
		}
		if len(places) < 10 {
			d.Fatalf("padding is found at %v alone", places)
		}
		text := []byte(d.read(path))
		text[choose(places)] ^= 0x80
		d.write("x.hetb", string(text))
	}
}

// nanPlan makes model m with damaged weights and a plan for it: planning does not look at weights.
func nanPlan(damage func(map[string]any, []byte)) func(d *dir) {
	return func(d *dir) {
		d.tensors(nil, damage)
		d.write("w.yaml", header+"buckets: [16]\ncontext: 64\n")
		d.hetc("profile --soc snapdragon-8gen3 --model m --workload w.yaml -o rec.jsonl")
		d.hetc("solve --soc snapdragon-8gen3 --record rec.jsonl --model m --workload w.yaml -o plan.yaml")
	}
}

// words are those of a command line in which $A is the directory of artifacts and $M the model.
func (d *dir) words(line string) []string {
	return wordsOf(line, "$A", d.artifacts, "$M", d.model)
}

// wordsOf are the words of a command line, in which names are replaced by paths: these may hold blanks.
func wordsOf(line string, replaced ...string) []string {
	words := strings.Fields(line)
	for i, word := range words {
		words[i] = strings.NewReplacer(replaced...).Replace(word)
	}
	return words
}

// hetc runs a command that succeeds, and returns what it said.
func (d *dir) hetc(line string) string {
	d.Helper()
	c := exec.Command("hetc", d.words(line)...)
	c.Dir = d.path
	out, err := c.CombinedOutput()
	if err != nil {
		d.Fatalf("hetc %s: %v\n%s", line, err, out)
	}
	return string(out)
}

func (d *dir) pipe(name string) {
	d.Helper()
	if err := mkfifo(d.at(name)); err != nil {
		d.Skipf("this system has no named pipes: %v", err)
	}
}

// boardSoC describes one core of some machine.
func boardSoC(driver string) string {
	fingerprint := "cpu-0000000000000000"
	if driver != "host" {
		fingerprint = hostFingerprint()
	}
	return fmt.Sprintf(`schema: hetc.soc/1
name: board
fingerprint: %s
control: a
processors:
  - {name: a, kind: cpu, driver: %s, select: "0", cores: [0], tile: {m: 1, k: 32, "n": 32}, schemes: [a32/w32], layouts: {w32: n32}, kv: [f32],
     dynamic_rows: true, strided_output: true, strided_input: true, weight_ranges: true, bandwidth_gbps: 10}
`, fingerprint, driver)
}

// TestBrokenInputs runs every broken input through the real commands, as people and as programs see it:
// the exit code, one error that names the thing, a way out, and no trace on disk.
func TestBrokenInputs(t *testing.T) {
	require.Slow(t)
	if runtime.GOOS == "windows" {
		t.Skip("uses sh, ulimit, links and device files")
	}
	if len(brokenInputs) < 60 {
		t.Fatalf("%d broken inputs, want at least 60", len(brokenInputs))
	}
	whole := artifacts(t)
	names := map[string]bool{}
	for _, b := range brokenInputs {
		if names[b.name] {
			t.Errorf("two cases are called %q", b.name)
		}
		names[b.name] = true
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			d := &dir{T: t, path: t.TempDir(), artifacts: whole.path, model: whole.model}
			if b.make != nil {
				b.make(d)
			}
			before := snapshot(t, d.path)
			for _, asJSON := range []bool{false, true} {
				words := d.words(b.args)
				if asJSON {
					words = append(words, "--json")
				}
				code, stdout, stderr := refused(t, &b, d.path, words)
				if code != b.code {
					t.Errorf("%s: exit code %d, want %d\n%s", b.args, code, b.code, stderr)
				}
				checkText(t, &b, stderr)
				if asJSON && b.limit != "exec >/dev/full" {
					checkDocument(t, &b, stdout)
				}
				if after := snapshot(t, d.path); !maps.Equal(before, after) {
					t.Errorf("%s: left %v, before there was %v", b.args, after, before)
				}
			}
		})
	}
}

// artifacts is what whole commands make, with one bundle for a context that needs 24 GiB: made once for
// all tests that only read it.
func artifacts(t *testing.T) *dir {
	t.Helper()
	model, err := filepath.Abs("../../testdata/models/tiny-llama-kjv")
	if err != nil {
		t.Fatal(err)
	}
	d := &dir{T: t, path: filepath.Join(shared, "artifacts"), model: model}
	d.artifacts = d.path
	if _, err := os.Stat(d.path); err == nil {
		return d
	}
	d.must(os.Mkdir(d.path, 0o755))
	d.must(os.Symlink(d.model, d.at("model")))
	d.write("w.yaml", header+"buckets: [64]\ncontext: 64\n")
	d.hetc("profile --soc snapdragon-8gen3 --model model --workload w.yaml -o rec.jsonl")
	d.hetc("fit --soc snapdragon-8gen3 --record rec.jsonl -o costs.yaml")
	d.hetc("solve --soc snapdragon-8gen3 --costs costs.yaml --model model --workload w.yaml -o plan.yaml")
	d.hetc("keygen --out k")
	d.hetc("keygen --out other")
	d.hetc("emit --plan plan.yaml --model model --key k.key -o app.hetb")
	d.config(`"max_position_embeddings": 1024`, `"max_position_embeddings": 4194304`)
	d.write("long.yaml", header+"buckets: [16]\ncontext: 4194304\n")
	d.hetc("profile --soc snapdragon-8gen3 --model m --workload long.yaml -o long.jsonl")
	d.hetc("solve --soc snapdragon-8gen3 --record long.jsonl --model m --workload long.yaml -o longplan.yaml")
	d.hetc("emit --plan longplan.yaml --model m --key k.key -o long.hetb")
	return d
}

// refused runs a command line, for at most two minutes.
func refused(t *testing.T, b *broken, dir string, words []string) (code int, stdout, stderr string) {
	t.Helper()
	c := exec.Command(words[0], words[1:]...)
	if b.limit != "" {
		c = exec.Command("sh", slices.Concat([]string{"-c", b.limit + `; exec "$@"`, "sh"}, words)...)
	}
	c.Dir = dir
	c.Env = append(os.Environ(), "TMPDIR="+filepath.Join(t.TempDir()))
	if b.env != "" {
		c.Env = append(c.Env, b.env)
	}
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	hung := time.AfterFunc(2*time.Minute, func() { _ = c.Process.Kill() })
	defer hung.Stop()
	_ = c.Wait()
	if status, ok := c.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		t.Errorf("%v: ended by signal %v, perhaps after two minutes", words, status.Signal())
	}
	return c.ProcessState.ExitCode(), out.String(), errs.String()
}

// checkText looks at what people read.
func checkText(t *testing.T, b *broken, stderr string) {
	t.Helper()
	var errs, hints []string
	for l := range strings.SplitSeq(strings.TrimSpace(stderr), "\n") {
		if _, text, ok := strings.Cut(l, ": error: "); ok {
			errs = append(errs, text)
		} else if _, text, ok := strings.Cut(l, ": hint: "); ok {
			hints = append(hints, text)
		} else if strings.Contains(l, "goroutine ") {
			t.Errorf("a stack trace:\n%s", stderr)
			return
		}
	}
	if !regexp.MustCompile(b.want).MatchString(strings.Join(errs, "\n")) {
		t.Errorf("got the error\n%s\nwant %s", stderr, b.want)
	}
	if !regexp.MustCompile(b.hint).MatchString(strings.Join(hints, "\n")) {
		t.Errorf("got the hints %q, want %s", hints, b.hint)
	}
}

// checkDocument looks at what programs read.
func checkDocument(t *testing.T, b *broken, stdout string) {
	t.Helper()
	var doc struct {
		Error struct {
			Class       string `json:"class"`
			ExitCode    int    `json:"exit_code"`
			Message     string `json:"message"`
			Hints       []string
			Diagnostics []struct{ Severity, Class, Message string }
		}
		OK *bool // a result that tells of problems
	}
	dec := json.NewDecoder(strings.NewReader(stdout))
	if err := dec.Decode(&doc); err != nil || dec.More() {
		t.Errorf("--json: want one document, got\n%s", stdout)
		return
	}
	if doc.OK != nil {
		return
	}
	classes := map[int]string{2: "usage", 3: "input", 4: "unavailable", 5: "verify", 6: "infeasible", 7: "illegal", 9: "io"}
	e := doc.Error
	if e.ExitCode != b.code || e.Class != classes[b.code] || len(e.Hints) == 0 || !regexp.MustCompile(b.want).MatchString(e.Message) {
		t.Errorf("--json: got %+v, want exit code %d and %s", e, b.code, b.want)
	}
}

// snapshot is everything below a directory: names, kinds, sizes and times.
func snapshot(t *testing.T, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, root)
		out[name] = info.Mode().String()
		if !e.IsDir() { // making and removing a temporary file changes a directory's time
			out[name] += fmt.Sprint(info.Size(), info.ModTime())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
