// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The free operations of plait/ops.h on the CPU. Shapes, dtypes and devices were checked by the
// caller; indices are checked here, before anything is written.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/convert.h"
#include "core/device/state.h"
#include "cpu/cpu_backend.h"
#include "cpu/kernel_table.h"
#include "cpu/merge_rows.h"
#include "cpu/rope_table.h"
#include "cpu/thread_pool.h"

namespace plait::cpu {
namespace {

template <class T>
T& at(const Tensor& t, std::int64_t i) {
  return static_cast<T*>(t.data)[i * t.strides[0]];
}
float& lse_at(const Tensor& t, std::int64_t row, std::int64_t head) {
  return static_cast<float*>(t.data)[row * t.strides[0] + head * t.strides[1]];
}
char* row_at(const Tensor& t, std::int64_t row, std::int64_t head) {
  return static_cast<char*>(t.data) + (row * t.strides[0] + head * t.strides[1]) * size_of(t.dtype);
}

class CpuOperations final : public Operations {
 public:
  explicit CpuOperations(const EngineOptions& options)
      : kernels_(kernels()), pool_(ThreadPool::shared(thread_count(options.num_threads))) {}

  void merge_state(const Tensor& o_a, const Tensor& lse_a, const Tensor& o_b, const Tensor& lse_b,
                   const Tensor& o, const Tensor& lse, const Tensor& mask, Stream) override {
    const std::int64_t heads = o_a.shape[1];
    const int dim = static_cast<int>(o_a.shape[2]);
    for_rows(o_a.shape[0], heads * dim, dim, [&](std::int64_t row, Buffers buffers) {
      const bool keep = mask.defined() && at<std::uint8_t>(mask, row) == 0;
      for (std::int64_t h = 0; h < heads; ++h) {
        float* a = load(o_a, row_at(o_a, row, h), dim, buffers.a);
        float result = lse_at(lse_a, row, h);
        if (!keep) {
          merge_pair<false>(kernels_, dim, a, result,
                            load(o_b, row_at(o_b, row, h), dim, buffers.b), lse_at(lse_b, row, h));
        }
        store(o, row_at(o, row, h), dim, a);
        lse_at(lse, row, h) = result;
      }
    });
  }

  void merge_states(const Tensor& o_states, const Tensor& lse_states, const Tensor& o,
                    const Tensor& lse, Stream) override {
    const std::int64_t states = o_states.shape[1];
    const std::int64_t heads = o_states.shape[2];
    const int dim = static_cast<int>(o_states.shape[3]);
    for_rows(o_states.shape[0], states * heads * dim, dim, [&](std::int64_t row, Buffers buffers) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const auto lse_of = [&](std::int64_t i) {
          return static_cast<const float*>(
              lse_states.data)[row * lse_states.strides[0] + i * lse_states.strides[1] +
                               h * lse_states.strides[2]];
        };
        const auto row_of = [&](std::int64_t i) {
          const auto* source =
              static_cast<const char*>(o_states.data) +
              (row * o_states.strides[0] + i * o_states.strides[1] + h * o_states.strides[2]) *
                  size_of(o_states.dtype);
          return load(o_states, source, dim, buffers.b);
        };
        const float result =
            merge_many(kernels_, dim, states, lse_of, row_of, buffers.a, buffers.c);
        store(o, row_at(o, row, h), dim, buffers.a);
        lse_at(lse, row, h) = result;
      }
    });
  }

  void finalize_state(const Tensor& o_state, const Tensor& lse_state, const Tensor& sink,
                      const Tensor& o, Stream) override {
    const std::int64_t heads = o_state.shape[1];
    const int dim = static_cast<int>(o_state.shape[2]);
    for_rows(o_state.shape[0], heads * dim, dim, [&](std::int64_t row, Buffers buffers) {
      for (std::int64_t h = 0; h < heads; ++h) {
        float* a = load(o_state, row_at(o_state, row, h), dim, buffers.a);
        const float lse = lse_at(lse_state, row, h);
        if (lse == device::neg_inf()) {
          std::fill(a, a + dim, 0.0F);
        } else if (sink.defined()) {
          const float factor = device::sink_factor<HostMath>(lse, at<float>(sink, h));
          if (factor != 1.0F) kernels_.scale_row(a, factor, dim, a);
        }
        store(o, row_at(o, row, h), dim, a);
      }
    });
  }

