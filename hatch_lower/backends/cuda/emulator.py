"""A stand-in for a GPU on the CPU: C++ for the functions of CUDA and of libtorch's CUDA half that a library calls.

Memory is the CPU's, a call of libtorch is the same call of libtorch's CPU half, and the launch of a kernel is a call of
a given function. The library itself is executed as packaged, without its machine code for GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hatch_lower.runtime.torch_private.handles import calls_of_libtorch

NAME = re.compile(r"(\w+)$")
# The driver, its runtime and libtorch's guards. A module is its image, and a function a number that Python chooses.
SOURCE = r"""
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

typedef void* AtenTensorHandle;
typedef void* AtenGeneratorHandle;
typedef int32_t AOTITorchError;
#define CALLED extern "C" __attribute__((visibility("default")))

extern "C" AOTITorchError aoti_torch_get_storage_size(AtenTensorHandle, int64_t*);
extern "C" AOTITorchError aoti_torch_get_storage_offset(AtenTensorHandle, int64_t*);
extern "C" AOTITorchError aoti_torch_get_dtype(AtenTensorHandle, int32_t*);
extern "C" size_t aoti_torch_dtype_element_size(int32_t);
extern "C" int32_t aoti_torch_device_type_cpu();

CALLED int (*hatch_lower_find)(const void* image, const char* name, int64_t* found) = nullptr;
CALLED int (*hatch_lower_launch)(int64_t kernel, const uint32_t* sizes, void** parameters) = nullptr;
CALLED int (*hatch_lower_data)(AtenTensorHandle, void**) = nullptr;
CALLED int hatch_lower_capability = 0;

// the memory of the arrays whose addresses the library has asked for
static std::mutex guard;
static std::unordered_map<void*, std::pair<uint64_t, uint64_t>> extents;

CALLED AOTITorchError aoti_torch_get_data_ptr(AtenTensorHandle tensor, void** result) {
    int64_t bytes = 0, offset = 0;
    int32_t dtype = 0;
    if (hatch_lower_data(tensor, result) || aoti_torch_get_storage_size(tensor, &bytes) ||
        aoti_torch_get_storage_offset(tensor, &offset) || aoti_torch_get_dtype(tensor, &dtype))
        return 1;
    auto first = reinterpret_cast<uint64_t>(*result) - offset * aoti_torch_dtype_element_size(dtype);
    std::lock_guard<std::mutex> lock(guard);
    extents[*result] = {first, first + bytes};
    return 0;
}

CALLED void hatch_lower_extent(void* address, uint64_t* first, uint64_t* end) {
    std::lock_guard<std::mutex> lock(guard);
    auto found = extents.find(address);
    *first = found == extents.end() ? 0 : found->second.first;
    *end = found == extents.end() ? 0 : found->second.second;
}

CALLED int32_t aoti_torch_device_type_cuda() { return aoti_torch_device_type_cpu(); }
CALLED AOTITorchError aoti_torch_create_cuda_stream_guard(void*, int32_t, void** result) {
    *result = &extents;
    return 0;
}
CALLED AOTITorchError aoti_torch_delete_cuda_stream_guard(void*) { return 0; }
CALLED AOTITorchError aoti_torch_create_cuda_guard(int32_t, void** result) {
    *result = &extents;
    return 0;
}
CALLED AOTITorchError aoti_torch_delete_cuda_guard(void*) { return 0; }
CALLED AOTITorchError aoti_torch_cuda_guard_set_index(void*, int32_t) { return 0; }
CALLED AOTITorchError aoti_torch_get_current_cuda_stream(int32_t, void** result) {
    *result = nullptr;
    return 0;
}

CALLED int cuCtxGetDevice(int* device) { *device = 0; return 0; }
CALLED int cuDeviceGetAttribute(int* value, int attribute, int) {
    // the compute capability, or the shared memory that a block can have
    *value = attribute == 75 ? hatch_lower_capability / 10 : attribute == 76 ? hatch_lower_capability % 10 : 1 << 30;
    return 0;
}
CALLED int cuModuleLoadData(const void** module, const void* image) { *module = image; return 0; }
CALLED int cuModuleUnload(const void*) { return 0; }
CALLED int cuModuleGetFunction(int64_t* kernel, const void* module, const char* name) {
    return hatch_lower_find(module, name, kernel);
}
CALLED int cuFuncSetAttribute(int64_t, int, int) { return 0; }
CALLED int cuGetErrorString(int, const char** text) { *text = "the kernel cannot be interpreted"; return 0; }
CALLED int cuLaunchKernel(
    int64_t kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
    void*, void** parameters, void**
) {
    const uint32_t sizes[] = {gx, gy, gz, bx, by, bz, shared};
    return hatch_lower_launch(kernel, sizes, parameters);
}

