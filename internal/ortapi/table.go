package ortapi

import "unsafe"

// Indices into OrtApi, a table of functions that only grows; from the header onnxruntime_c_api.h of API
// version 24. All return OrtStatus* (0 is success) but the release functions, error code and message,
// CreateThreadingOptions aside, which returns a status as well.
const (
	fnGetErrorCode                          = 1
	fnGetErrorMessage                       = 2
	fnDisableTelemetryEvents                = 6
	fnCreateSession                         = 7
	fnCreateSessionFromArray                = 8
	fnCreateSessionOptions                  = 10
	fnSetOptimizedModelFilePath             = 11
	fnSetSessionExecutionMode               = 13
	fnDisableMemPattern                     = 17
	fnDisableCPUMemArena                    = 19
	fnSetSessionGraphOptimizationLevel      = 23
	fnSetIntraOpNumThreads                  = 24
	fnSetInterOpNumThreads                  = 25
	fnSessionGetInputCount                  = 30
	fnSessionGetOutputCount                 = 31
	fnSessionGetInputTypeInfo               = 33
	fnSessionGetOutputTypeInfo              = 34
	fnSessionGetInputName                   = 36
	fnSessionGetOutputName                  = 37
	fnCreateTensorWithDataAsOrtValue        = 49
	fnCastTypeInfoToTensorInfo              = 55
	fnGetTensorElementType                  = 60
	fnGetDimensionsCount                    = 61
	fnGetDimensions                         = 62
	fnCreateCPUMemoryInfo                   = 69
	fnAllocatorFree                         = 76
	fnGetAllocatorWithDefaultOptions        = 78
	fnReleaseEnv                            = 92
	fnReleaseStatus                         = 93
	fnReleaseMemoryInfo                     = 94
	fnReleaseSession                        = 95
	fnReleaseValue                          = 96
	fnReleaseTypeInfo                       = 98
	fnReleaseSessionOptions                 = 100
	fnCreateEnvWithGlobalThreadPools        = 119
	fnDisablePerSessionThreads              = 120
	fnCreateThreadingOptions                = 121
	fnReleaseThreadingOptions               = 122
	fnGetAvailableProviders                 = 125
	fnReleaseAvailableProviders             = 126
	fnAddSessionConfigEntry                 = 130
	fnRunWithBinding                        = 133
	fnCreateIoBinding                       = 134
	fnReleaseIoBinding                      = 135
	fnBindInput                             = 136
	fnBindOutput                            = 137
	fnCreateAndRegisterAllocator            = 144
	fnSetGlobalIntraOpNumThreads            = 147
	fnSetGlobalInterOpNumThreads            = 148
	fnSetGlobalSpinControl                  = 149
	fnAddInitializer                        = 150
	fnCreateArenaCfg                        = 156
	fnReleaseArenaCfg                       = 157
	fnCreatePrepackedWeightsContainer       = 166
	fnReleasePrepackedWeightsContainer      = 167
	fnCreateSessionWithPrepacked            = 168
	fnCreateSessionFromArrayWithPrepacked   = 169
	fnSessionOptionsAppendExecutionProvider = 216
	fnSetGlobalIntraOpThreadAffinity        = 227
	fnGetBuildInfoString                    = 254

	// Of plugin execution providers: looked at where one is used.
	fnGetCompileAPI                           = 294 // returns a table, no status
	fnGetKeyValue                             = 297 // returns a string, no status
	fnRegisterExecutionProviderLibrary        = 301
	fnGetEpDevices                            = 303
	fnSessionOptionsAppendExecutionProviderV2 = 304
	fnEpDeviceEpName                          = 312 // this and the two below return what they are asked for, no status
	fnEpDeviceEpVendor                        = 313
	fnEpDeviceEpMetadata                      = 314
	fnGetModelCompatibilityForEpDevices       = 388
	fnSessionGetEpGraphAssignmentInfo         = 407
	fnEpAssignedSubgraphGetEpName             = 408
	fnEpAssignedSubgraphGetNodes              = 409
	fnEpAssignedNodeGetName                   = 410
	fnEpAssignedNodeGetDomain                 = 411
	fnEpAssignedNodeGetOperatorType           = 412
	tableLength                               = 413
)

// Indices into OrtCompileApi, of the same header.
const (
	compileRelease            = 0
	compileFromSessionOptions = 1
	compileSetInputPath       = 2
	compileSetOutputPath      = 4
	compileSetEmbed           = 7
	compileModel              = 8
	compileSetFlags           = 9
	compileLength             = 10
)

var compileFunctions = []int{compileRelease, compileFromSessionOptions, compileSetInputPath, compileSetOutputPath, compileSetEmbed, compileModel, compileSetFlags}

// ownProviders are the execution providers that have functions of their own, instead of being appended by name.
var ownProviders = map[string]struct{ append, create, update, release int }{
	"TensorrtExecutionProvider": {170, 171, 172, 174},
	"CUDAExecutionProvider":     {204, 205, 206, 208},
	"CANNExecutionProvider":     {220, 221, 222, 224},
	"DnnlExecutionProvider":     {239, 240, 241, 243},
}

// Versions of the table. A library offers all up to its own minor version: 1.24 has 1 to 24.
const (
	apiMajor   = 1
	apiVersion = 24 // what is asked for; earlier libraries refuse operators of hetc's graphs (rows of one element)
	sharesFrom = 28 // earlier ones end with an error where weights of 4-bit blocks are to be shared
)

// Values of C enumerations.
const (
	logFatal          = 4 // failures come as statuses; nothing is to be printed by the library
	executeSequential = 0
	allocatorDevice   = 0         // OrtDeviceAllocator
	allocatorArena    = 1         // OrtArenaAllocator
	sameAsRequested   = 1         // how an arena grows
	byDefault         = 1<<32 - 1 // -1, of an int
	memTypeDefault    = 0         // OrtMemTypeDefault

	compileErrorIfNothing = 1 // OrtCompileApiFlags_ERROR_IF_NO_NODES_COMPILED
)

// ElementType is ONNX's number of a tensor's element type.
type ElementType int32

const (
	Float32  ElementType = 1
	Uint8    ElementType = 2
	Int8     ElementType = 3
	Uint16   ElementType = 4
	Int16    ElementType = 5
	Int32    ElementType = 6
	Int64    ElementType = 7
	Bool     ElementType = 9
	Float16  ElementType = 10
	Float64  ElementType = 11
	BFloat16 ElementType = 16
)

var elementTypes = map[ElementType]struct {
	name  string
	bytes int64
}{
	Float32: {"float32", 4}, Uint8: {"uint8", 1}, Int8: {"int8", 1}, Uint16: {"uint16", 2}, Int16: {"int16", 2},
	Int32: {"int32", 4}, Int64: {"int64", 8}, Bool: {"bool", 1}, Float16: {"float16", 2}, Float64: {"float64", 8}, BFloat16: {"bfloat16", 2},
}

// String returns the type's name in ONNX, or its number where this package does not know it.
func (t ElementType) String() string {
	if e, ok := elementTypes[t]; ok {
		return e.name
	}
	return "element type " + itoa(int64(t))
}

// Bytes returns the size of one element, 0 of a type that is not listed here.
func (t ElementType) Bytes() int64 { return elementTypes[t].bytes }

// out is a place that C writes one result to. It lives on the Go heap: taking its address in the argument
// list of a call that escapes its arguments moves it there.
type out struct{ p uintptr }

const wordBytes = unsafe.Sizeof(uintptr(0))
