package main

import (
	_ "embed"
	"path"
	"slices"
)

// llamaCpp takes the prebuilt shared libraries, one per kind of CPU, and builds the tools, which the package
// lacks, from the source of the same release that it brings along.
var llamaCpp = recipe{
	Name: "llama.cpp", OS: "linux", Arch: "amd64",
	Packages: []pkg{
		{"node-llama-cpp", "3.22.1", "a0d9dd80eacd2ab1cfe71aee57ac8a806487fd70b3d2a38fbec637752d9e5c5f", ""},
		{"@node-llama-cpp/linux-x64", "3.22.1", "0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0", ""},
	},
	Source:  "llama/gitRelease.bundle",
	Libs:    "bins/linux-x64",
	Licence: "LICENSE",
	Include: []string{"include", "ggml/include", "common", "vendor"},
	Link:    []string{"libllama-common.so", "libllama.v0.5.0.so", "libggml.v0.5.0.so", "libggml-base.so"},
	Programs: []program{
		{Name: "llama-bench", Dir: "tools/llama-bench", Files: []string{"llama-bench.cpp", "main.cpp"}},
		{Name: "llama-quantize", Dir: "tools/quantize", Files: []string{"quantize.cpp", "main.cpp"}},
		{Name: "llama-perplexity", Dir: "tools/perplexity", Files: []string{"perplexity.cpp", "main.cpp"}},
	},
}

// llamaServer is llama.cpp's server, from the same packages and on the same libraries. What it needs beside them is
// compiled with it: the multimodal parts that its objects refer to, the HTTP library, a hash. Its pages for browsers
// come from elsewhere and are left out.
var llamaServer = recipe{
	Name: "llama-server", OS: llamaCpp.OS, Arch: llamaCpp.Arch, Packages: llamaCpp.Packages, Source: llamaCpp.Source,
	Libs: llamaCpp.Libs, Licence: llamaCpp.Licence, Include: llamaCpp.Include, Link: llamaCpp.Link,
	Programs: []program{{Name: "llama-server", Dir: "tools/server",
		Files: []string{"*.cpp", "../mtmd/*.cpp", "../mtmd/models/*.cpp", "../../vendor/cpp-httplib/httplib.cpp",
			"../../vendor/hash/hash.cpp", "../../vendor/hash/sha256/sha256.c"},
		Without: []string{"mtmd-cli.cpp", "deprecation-warning.cpp"},
		Include: []string{"tools/mtmd", "vendor/cpp-httplib", "vendor/hash", "."},
		Texts:   map[string]string{"ui.h": noPagesHeader, "ui.cpp": noPages},
	}},
}

// noPagesHeader and noPages are what the build makes of the server's pages for browsers, without any.
const (
	noPagesHeader = `#pragma once
#include <array>
#include <string>
struct llama_ui_asset {
    std::string name; const unsigned char * data; std::size_t size; std::string etag; std::string type;
};
const llama_ui_asset * llama_ui_find_asset(const std::string & name);
bool llama_ui_use_gzip();
const std::array<llama_ui_asset, 0> & llama_ui_get_assets();
`
	noPages = `#include "ui.h"
const llama_ui_asset * llama_ui_find_asset(const std::string &) { return nullptr; }
bool llama_ui_use_gzip() { return false; }
const std::array<llama_ui_asset, 0> & llama_ui_get_assets() { static const std::array<llama_ui_asset, 0> none{}; return none; }
`
)

// pythonPeers are the engines that are measured through their Python packages, all in one environment. ONNX Runtime is
// there once more: its wheel for Python, of another version than the library of the driver.
var pythonPeers = recipe{Name: "python-peers", OS: "linux", Arch: "amd64", Requirements: pythonWheels}

//go:embed python-peers.txt
var pythonWheels string

