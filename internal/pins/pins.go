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
	{"opencl-intel", "linux", "amd64", map[string]string{
		"libintelocl.so":                  "af51ca856b48bbd073f4f555ff4f15cbfc209aaf14c58448be9de22cf915f28c",
		"libcommon_clang.so.2026.22.10.0": "50dc16df5c663ab7a74e2c5ad07546f0a5d8d88213fc14214157080014cdd627",
		"cl.cfg":                          "27f33f9f1797098a9771d9f15a8134d1fbc50e2a6b404512bb411acf92d9b406",
		"clbltfne9.rtl":                   "8f8230174c1f7c308ee3bda544675179b81091ef48828c3ef02a855bde6771ce",
		"clbltfnh8.rtl":                   "29437803ff753567a7a52c2ea5ea051d7046623d8fc1adeaf73928fca6214c29",
		"clbltfnl9.rtl":                   "8d0e6eb66df4856b9639f65d976c6ac318a79cab6faf3c64e1e327c049437d67",
		"clbltfnshared.rtl":               "c13d9a7accd9f6b6517e5f332e0984aeab4b45e67ba2407f73b8c4538e50f239",
		"clbltfnz0.rtl":                   "c9669574bc2999886e911fb74658f7057d2db11599df5f0efb39a160ac17e983",
		"clbltfnz1.rtl":                   "ba80ff718f54e5cb8ac95cde8d0c8035c7b475c790d5c287428445d3a3d61e8e",
		"cllibrary.rtl":                   "ff05a1a53ee988b2cb651249847e4b195e49a15589d9b22dbccb2f46478e7fdb",
		"cllibrarye9.o":                   "5d16c4b6930fdb318ef9a54a792ac6d19d2ac3f657a74d8072da0b8c9a62e9e1",
		"cllibraryh8.o":                   "cdd02ecdae6ce65533b8ab47c774e7bc2ed526df0cfc75467fec10a149b3b74b",
		"cllibraryl9.o":                   "1e6639cd3bb972592e1225c4302d7a94f4c422769dead398eb0dd885a7accbfe",
		"cllibraryz0.o":                   "1ad4ed003382fa492720066e041d296294e9f60a78ec4bafa74858d977441d67",
		"cllibraryz1.o":                   "4b53a091744f7983b820dec5d177e4c830aa956bdc7da302dc74a6f296f1c373",
		"libocl_svml_e9.so":               "a73a5954135e73e1e60b0e99d1a0347808915a6ab9ed6d23a4271a01045d53aa",
		"libocl_svml_h8.so":               "00c8c20e9d41f70a24913c08a60782109df7a5e084caa37befa4bb4b8c6d0705",
		"libocl_svml_l9.so":               "6972aee87af6f45bcbcd56e4136943c573b953bba393928ecdce4057734a15c3",
		"libocl_svml_z0.so":               "776c7200988b029125d955b52abdcd2e9a0dc83802f2b42c0251ee5ed0ac24f8",
		"libocl_svml_z1.so":               "00720225aa4889c22b35d1d861c9f314870d9b7c32baaf3f1e2b86e5c23db660",
		"libimf.so":                       "352cc8d53ceca3a9d50a14479297aff23af0f3d773f073dfe6597e66de8f0b9b",
		"libsvml.so":                      "b2cf661fb044dc02d5901113841a294c3a95ce62a38270a396ed8b52680f9ba8",
		"libirng.so":                      "8e014b69e3c1ea2235c1f98bd70eb1083d35bd39a793f521230c96e865b38db6",
		"libintlc.so.5":                   "f16c5e1cad3b3363903afca39def3bfa42dd4f41e8c892fea019103767f1a089",
		"libtbb.so.12":                    "b7a8ff5841cd7ae48ea1c6251b32aa0bd7bb5c93c13993fbc63f82d570cceed1",
	}},
}
