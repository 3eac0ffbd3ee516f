// Package pins knows the sha256 of each library that `make deps` takes out of a package. The programs check a library of
// such a folder against it before they open it, and `make deps` before the folder gets its name.
//
// Digests of archives, which cmd/internal/deps pins, say nothing about a file that was changed after it was unpacked.
package pins

import "maps"

// set is what one folder holds on one platform.
type set struct {
	folder, os, arch string            // os and arch are empty where the files are the same everywhere
	files            map[string]string // path in the folder -> sha256
}

// Of returns the libraries of a folder below .deps by their path in it, with their digests. It is nil for a folder that
// is not pinned on the platform: it is not known then what belongs into it.
func Of(folder, goos, arch string) map[string]string {
	for _, set := range table {
		if set.folder == folder && (set.os == "" || set.os == goos && set.arch == arch) {
			return maps.Clone(set.files)
		}
	}
	return nil
}

// table is printed by `go run ./cmd/internal/deps -pins onnxruntime highs highs-native onnxruntime-qnn`, which fetches
// every archive and checks it against its own pinned digest; fetching the last one accepts Qualcomm's terms, as `make
// deps-qnn` does. llama.cpp is built from source, so its programs are different on every machine.
var table = []set{
	{"onnxruntime", "linux", "amd64", map[string]string{
		"libonnxruntime.so.1.31.1":           "fc44112fbe06d7d689c57e11d3862031f64711007e4ee020f8eed5185fd2c1d3",
		"libonnxruntime_providers_shared.so": "086ec1d5388f64153d9c63470d126693db9a182c8ce236d3a1119068471b8a0d",
	}},
	{"onnxruntime", "linux", "arm64", map[string]string{
		"libonnxruntime.so.1.31.1":           "8aa3b76b28c778a2b1dd660d34161adb1d508c9ccd04ff9dc80e26eca5df8467",
		"libonnxruntime_providers_shared.so": "3b6be288fbfb7dff8770d08a23defdde18e8f7e0f5a2b344a0e5e238c999ea88",
	}},
	{"onnxruntime", "darwin", "arm64", map[string]string{
		"libonnxruntime.1.31.1.dylib": "f8b06155feece624e55e49124340eea279da812529ae6fbc46a9f2be9c9cad2e",
	}},
	{"onnxruntime", "windows", "amd64", map[string]string{
		"onnxruntime.dll":                  "8482d2ee174e28504f99730fb01d6861575870283de4ed3a897ad39170d9a9b9",
		"onnxruntime_providers_shared.dll": "f0c7a181e46390233f248c5d479f0f55e02280f1ec305c93552d1f58344a0e8f",
	}},
	{"onnxruntime", "windows", "arm64", map[string]string{
		"onnxruntime.dll":                  "f4f7729bf4aa0c78b6ab5253747f3593bb9a28b4c4275a0a9f59f04ea580d61f",
		"onnxruntime_providers_shared.dll": "04167649cf3007c1ebd845a12f19e0c095c02afc07fd1cb85c9c7ae67d0354d2",
	}},
	{"highs", "", "", map[string]string{
		"highs.wasm": "528be4365bea1d4188988646b244263f50320df55782e14d6af5bce7cd45c840",
	}},
	{"highs-native", "linux", "amd64", map[string]string{
		"libhighs.so": "b358c169566b648d2b264d4414618cbac2bd402dfdafd1bc9ad0234684341c07",
	}},
	{"highs-native", "linux", "arm64", map[string]string{
		"libhighs.so": "09ca7c2d241e9c29909213d31dc5c0227937cdafdd85a64fa730dd9cace5f6c5",
	}},
	{"highs-native", "darwin", "amd64", map[string]string{
		"libhighs.dylib": "9c1cd5e2bd9924cfb864d3568fb9e822d9ea471ff49561fe89567a8d51d1b360",
	}},
	{"highs-native", "darwin", "arm64", map[string]string{
		"libhighs.dylib": "df3df043ac7e33bf4d83082486c2e05416cda1fff8cc0cd63b1bfbffdd91d573",
	}},
	{"highs-native", "windows", "amd64", map[string]string{
		"highs.dll": "b83beac8a8fde5f6515f7195eb0db1e77731cb8135504de6ffdd215aad996a85",
	}},
	{"onnxruntime-qnn", "linux", "amd64", map[string]string{
		"onnxruntime_qnn/libonnxruntime_providers_qnn.so": "629dfc151fc842bf9aa6ecdba89c0a864cd50e90fda960f9631e234fed5fc457",
		"onnxruntime_qnn/libQnnHtp.so":                    "66fbcc1a97b3ca186c0170123e03978f2351222d59b2e9ceb0202e4a9b0116c0",
		"onnxruntime_qnn/libQnnSystem.so":                 "a5441fe0307cfb10478d18f6de16053f3b111eaa01ff3975a54b10afdfa33a38",
		"onnxruntime_qnn.libs/libc++-71bc274c.so.1.0":     "46cee8e5f62e9b4a79b863b058879c5e9d4f41841650841df6f6669ebef2e2e2",
		"onnxruntime_qnn.libs/libc++abi-0539aa51.so.1.0":  "2cb6d3e6acc815575d5a76acb45f99ae4ed5a4fcc04febaa8cd8981e07b89a47",
		"onnxruntime_qnn.libs/libunwind-6b740a46.so.1.0":  "a00822cc6221850754a491cbafa2b2e2fefac06f61f108cc8e80f0869fe5f724",
	}},
}