  void append_paged_kv(const Tensor& k, const Tensor& v, const Tensor& batch_indices,
                       const Tensor& positions, const Tensor& page_indptr, const Tensor& page_ids,
                       const Tensor& k_cache, const Tensor& v_cache, KvLayout layout, float k_scale,
                       float v_scale, Stream) override {
    const std::size_t token_axis = layout == KvLayout::kNhd ? 1 : 2;
    const std::size_t head_axis = layout == KvLayout::kNhd ? 2 : 1;
    const std::int64_t page_size = k_cache.shape[token_axis];
    const std::int64_t heads = k.shape[1];
    std::vector<std::int64_t> pages(static_cast<std::size_t>(k.shape[0]), -1);
    for (std::int64_t t = 0; t < k.shape[0]; ++t) {
      pages[static_cast<std::size_t>(t)] =
          page_of(t, batch_indices, positions, page_indptr, page_ids, page_size, k_cache.shape[0]);
    }
    const auto write = [&](const Tensor& source, const Tensor& cache, std::int64_t token,
                           std::int64_t head, float scale, Buffers buffers) {
      const int dim = static_cast<int>(source.shape[2]);
      const std::int64_t offset =
          pages[static_cast<std::size_t>(token)] * cache.strides[0] +
          at<std::int32_t>(positions, token) % page_size * cache.strides[token_axis] +
          head * cache.strides[head_axis];
      char* target = static_cast<char*>(cache.data) + offset * size_of(cache.dtype);
      const char* row = row_at(source, token, head);
      if (source.dtype == cache.dtype && scale == 1.0F) {
        std::copy(row, row + dim * size_of(cache.dtype), target);
        return;
      }
      float* values = load(source, row, dim, buffers.a);
      // The quotient rounds to f32 first, as on a GPU: both write the same bits.
      if (scale != 1.0F) {
        for (int i = 0; i < dim; ++i) values[i] /= scale;
      }
      store(cache, target, dim, values);
    };
    const int widest = static_cast<int>(std::max(k.shape[2], v.shape[2]));
    for_rows(k.shape[0], heads * (k.shape[2] + v.shape[2]), widest,
             [&](std::int64_t token, Buffers buffers) {
               if (pages[static_cast<std::size_t>(token)] < 0) return;
               for (std::int64_t h = 0; h < heads; ++h) {
                 write(k, k_cache, token, h, k_scale, buffers);
                 write(v, v_cache, token, h, v_scale, buffers);
               }
             });
  }

  void apply_rope(const Tensor& x, const Tensor& positions, const RopeSpec& rope, const Tensor& out,
                  Stream) override {
    const std::int64_t heads = x.shape[1];
    const int dim = static_cast<int>(x.shape[2]);
    const std::shared_ptr<const RopeTable> kept = table_for(rope, dim);
    const RopeTable& table = *kept;
    for_rows(x.shape[0], heads * dim, dim, [&](std::int64_t token, Buffers buffers) {
      float* cos = buffers.b;
      float* sin = cos + table.half();
      table.angles(kernels_, at<std::int32_t>(positions, token), cos, sin);
      for (std::int64_t h = 0; h < heads; ++h) {
        float* row = load(x, row_at(x, token, h), dim, buffers.a);
        table.rotate_by(kernels_, cos, sin, row);
        store(out, row_at(out, token, h), dim, row);
      }
    });
  }

 private:
  /// The layers of a model rotate alike, and making a table takes longer than rotating a decode
  /// batch: the last few are kept.
  std::shared_ptr<const RopeTable> table_for(const RopeSpec& rope, int dim) {
    const std::scoped_lock lock(tables_mutex_);
    for (const KeptTable& kept : tables_) {
      if (kept.rope == rope && kept.dim == dim) return kept.table;
    }
    if (tables_.size() == kKeptTables) tables_.pop_front();
    tables_.push_back(
        {rope, dim, std::make_shared<const RopeTable>(rope, dim, kTabulatedPositions)});
    return tables_.back().table;
  }

  /// Rows of a thread's own.
  struct Buffers {
    float* a;
    float* b;
    float* c;
  };
  static constexpr std::size_t kBuffers = 3;

  /// Rows are read and written in whole vectors.
  std::size_t padded(int dim) const {
    return static_cast<std::size_t>((dim + kernels_.lanes - 1) / kernels_.lanes * kernels_.lanes);
  }