CALLED int cudaGetDevice(int* device) { *device = 0; return 0; }
CALLED int cudaSetDevice(int) { return 0; }
CALLED int cudaGetLastError() { return 0; }
CALLED const char* cudaGetErrorString(int) { return "no GPU is there"; }
CALLED int cudaEventCreate(void** event) { *event = &extents; return 0; }
CALLED int cudaEventDestroy(void*) { return 0; }
CALLED int cudaEventQuery(void*) { return 0; }
CALLED int cudaEventRecord(void*, void*) { return 0; }
CALLED int cudaEventSynchronize(void*) { return 0; }
CALLED int cudaStreamSynchronize(void*) { return 0; }
CALLED int cudaDeviceSynchronize() { return 0; }
CALLED int cudaMalloc(void** address, size_t bytes) { return (*address = std::malloc(bytes)) ? 0 : 2; }
CALLED int cudaFree(void* address) { std::free(address); return 0; }
CALLED int cudaMemcpy(void* target, const void* source, size_t bytes, int) {
    std::memcpy(target, source, bytes);
    return 0;
}
CALLED int cudaMemcpyAsync(void* target, const void* source, size_t bytes, int, void*) {
    std::memcpy(target, source, bytes);
    return 0;
}
CALLED int cudaMemset(void* target, int value, size_t bytes) { std::memset(target, value, bytes); return 0; }
CALLED int cudaMemsetAsync(void* target, int value, size_t bytes, void*) {
    std::memset(target, value, bytes);
    return 0;
}
"""
# Attention, which libtorch's CPU half lacks, is computed by Python; a convolution's result is copied into the layout
# that it has on a GPU.
FLASH = "_scaled_dot_product_flash_attention"
EFFICIENT = "_scaled_dot_product_efficient_attention"
ATTENTION = r"""
CALLED AtenTensorHandle (*hatch_lower_attention)(
    AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, AtenTensorHandle bias, double dropout,
    int32_t is_causal, double* scale) = nullptr;
CALLED AtenTensorHandle (*hatch_lower_empty)() = nullptr;
CALLED AtenTensorHandle (*hatch_lower_arrange)(
    AtenTensorHandle image, AtenTensorHandle weight, AtenTensorHandle result) = nullptr;
"""
CONVOLUTION = "convolution"
CALLS: Mapping[str, str] = {
    FLASH: """{
    *ret0 = hatch_lower_attention(query, key, value, nullptr, dropout_p, is_causal, scale);
    for (auto place : {ret1, ret2, ret3, ret6, ret7, ret8}) if (place) *place = hatch_lower_empty();
    for (auto place : {ret4, ret5}) if (place) *place = 0;
    return *ret0 == nullptr;
}""",
    EFFICIENT: """{
    *ret0 = hatch_lower_attention(
        query, key, value, attn_bias ? *attn_bias : nullptr, dropout_p, is_causal, scale);
    for (auto place : {ret1, ret2, ret3}) if (place) *place = hatch_lower_empty();
    return *ret0 == nullptr;
}""",
    CONVOLUTION: """{
    AtenTensorHandle result = nullptr;
    if (aoti_torch_cpu_convolution(
            input, weight, bias, stride, stride_len_, padding, padding_len_, dilation, dilation_len_, transposed,
            output_padding, output_padding_len_, groups, &result))
        return 1;
    *ret0 = hatch_lower_arrange(input, weight, result);
    return *ret0 == nullptr;
}""",
}


def write_emulator() -> str:
    """Return the emulator's C++: a library that calls another function of libtorch's CUDA half cannot be opened."""
    given, own = calls_of_libtorch("cuda"), calls_of_libtorch("cpu")
    defined = [SOURCE, ATTENTION]
    for name, parameters in sorted(given.items()):
        head = f"CALLED AOTITorchError aoti_torch_cuda_{name}({parameters})"
        if name in own:
            defined.append(f'extern "C" AOTITorchError aoti_torch_cpu_{name}({own[name]});\n')
        if name in CALLS:
            defined.append(f"{head} {CALLS[name]}\n")
        elif own.get(name) == parameters:
            passed = [NAME.search(parameter) for parameter in parameters.split(",")]
            words = ", ".join(found[1] for found in passed if found is not None)
            defined.append(f"{head} {{ return aoti_torch_cpu_{name}({words}); }}\n")
    return "".join(defined)