// onnxRuntime is the C library out of the Python wheel of each platform; for other platforms there is none.
var onnxRuntime = []recipe{
	wheel("linux", "amd64", "manylinux_2_28_x86_64", "5752bd508126ae7c49894d3b9d2e83f0c3d487319246d04c444b393308d7ad7f",
		"libonnxruntime.so."+onnxRuntimeVersion, "libonnxruntime_providers_shared.so"),
	wheel("linux", "arm64", "manylinux_2_28_aarch64",
		"da05378364c44d4407e463982d2bf8d5e4cfea873283757e48beeb41df97b7f3", "libonnxruntime.so."+onnxRuntimeVersion,
		"libonnxruntime_providers_shared.so"),
	wheel("darwin", "arm64", "macosx_14_0_arm64", "60b6b69bfe580eab576cacc5d132a0e9cf2a37fcfd18d46dd191042b1d1ed0d7",
		"libonnxruntime."+onnxRuntimeVersion+".dylib"),
	wheel("windows", "amd64", "win_amd64", "c3d91b5de31e2fc82d71bd65b2b22bddee8b49057a3a36338e9a868e0ea90c05",
		"onnxruntime.dll", "onnxruntime_providers_shared.dll"),
	wheel("windows", "arm64", "win_arm64", "93800007a7023b3ab26ad72e6463d0d57d84ead49a2f6341954d91438e046bc0",
		"onnxruntime.dll", "onnxruntime_providers_shared.dll"),
}

const onnxRuntimeVersion = "1.31.1"

// wheel returns the recipe of ONNX Runtime for a platform, of the PyPI wheel with a tag and digest.
func wheel(goos, arch, tag, digest string, libraries ...string) recipe {
	made := recipe{Name: "onnxruntime", OS: goos, Arch: arch,
		Packages: []pkg{{"onnxruntime", onnxRuntimeVersion, digest, tag}}}
	for _, l := range libraries {
		made.Files = append(made.Files, file{path.Join("onnxruntime/capi", l), l})
	}
	made.Files = append(made.Files, file{"onnxruntime/LICENSE", "LICENSE"},
		file{"onnxruntime/ThirdPartyNotices.txt", "ThirdPartyNotices.txt"})
	return made
}

// qnn is Qualcomm's compiler for its NPU and the emulator of that NPU, behind a plugin of ONNX Runtime. The folders
// stay as they are in the wheel: its libraries find each other by them. Libraries for other processors, and those
// that neither compiling nor emulating opens, are left out.
var qnn = recipe{
	Name: "onnxruntime-qnn", OS: "linux", Arch: "amd64",
	Packages: []pkg{{"onnxruntime-qnn", "2.7.0", "c56c01562b8534fe8980cfea4601408d950c065f8251fb862ce82101c52c9849",
		"manylinux_2_35_x86_64"}},
	Files: asTheyLie("onnxruntime_qnn/", "libonnxruntime_providers_qnn.so", "libQnnHtp.so", "libQnnSystem.so",
		"LICENSE", "Qualcomm_LICENSE.pdf", "ThirdPartyNotices.txt", "Privacy.md",
		"../onnxruntime_qnn.libs/libc++-71bc274c.so.1.0", "../onnxruntime_qnn.libs/libc++abi-0539aa51.so.1.0",
		"../onnxruntime_qnn.libs/libunwind-6b740a46.so.1.0"),
	Terms: "libonnxruntime_providers_qnn.so is under the MIT licence. Qualcomm's libraries, libQnn*.so, are under " +
		"its AI Stack License: " +
		"fetching or using them accepts it. hetc neither holds nor passes on any of them. The terms will lie in",
	TermFiles: []string{"onnxruntime_qnn/Qualcomm_LICENSE.pdf", "onnxruntime_qnn/LICENSE"},
}

