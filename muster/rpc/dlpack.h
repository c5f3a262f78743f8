// DLPack in and out: tensors of PyTorch, NumPy, JAX and others, without a copy.
//
// DLPack says nothing about who may write. What comes in is taken as read-only here; what goes out
// shares the memory of the Tensor, and whoever gets it must not write to memory that is borrowed or
// was received unless it knows better.
#pragma once

#include "muster/base/error.h"
#include "muster/rpc/tensor.h"

#include <dlpack/dlpack.h>

#include <memory>

namespace muster::rpc {

// Takes ownership, also when it fails. The deleter is called exactly once, when the last user of
// the memory is gone, by whichever thread that is. Refused: what a Tensor cannot be (negative
// strides, vector types, types that DType lacks). Memory of other devices is described, not read.
Result<Tensor> from_dlpack(DLManagedTensor* managed);

struct DlpackDeleter {
  void operator()(DLManagedTensor* managed) const {
    if (managed->deleter != nullptr) managed->deleter(managed);
  }
};
using DlpackTensor = std::unique_ptr<DLManagedTensor, DlpackDeleter>;

// Shares the memory of `tensor` until its deleter is called, by any thread; `release()` passes that
// duty on. Invalid for a Tensor that is not defined. Bools have DLPack's code for them, which came
// with its version 0.8; `tensor.viewed_as(DType::U8)` is for whoever does not know it.
Result<DlpackTensor> to_dlpack(const Tensor& tensor);

}  // namespace muster::rpc