  float* load(const Tensor& t, const void* row, int dim, float* buffer) const {
    kernels_.load_rows[static_cast<int>(t.dtype)](&row, 1, dim, buffer, 0);
    return buffer;
  }
  void store(const Tensor& t, void* row, int dim, const float* values) const {
    kernels_.store_row[static_cast<int>(t.dtype)](values, dim, row);
  }

  static std::int64_t page_of(std::int64_t token, const Tensor& batch_indices,
                              const Tensor& positions, const Tensor& page_indptr,
                              const Tensor& page_ids, std::int64_t page_size,
                              std::int64_t num_pages) {
    const std::int32_t request = at<std::int32_t>(batch_indices, token);
    if (request == -1) return -1;
    const auto refuse = [token](const char* field, std::int64_t value,
                                const std::string& expected) {
      throw Error(ErrorCode::kInvalidArgument,
                  std::string(field) + "[" + std::to_string(token) + "]", std::to_string(value),
                  expected);
    };
    const std::int64_t requests = page_indptr.shape[0] - 1;
    if (request < 0 || request >= requests) {
      refuse("batch_indices", request, "-1 or a request in [0, " + std::to_string(requests) + ")");
    }
    const std::int64_t first = at<std::int32_t>(page_indptr, request);
    const std::int64_t last = at<std::int32_t>(page_indptr, request + 1);
    const std::int32_t position = at<std::int32_t>(positions, token);
    const std::int64_t entry = first + position / page_size;
    if (first < 0 || last > page_ids.shape[0] || position < 0 || entry >= last) {
      refuse("positions", position,
             "a position within the " + std::to_string(last - first) + " pages of request " +
                 std::to_string(request));
    }
    const std::int32_t page = at<std::int32_t>(page_ids, entry);
    if (page < 0 || page >= num_pages) {
      refuse("page_ids", page, "a page in [0, " + std::to_string(num_pages) + ")");
    }
    return page;
  }

  /// Calls work(row, buffers) for every row of at most `dim` elements, on the pool if there is
  /// enough to do. The buffers are made here: a pool's thread could tell nobody that there is no
  /// memory.
  template <class Work>
  void for_rows(std::int64_t rows, std::int64_t elements_per_row, int dim, const Work& work) {
    constexpr std::int64_t kWorthThreads = 1 << 15;
    const int threads = rows * elements_per_row < kWorthThreads ? 1 : pool_->size();
    constexpr std::size_t kCacheLine = 64 / sizeof(float);
    const std::size_t width = padded(dim) + kCacheLine;  // threads share none
    std::vector<float> memory(kBuffers * width * static_cast<std::size_t>(threads));
    struct Job {
      std::int64_t rows;
      std::int64_t at_once;
      std::size_t width;
      float* memory;
      const Work* work;
      std::atomic<std::int64_t> next{0};
    } job{rows, std::max<std::int64_t>(1, rows / (4 * threads)), width, memory.data(), &work};
    const auto take_rows = [](void* context, int thread) {
      Job& j = *static_cast<Job*>(context);
      float* own = j.memory + kBuffers * j.width * static_cast<std::size_t>(thread);
      for (;;) {
        const std::int64_t begin = j.next.fetch_add(j.at_once, std::memory_order_relaxed);
        if (begin >= j.rows) return;
        for (std::int64_t row = begin; row < std::min(begin + j.at_once, j.rows); ++row) {
          (*j.work)(row, Buffers{own, own + j.width, own + 2 * j.width});
        }
      }
    };
    if (threads == 1) {
      take_rows(&job, 0);
    } else {
      pool_->share(take_rows, &job);
    }
  }

  struct KeptTable {
    RopeSpec rope;
    int dim;
    std::shared_ptr<const RopeTable> table;
  };
  static constexpr std::size_t kKeptTables = 8;
  static constexpr std::int64_t kTabulatedPositions = 1 << 17;  // later ones are computed

  const KernelTable& kernels_;
  std::shared_ptr<ThreadPool> pool_;
  std::mutex tables_mutex_;
  std::deque<KeptTable> tables_;
};

}  // namespace
}  // namespace plait::cpu

namespace plait {

std::unique_ptr<Operations> make_cpu_operations(const EngineOptions& options) {
  return std::make_unique<cpu::CpuOperations>(options);
}

}  // namespace plait
