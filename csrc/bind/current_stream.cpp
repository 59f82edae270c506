// The one thing of torch's CUDA half that an op needs. It is looked for at the first call, so that
// one build of the extension also imports where torch has no such half.
#include <dlfcn.h>

#include "door.h"

extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device,
                                                                                   void** stream);

namespace specfast::bind {
namespace {

using GetStream = AOTITorchError (*)(int32_t device, void** stream);

GetStream find_get_stream() {
  if (aoti_torch_get_current_cuda_stream) return aoti_torch_get_current_cuda_stream;
  // Loaded by torch, but not in this library's scope.
  void* torch_cuda = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  if (!torch_cuda) return nullptr;
  return reinterpret_cast<GetStream>(dlsym(torch_cuda, "aoti_torch_get_current_cuda_stream"));
}

}  // namespace

cuda::Stream current_stream(int32_t device) {
  static const GetStream get_stream = find_get_stream();
  STD_TORCH_CHECK(get_stream, "this torch is a CPU build: it has no CUDA streams");
  cuda::Stream stream = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(get_stream(device, &stream));
  return stream;
}

}  // namespace specfast::bind