// intelOpenCL is Intel's implementation of OpenCL for CPUs: the library itself, its compiler, and what both open. The
// devices are described and the kernels' built-in functions lie in the files beside it, for each kind of CPU.
var intelOpenCL = recipe{
	Name: "opencl-intel", OS: "linux", Arch: "amd64",
	Packages: []pkg{
		{"intel-opencl-rt", "2026.2.0", "6b6215a420598b4999ee01caca6d5cbe106aa4155c46c52377619c5aafce9f67",
			"manylinux_2_28_x86_64"},
		{"intel-cmplr-lib-rt", "2026.2.0", "9f713083073a820d2496a6da8e8d4f3482aba6640f74521d25ea48dcebe72748",
			"manylinux_2_28_x86_64"},
		{"tbb", "2023.2.0", "7d80615b6e970f11671fa05b6eaa9483ac864fbfe525ac280271a78b37870b7c", "manylinux_2_28_x86_64"},
	},
	Files: slices.Concat(
		outOf("intel_opencl_rt-2026.2.0.data/data/lib", "libintelocl.so", "libcommon_clang.so.2026.22.10.0", "cl.cfg",
			"clbltfne9.rtl", "clbltfnh8.rtl", "clbltfnl9.rtl", "clbltfnshared.rtl", "clbltfnz0.rtl", "clbltfnz1.rtl",
			"cllibrary.rtl", "cllibrarye9.o", "cllibraryh8.o", "cllibraryl9.o", "cllibraryz0.o", "cllibraryz1.o",
			"libocl_svml_e9.so", "libocl_svml_h8.so", "libocl_svml_l9.so", "libocl_svml_z0.so", "libocl_svml_z1.so"),
		outOf("intel_cmplr_lib_rt-2026.2.0.data/data/lib", "libimf.so", "libsvml.so", "libirng.so", "libintlc.so.5"),
		outOf("tbb-2023.2.0.data/data/lib", "libtbb.so.12"),
		[]file{{"intel_opencl_rt-2026.2.0.dist-info/LICENSE.txt", "LICENSE.txt"},
			{"intel_opencl_rt-2026.2.0.data/data/share/doc/opencl/licensing/third-party-programs.txt",
				"third-party-programs.txt"},
			{"tbb-2023.2.0.dist-info/LICENSE.txt", "tbb-LICENSE.txt"}}),
	Terms: "Intel's libraries are under its End User License Agreement for Developer Tools, which among other things " +
		"does not permit to offer them as a service to third parties; oneTBB is under the Apache licence 2.0: fetching " +
		"or using them accepts that. hetc neither holds nor passes on any of them. The terms will lie in",
	TermFiles: []string{"LICENSE.txt", "tbb-LICENSE.txt"},
}

// outOf are files of a folder of a wheel that lie side by side in the result.
func outOf(folder string, names ...string) (files []file) {
	for _, name := range names {
		files = append(files, file{path.Join(folder, name), name})
	}
	return files
}

// asTheyLie are files that keep their folder in the wheel.
func asTheyLie(folder string, names ...string) (files []file) {
	for _, n := range names {
		at := path.Join(folder, n)
		files = append(files, file{at, at})
	}
	return files
}

// highs is the solver as WebAssembly, the same for every platform.
var highs = recipe{
	Name:     "highs",
	Packages: []pkg{{"highs", "1.15.3", "218533577886c69023739024bb92cfc2831ba45ff1fd1fd981753c04cded9793", ""}},
	Files:    []file{{"build/highs.wasm", "highs.wasm"}, {"LICENSE", "LICENSE"}},
}

// highsNative is the same solver as a shared library.
var highsNative = []recipe{
	library("linux", "amd64", "manylinux2014_x86_64",
		"17f30d23ef37488467732b45f141146f7c287826a576b4514ae39a8cc4068b28", "lib/libhighs.so"),
	library("linux", "arm64", "manylinux2014_aarch64",
		"d1a3c1742d6fae36a3a18e0c7500530e46de5faa1a42dee65677bf0ae80acda3", "lib/libhighs.so"),
	library("darwin", "amd64", "macosx_10_13_x86_64",
		"bfc6176c73b7653e2aa7d6890d50d862819ef55db801cc0296c12320fcf82500", "lib/libhighs.dylib"),
	library("darwin", "arm64", "macosx_11_0_arm64", "69dde421f36098b9aac4d2dc315350e4c21afb689ee16b51542b933eb099b318",
		"lib/libhighs.dylib"),
	library("windows", "amd64", "win_amd64", "03f230716dca09dc1cb36454887f6f24df3d4459f9a5668ca71bcb1d603106e7",
		"bin/highs.dll"),
}

// library returns the recipe of HiGHS as a shared library for a platform.
func library(goos, arch, tag, digest, from string) recipe {
	const version = "1.15.1"
	const root = "highsbox-" + version + ".data/purelib/highsbox/highs_dist/"
	return recipe{Name: "highs-native", OS: goos, Arch: arch, Packages: []pkg{{"highsbox", version, digest, tag}},
		Files: []file{{root + from, path.Base(from)}, {root + "share/doc/HIGHS/LICENSE.txt", "LICENSE"}}}
}
