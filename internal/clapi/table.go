package clapi

// function is an index into Library.fn.
type function int

// Functions of OpenCL 1.2 that hetc uses; all return an error code (0: success) or an object, with the code written
// to their last argument.
const (
	fnGetPlatformIDs function = iota
	fnGetPlatformInfo
	fnGetDeviceIDs
	fnGetDeviceInfo
	fnCreateSubDevices
	fnReleaseDevice
	fnCreateContext
	fnReleaseContext
	fnCreateCommandQueue
	fnReleaseCommandQueue
	fnCreateBuffer
	fnCreateImage
	fnReleaseMemObject
	fnCreateProgramWithSource
	fnCreateProgramWithBinary
	fnBuildProgram
	fnGetProgramBuildInfo
	fnGetProgramInfo
	fnReleaseProgram
	fnCreateKernel
	fnReleaseKernel
	fnSetKernelArg
	fnGetKernelInfo
	fnGetKernelWorkGroupInfo
	fnEnqueueNDRangeKernel
	fnEnqueueReadBuffer
	fnEnqueueReadBufferRect
	fnEnqueueWriteBuffer
	fnEnqueueWriteBufferRect
	fnEnqueueMapBuffer
	fnEnqueueUnmapMemObject
	fnEnqueueMarker
	fnFlush
	fnFinish
	fnWaitForEvents
	fnGetEventInfo
	fnReleaseEvent
	functions
)

// symbols are the exported names, by function.
var symbols = [functions]string{
	fnGetPlatformIDs: "clGetPlatformIDs", fnGetPlatformInfo: "clGetPlatformInfo", fnGetDeviceIDs: "clGetDeviceIDs",
	fnGetDeviceInfo: "clGetDeviceInfo", fnCreateSubDevices: "clCreateSubDevices", fnReleaseDevice: "clReleaseDevice",
	fnCreateContext: "clCreateContext", fnReleaseContext: "clReleaseContext",
	fnCreateCommandQueue: "clCreateCommandQueue", fnReleaseCommandQueue: "clReleaseCommandQueue",
	fnCreateBuffer: "clCreateBuffer", fnCreateImage: "clCreateImage", fnReleaseMemObject: "clReleaseMemObject",
	fnCreateProgramWithSource: "clCreateProgramWithSource", fnCreateProgramWithBinary: "clCreateProgramWithBinary",
	fnBuildProgram: "clBuildProgram", fnGetProgramBuildInfo: "clGetProgramBuildInfo",
	fnGetProgramInfo: "clGetProgramInfo", fnReleaseProgram: "clReleaseProgram", fnCreateKernel: "clCreateKernel",
	fnReleaseKernel: "clReleaseKernel", fnSetKernelArg: "clSetKernelArg", fnGetKernelInfo: "clGetKernelInfo",
	fnGetKernelWorkGroupInfo: "clGetKernelWorkGroupInfo", fnEnqueueNDRangeKernel: "clEnqueueNDRangeKernel",
	fnEnqueueReadBuffer: "clEnqueueReadBuffer", fnEnqueueReadBufferRect: "clEnqueueReadBufferRect",
	fnEnqueueWriteBuffer: "clEnqueueWriteBuffer", fnEnqueueWriteBufferRect: "clEnqueueWriteBufferRect",
	fnEnqueueMapBuffer: "clEnqueueMapBuffer", fnEnqueueUnmapMemObject: "clEnqueueUnmapMemObject",
	fnEnqueueMarker: "clEnqueueMarkerWithWaitList", fnFlush: "clFlush", fnFinish: "clFinish",
	fnWaitForEvents: "clWaitForEvents", fnGetEventInfo: "clGetEventInfo",
	fnReleaseEvent: "clReleaseEvent",
}

// Param names a property of a device that Text and Number read.
type Param uintptr

