package bundle

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
)

// seedFiles are the bundles the parsers are fuzzed from: every vector of the kit.
func seedFiles(f *testing.F) (files [][]byte) {
	for _, v := range vectors() {
		recipe := baseRecipe()
		v.edit(recipe)
		files = append(files, recipe.build())
	}
	if len(files) < 100 {
		f.Fatalf("only %d seeds", len(files))
	}
	return files
}

func envelopeOf(file []byte) []byte {
	if len(file) < headerBytes {
		return nil
	}
	n := binary.LittleEndian.Uint64(file[16:])
	if n > uint64(len(file)-headerBytes) {
		return nil
	}
	return file[headerBytes : headerBytes+n]
}

func FuzzEnvelope(f *testing.F) {
	for _, file := range seedFiles(f) {
		if e := envelopeOf(file); e != nil && len(e) < 1<<16 {
			f.Add(e)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := decodeEnvelope(data)
		if err != nil {
			return
		}
		if again, err := encode(e.walk); err != nil || !bytes.Equal(again, data) {
			t.Fatalf("accepted in a second form: %v", err)
		}
		if len(e.signatures) > maxSignatures {
			t.Fatal("too many signatures")
		}
		if payload, err := e.open(); err == nil && base64.StdEncoding.EncodeToString(payload) != e.payload {
			t.Fatal("accepted base64 in a second form")
		}
	})
}

func FuzzManifest(f *testing.F) {
	for _, file := range seedFiles(f) {
		e, err := decodeEnvelope(envelopeOf(file))
		if err != nil {
			continue
		}
		if payload, err := base64.StdEncoding.DecodeString(e.payload); err == nil && len(payload) < 1<<16 {
			f.Add(payload)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		manifest, err := decodeManifest(data)
		if err != nil {
			return
		}
		if again, err := manifest.Encode(); err != nil || !bytes.Equal(again, data) {
			t.Fatalf("accepted in a second form: %v", err)
		}
		checkLayout(t, manifest, len(data))
	})
}

// checkLayout states what must hold of the layout of every legal manifest.
func checkLayout(t *testing.T, manifest *Manifest, payload int) {
	layout := layOut(manifest, payload)
	if layout.table < tableFloor || layout.table%pageAlign != 0 ||
		layout.table < headerBytes+int64(base64.StdEncoding.EncodedLen(payload)) {
		t.Fatalf("table at %d", layout.table)
	}
	end := layout.table + leafBytes*layout.leaves[len(manifest.Blobs)]
	if layout.blobs < end || layout.blobs-end >= pageAlign {
		t.Fatalf("blobs from %d, the table ends at %d", layout.blobs, end)
	}
	end = layout.blobs
	for i, blob := range manifest.Blobs {
		if layout.offsets[i] < end || layout.offsets[i]-end >= blob.Align || layout.offsets[i]%blob.Align != 0 {
			t.Fatalf("blob %d at %d, align %d, the one before ends at %d", i, layout.offsets[i], blob.Align, end)
		}
		if blob.Bytes >= pageAlign && layout.offsets[i]%pageAlign != 0 {
			t.Fatalf("blob %d at %d is not on a page", i, layout.offsets[i])
		}
		if got := layout.leaves[i+1] - layout.leaves[i]; got < 0 || got*manifest.ChunkBytes < blob.Bytes ||
			(got-1)*manifest.ChunkBytes >= max(blob.Bytes, 1) {
			t.Fatalf("blob %d of %d bytes has %d leaves", i, blob.Bytes, got)
		}
		end = layout.offsets[i] + blob.Bytes
	}
	if layout.size < end || layout.size-end >= pageAlign || layout.size%pageAlign != 0 {
		t.Fatalf("file of %d bytes, blobs end at %d", layout.size, end)
	}
}

