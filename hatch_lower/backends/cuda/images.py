"""The images of a partition's kernels, and the C++ that chooses an image for the GPU.

The driver loads machine code of one architecture, or PTX, which it compiles. The wrapper hands the start of a symbol to
the driver: here the symbol is a table, and the wrapper looks up the image for the current GPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from hatch_lower.backends.aoti.record import GeneratedCode
from hatch_lower.backends.cuda.cubins import EXACT, PTX, SAME_MAJOR, Image, pack_images
from hatch_lower.backends.cuda.texts import SECTION, pack_texts
from hatch_lower.errors import BackendError
from hatch_lower.runtime.torch_private.gpu_stand_ins import TritonKernel

LOAD = "cuModuleLoadData(&mod, start)"
START = re.compile(r"\b__(\w+)_start\b")

# the check of a result's sizes and strides, which inductor's code does only if a variable of the environment is set
CHECK = re.compile(
    r'if \(_check_aoti_runtime_check_inputs_env\(\)\) \{ (assert_size_stride\(.*"torch\.ops\.[\w.]+"\);) \}'
)

CHOICE = r"""
#include <cstdint>
#include <stdexcept>
#include <string>
#include <cuda.h>

namespace {
struct HatchLowerImage { uint16_t major; uint16_t minor; uint32_t kind; uint32_t offset; uint32_t length; };

// Return the machine code for the current GPU: of the highest architecture that the GPU executes, or else the PTX.
const void* hatch_lower_image(const void* table) {
    CUdevice device;
    int major = 0, minor = 0;
    if (cuCtxGetDevice(&device) != CUDA_SUCCESS ||
        cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) != CUDA_SUCCESS ||
        cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device) != CUDA_SUCCESS)
        throw std::runtime_error("the compute capability of the GPU cannot be read");
    auto bytes = static_cast<const char*>(table);
    auto count = reinterpret_cast<const uint32_t*>(bytes)[2];
    auto images = reinterpret_cast<const HatchLowerImage*>(bytes + 16);
    const HatchLowerImage* best = nullptr;
    for (uint32_t index = 0; index < count; index++) {
        auto& image = images[index];
        bool fits = image.kind == 2 ? image.major < major || (image.major == major && image.minor <= minor)
                                    : image.major == major && (image.kind == 1 ? image.minor == minor
                                                                               : image.minor <= minor);
        if (!fits) continue;
        bool is_better = best == nullptr || (image.kind != 2 && (best->kind == 2 || image.minor > best->minor));
        if (is_better) best = &image;
    }
    if (best == nullptr)
        throw std::runtime_error("no kernel for compute capability " + std::to_string(major) + "." +
                                 std::to_string(minor));
    return bytes + best->offset;
}
}

"""


def images_of(kernel: TritonKernel) -> list[Image]:
    """Return machine code for each architecture, and the PTX of the oldest, which later GPUs compile."""
    images = [
        Image(*divmod(capability, 10), EXACT if kernel.targets[capability].endswith("a") else SAME_MAJOR, cubin)
        for capability, cubin in sorted(kernel.cubins.items())
    ]
    oldest = min(kernel.ptx)
    if images[0].kind == SAME_MAJOR:  # PTX of an exact architecture runs nowhere else
        images.append(Image(*divmod(oldest, 10), PTX, kernel.ptx[oldest].encode() + b"\0"))
    return images


def with_images(generated: GeneratedCode, kernels: Sequence[TritonKernel]) -> GeneratedCode:
    """Return the code with the tables of its kernels, and with the choice of an image in front of each load.

    Each result of libtorch is checked: kernels read the memory in the layout that inductor expects.
    """
    generated = replace(generated, wrapper=CHECK.sub(r"\1", generated.wrapper))
    packed = {kernel.name: pack_images(images_of(kernel), kernel.shared) for kernel in kernels}
    used = set(START.findall(generated.wrapper))
    loads = generated.wrapper.count(LOAD)
    if not used <= packed.keys() or loads > 1 or (used and not loads):
        raise BackendError(
            "the code that inductor generates loads kernels in another way",
            found=f"{loads} loads; kernels {sorted(used - packed.keys())} are missing",
            hint="install a torch that docs/versions.md names for the backend `cuda`",
        )
    binaries: dict[str, bytes] = {f"__{name}_start": packed[name] for name in sorted(used)}
    if used:
        binaries[SECTION] = pack_texts([kernel for kernel in kernels if kernel.name in used])
    wrapper = generated.wrapper.replace(LOAD, "cuModuleLoadData(&mod, hatch_lower_image(start))")
    return replace(generated, wrapper=CHOICE + wrapper if loads else wrapper, binaries=binaries)
