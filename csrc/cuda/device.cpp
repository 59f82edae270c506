// What the CUDA kernels of this build need of a machine.
#include <cuda_runtime.h>

#include <sstream>
#include <stdexcept>

#include "kernels.h"

namespace specfast::cuda {
namespace {

// Code runs on its own major version from its minor on, PTX on everything later.
bool fits(const std::string& image, int capability) {
  int built_for = std::stoi(image.substr(image.find('_') + 1));
  bool ptx = image.rfind("compute_", 0) == 0;
  return built_for <= capability && (ptx || built_for / 10 == capability / 10);
}

int attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  if (cudaGetDevice(&device) == cudaSuccess) cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

}  // namespace

const char* built_images() { return SPECFAST_CUDA_IMAGES; }

int toolkit_version() { return CUDART_VERSION; }

int driver_version() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

std::string misfit(int major, int minor) {
  std::istringstream images(built_images());
  for (std::string image; images >> image;)
    if (fits(image, major * 10 + minor)) return "";
  return "no kernel image fits compute capability " + std::to_string(major) + "." +
         std::to_string(minor) + "; built are " + built_images();
}

void launch_failed(const char* kernel, int error) {
  int major = attribute(cudaDevAttrComputeCapabilityMajor);
  int minor = attribute(cudaDevAttrComputeCapabilityMinor);
  std::string why = major ? misfit(major, minor) : "";
  if (why.empty()) why = cudaGetErrorString(static_cast<cudaError_t>(error));
  throw std::runtime_error(std::string(kernel) + ": " + why);
}

}  // namespace specfast::cuda