// FuzzLayout takes sizes and alignments as 9 bytes a blob.
func FuzzLayout(f *testing.F) {
	f.Add(uint8(20), 100, []byte("\x00\x01\x02\x03\x04\x05\x06\x07\x08"))
	f.Add(uint8(12), 11<<20, bytes.Repeat([]byte{0xff}, 90))
	f.Add(uint8(24), 0, bytes.Repeat([]byte{0, 0, 0, 0, 1, 0, 0, 0, 16}, 8))
	f.Fuzz(func(t *testing.T, chunk uint8, payload int, raw []byte) {
		manifest := baseRecipe().manifest
		manifest.ChunkBytes = 1 << (chunk % 32)
		manifest.Blobs = []Blob{{Name: "plan", Role: RolePlan, Type: "t", Align: 64}}
		for i := 0; i+9 <= len(raw) && i < 9*200; i += 9 {
			size := int64(binary.LittleEndian.Uint64(raw[i:]))
			manifest.Blobs = append(manifest.Blobs,
				Blob{Name: "w" + string(rune('a'+i/9/26%26)) + string(
					rune('a'+i/9%26)) + base64.RawURLEncoding.EncodeToString([]byte{byte(i / 9)}),
					Role: RoleWeights, Type: "t", Bytes: size, Align: 1 << (raw[i+8] % 32)})
		}
		data, err := manifest.Encode()
		if err != nil {
			return
		}
		if payload < len(data) || payload > maxEnvelopeBytes {
			payload = len(data)
		}
		checkLayout(t, &manifest, payload)
	})
}

func FuzzKeyring(f *testing.F) {
	for _, v := range vectors() {
		recipe := baseRecipe()
		v.edit(recipe)
		f.Add(recipe.keyring())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		keyring, err := ParseTrust(data, "f")
		if err != nil {
			if StepOf(err) != stepKeyring {
				t.Fatalf("refused without a step: %v", err)
			}
			return
		}
		again, err := keyring.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if bytes.HasPrefix(data, []byte("---")) {
			again = keyring.Keys[0].PEM()
		} else if !bytes.HasSuffix(data, []byte("\n")) {
			again = bytes.TrimSuffix(again, []byte("\n"))
		}
		if !bytes.Equal(again, data) {
			t.Fatal("accepted in a second form")
		}
	})
}

// FuzzFile reads whole files. The input is the beginning of a file whose rest is that of the
// kit's base, so that the engine need not carry half a megabyte. Run it with
// -fuzzminimizetime=1x: coverage depends on the file system, and minimising never ends.
func FuzzFile(f *testing.F) {
	base := baseRecipe().build()
	for _, v := range vectors() {
		recipe := baseRecipe()
		v.edit(recipe)
		file := recipe.build()
		f.Add(file[:min(len(file), headerBytes+len(envelopeOf(file)))])
	}
	trust := ring(1, keyA, keyB, keyC)
	path := filepath.Join(f.TempDir(), "x.hetb")
	f.Fuzz(func(t *testing.T, head []byte) {
		if len(head) > 1<<16 {
			return
		}
		for _, file := range [][]byte{head, append(bytes.Clone(head), base[min(len(head), len(base)):]...)} {
			if err := os.WriteFile(path, file, 0o600); err != nil {
				t.Fatal(err)
			}
			if u, err := Inspect(path); err == nil {
				checkLayout(t, u.Manifest, len(must(u.Manifest.Encode())))
			} else if StepOf(err) == "" {
				t.Fatalf("refused without a step: %v", err)
			}
			opened, err := openAll(path, Options{Trust: trust})
			if err != nil {
				if StepOf(err) == "" {
					t.Fatalf("refused without a step: %v", err)
				}
				continue
			}
			again := path + ".again"
			if err := opened.Save(ctx, again); err != nil {
				t.Fatal(err)
			}
			opened.Close()
			if !bytes.Equal(must(os.ReadFile(again)), file) {
				t.Fatal("accepted in a second form")
			}
		}
	})
}