// Properties of devices, from the header cl.h.
const (
	DeviceType          Param = 0x1000
	DeviceComputeUnits  Param = 0x1002
	DeviceMaxWorkGroup  Param = 0x1004
	DeviceMaxClock      Param = 0x100C // MHz
	DeviceMaxAlloc      Param = 0x1010 // bytes of one buffer
	DeviceImages        Param = 0x1016
	DeviceGlobalMemory  Param = 0x101F // bytes
	DeviceLocalType     Param = 0x1022
	DeviceLocalMemory   Param = 0x1023 // bytes
	DeviceEndianLittle  Param = 0x1026
	DeviceAvailable     Param = 0x1027
	DeviceCompiler      Param = 0x1028
	DeviceName          Param = 0x102B
	DeviceDriverVersion Param = 0x102D
	DeviceVersion       Param = 0x102F
	DeviceExtensions    Param = 0x1030
	DeviceImageBuffer   Param = 0x1040 // texels of an image over a buffer
	DeviceMaxSubDevices Param = 0x1043
	DeviceMaxSubGroups  Param = 0x105C
	platformName        Param = 0x0902
	platformVersion     Param = 0x0901
	programBinarySizes        = 0x1165
	programBinaries           = 0x1166
	programBuildLog           = 0x1183
	kernelArguments           = 0x1191
	kernelWorkGroup           = 0x11B0
	eventStatus               = 0x11D3
	deviceAll                 = 0xFFFFFFFF
	mapRead                   = 1
	mapWrite                  = 2
	imageOverBuffer           = 0x10F6
	partitionByCounts         = 0x1087
	channelR                  = 0x10B0
	channelUint32             = 0x10DC
)

// Values of DeviceType and DeviceLocalType.
const (
	TypeCPU         = 1 << 1
	TypeAccelerator = 1 << 3
	LocalDedicated  = 1 // local memory is memory of its own, not a part of the global one
)

// Flags of buffers.
const (
	ReadWrite = 1 << 0
	ReadOnly  = 1 << 2
	UseHost   = 1 << 3 // the buffer is memory of the caller, or a copy of it that is kept in step by mapping
	AllocHost = 1 << 4 // the buffer can be mapped without a copy
)

// Codes that say that there is none of what was asked for.
const (
	deviceNotFound   = -1
	platformNotFound = -1001
)

// codes are the names of error codes in cl.h.
var codes = map[int32]string{
	-1: "DEVICE_NOT_FOUND", -2: "DEVICE_NOT_AVAILABLE", -3: "COMPILER_NOT_AVAILABLE",
	-4: "MEM_OBJECT_ALLOCATION_FAILURE", -5: "OUT_OF_RESOURCES", -6: "OUT_OF_HOST_MEMORY",
	-7: "PROFILING_INFO_NOT_AVAILABLE", -11: "BUILD_PROGRAM_FAILURE", -13: "MISALIGNED_SUB_BUFFER_OFFSET",
	-14: "EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST", -15: "COMPILE_PROGRAM_FAILURE", -18: "DEVICE_PARTITION_FAILED",
	-30: "INVALID_VALUE", -31: "INVALID_DEVICE_TYPE", -32: "INVALID_PLATFORM", -33: "INVALID_DEVICE",
	-34: "INVALID_CONTEXT", -36: "INVALID_COMMAND_QUEUE", -37: "INVALID_HOST_PTR", -38: "INVALID_MEM_OBJECT",
	-42: "INVALID_BINARY", -43: "INVALID_BUILD_OPTIONS", -44: "INVALID_PROGRAM", -45: "INVALID_PROGRAM_EXECUTABLE",
	-46: "INVALID_KERNEL_NAME", -48: "INVALID_KERNEL", -49: "INVALID_ARG_INDEX", -50: "INVALID_ARG_VALUE",
	-51: "INVALID_ARG_SIZE", -52: "INVALID_KERNEL_ARGS", -53: "INVALID_WORK_DIMENSION",
	-54: "INVALID_WORK_GROUP_SIZE", -55: "INVALID_WORK_ITEM_SIZE", -56: "INVALID_GLOBAL_OFFSET", -58: "INVALID_EVENT",
	-59: "INVALID_OPERATION", -61: "INVALID_BUFFER_SIZE", -63: "INVALID_GLOBAL_WORK_SIZE",
	-68: "INVALID_DEVICE_PARTITION_COUNT", -1001: "PLATFORM_NOT_FOUND",
}
