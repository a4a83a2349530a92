// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/executor.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "cuda/graph_lifetime.h"
#include "cuda/jit/generate.h"
#include "cuda/operands.h"
#include "cuda/rope_table.h"
#include "cuda/setup_scope.h"
#include "cuda/stream_checks.h"
#include "plait/error.h"
#include "plan/plan_words.h"

namespace plait::cuda {
namespace {

CuStream handle_of(Stream stream) noexcept { return static_cast<CuStream>(stream.handle); }

/// Checked mode waits for what runs read, which a capture forbids.
void refuse_checked_capture(const Driver& driver, CuStream stream) {
  refuse_capture(driver, stream, "run.stream", "one that is not, in checked mode");
}

/// A last arriver with so much more to merge than its share would merge alone, while the others are
/// done, for longer than a launch takes that deals the merges to all (docs/perf-log.md): 128 rows
/// of two states, 2816, are some 20 us of eight warps, which see a row's memory latency 16 times.
constexpr std::int64_t kUnevenArrival = 1000;

/// Bytes of counters that an upload copies as zeros before the plan, 3 us of the stream at most. A
/// memset costs the stream 2 to 4 us and the host 1 to 4 (docs/perf-log.md).
constexpr std::int64_t kMostZerosInCopy = 64 * 1024;

/// From which compute capability on grids of a stream may overlap.
constexpr int kOverlappingCapability = 90;

/// Enough for 32 layers with eight sets of tile classes, operands or page counts each; 30 MiB of
/// device memory.
constexpr std::int32_t kDefaultRunGraphs = 256;

std::int32_t most_run_graphs(const DeviceContext& context, const EngineOptions& options) {
  // A graph whose grids cannot overlap takes the device longer than launches.
  const bool possible = context.facts().compute_capability < kOverlappingCapability ||
                        context.driver().graph_add_dependencies != nullptr;
  return possible ? options.run_graphs.value_or(kDefaultRunGraphs) : 0;
}

int largest_class_count(std::span<const PlanTarget> targets) {
  int count = 1;
  for (const PlanTarget& target : targets) count = std::max(count, target.num_classes);
  return count;
}

}  // namespace

CudaExecutor::CudaExecutor(const FamilyHooks& family, std::shared_ptr<DeviceContext> context,
                           KernelCache& kernels, const ExecutorRequest& request)
    : family_(family),
      state_(std::make_shared<State>()),
      bounds_(request.bounds),
      spec_fingerprint_(plan_fingerprint(request.groups)),
      layout_(request.groups, request.targets, request.bounds,
              request.options->policy.kind == PolicyKind::kBatchInvariant,
              request.options->measure),
      canonical_(request.options->policy.kind == PolicyKind::kBatchInvariant),
      measured_(request.options->measure),
      checked_(request.options->checked),
      zeros_in_copy_(layout_.counters_bytes() <= kMostZerosInCopy ? layout_.counters_bytes() : 0),
      ring_(context, zeros_in_copy_, std::max<std::int64_t>(request.bounds.plan_words * 4, 16)),
      branches_(context, canonical_ ? 0 : largest_class_count(request.targets) - 1),
      run_graphs_(context, most_run_graphs(*context, *request.engine)),
      captures_(request.groups.size()),
      slices_(request.groups.size()),
      merge_later_(request.groups.size(), false) {
  release_parked();
  state_->context = std::move(context);
  load_kernels(request, kernels);
  upload_constants();
  state_->workspace = std::make_unique<Workspace>(state_->context, layout_.ledger.total(),
                                                  request.engine->allocator);
  const CuDevicePtr base = state_->workspace->address();
  for (Group& group : state_->groups) {
    group.params.plan = layout_.carve<const std::int32_t>(base, layout_.plan);
    group.params.plan_bytes = request.bounds.plan_words * 4;
    group.params.counters = layout_.carve<device::u32>(base, layout_.counters);
    group.params.state_o = layout_.carve<float>(base, layout_.state_o);
    group.params.state_lse = layout_.carve<float>(base, layout_.state_lse);
    group.params.fold_o = layout_.carve<float>(base, layout_.fold_o);
    group.params.status = layout_.carve<device::StatusBlock>(base, layout_.status);
    group.params.worker_times =
        measured_ ? layout_.carve<device::u64>(base, layout_.worker_times) : nullptr;
  }
  // The status block and the counters are the only places whose prior content would matter.
  require_legacy_stream(*state_->context, "attention");
  const SetupScope scope(*state_->context);
  const Driver& driver = state_->context->driver();
  driver.check(driver.memset_d8(layout_.address(base, layout_.status), 0,
                                sizeof(device::StatusBlock), nullptr),
               "cuMemsetD8Async");
  driver.check(driver.stream_synchronize(nullptr), "cuStreamSynchronize");
}

CudaExecutor::~CudaExecutor() {
  run_graphs_.clear();  // before the kernels that they launch
  state_.reset();
  release_parked();
}

void CudaExecutor::load_kernels(const ExecutorRequest& request, KernelCache& kernels) {
  const DeviceFacts& facts = state_->context->facts();
  for (std::size_t index = 0; index < request.groups.size(); ++index) {
    const PlanTarget& target = request.targets[index];
    Group group;
    group.spec = request.groups[index];
    group.num_workers = target.num_workers;
    widest_grid_ = std::max(widest_grid_, target.num_workers);
    fill_spec(group.spec, &group.params);
    group.params.group = static_cast<device::i32>(index);
    const int num_classes = canonical_ ? 1 : target.num_classes;
    const std::string variant = family_.variant_source(group.spec);
    for (int class_index = 0; class_index < num_classes; ++class_index) {
      ClassKernels entry;
      entry.tile =
          canonical_ ? target.canonical : target.classes[static_cast<std::size_t>(class_index)];
      for (const bool state : {false, true}) {
        KernelRequest wanted{&group.spec, &facts, entry.tile, canonical_, state, measured_};
        KernelKey key = family_.key(wanted);
        if (!variant.empty()) {
          key.user_variant = variant_hash(variant);
          key.variant |= kVariantUser;
        }
        entry.by_state[state ? 1 : 0] = kernels.loaded(state_->context, key, variant);
      }
      group.classes.push_back(std::move(entry));
    }
    state_->groups.push_back(std::move(group));
  }
}

void CudaExecutor::upload_constants() {
  // Arrays first, addresses after: the buffer's address is known only when its size is.
  std::vector<float> values;
  const auto append = [&](const std::vector<float>& array) {
    const std::size_t offset = values.size();
    values.insert(values.end(), array.begin(), array.end());
    values.resize((values.size() + 3) / 4 * 4);  // 16-byte aligned arrays
    return offset;
  };
  std::vector<std::size_t> rope_offsets;
  std::vector<std::vector<std::size_t>> array_offsets;
  for (const Group& group : state_->groups) {
    rope_offsets.push_back(append(rope_turns(group.spec.rope, group.spec.head_dim_qk)));
    std::vector<std::size_t>& offsets = array_offsets.emplace_back();
    if (group.spec.variant.params.size() > device::kMaxVariantParams) {
      throw Error(ErrorCode::kUnsupported, "variant.params",
                  std::to_string(group.spec.variant.params.size()),
                  "at most " + std::to_string(device::kMaxVariantParams));
    }
    for (const VariantParam& param : group.spec.variant.params) {
      offsets.push_back(param.is_array ? append(param.values) : 0);
    }
  }
  if (!values.empty()) {
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(float));
    state_->constants = DeviceBuffer(state_->context, bytes, "constants");
    require_legacy_stream(*state_->context, "attention");
    const SetupScope scope(*state_->context);
    const Driver& driver = state_->context->driver();
    driver.check(driver.memcpy_host_to_device(state_->constants.address(), values.data(),
                                              values.size() * sizeof(float), nullptr),
                 "cuMemcpyHtoDAsync");
    driver.check(driver.stream_synchronize(nullptr), "cuStreamSynchronize");
  }
  const auto address = [&](std::size_t offset) {
    return state_->constants.address() + static_cast<CuDevicePtr>(offset * sizeof(float));
  };
  for (std::size_t index = 0; index < state_->groups.size(); ++index) {
    Group& group = state_->groups[index];
    if (group.params.rotary_dim > 0) {
      group.params.rope_turns = reinterpret_cast<const float*>(address(rope_offsets[index]));
    }
    const std::vector<VariantParam>& params = group.spec.variant.params;
    for (std::size_t p = 0; p < params.size(); ++p) {
      group.params.variant_params[p] = params[p].is_array
                                           ? address(array_offsets[index][p])
                                           : std::bit_cast<std::uint32_t>(params[p].values.at(0));
    }
  }
}

std::span<std::int32_t> CudaExecutor::plan_words() {
  return {reinterpret_cast<std::int32_t*>(ring_.next()),
          static_cast<std::size_t>(bounds_.plan_words)};
}

void CudaExecutor::upload(const Plan& plan, Stream stream) {
  require_specs(plan, spec_fingerprint_);
  release_parked();
  const ContextScope scope(*state_->context);
  const Driver& driver = state_->context->driver();
  CuStream handle = handle_of(stream);
  refuse_capture(driver, handle, "plan.stream",
                 "a plan outside the graph; the graph's runs read whatever plan is current");
  refuse_foreign_stream(*state_->context, handle, "plan.stream");
  if (static_cast<std::int64_t>(plan.words.size()) > bounds_.plan_words) {
    throw Error(ErrorCode::kInternal, "plan words", std::to_string(plan.words.size()),
                "at most " + std::to_string(bounds_.plan_words));
  }
  std::int32_t counters = 0;
  for (std::size_t group = 0; group < state_->groups.size(); ++group) {
    const device::GroupHeader& header = group_header(plan, group);
    counters = std::max(counters, header.num_counters);
    if (header.num_classes > static_cast<std::int32_t>(state_->groups[group].classes.size())) {
      throw Error(ErrorCode::kInternal, "plan classes", std::to_string(header.num_classes),
                  std::to_string(state_->groups[group].classes.size()));
    }
  }

  captures_.check(plan);

  std::byte* const staging = ring_.acquire(handle);
  if (reinterpret_cast<const std::byte*>(plan.words.data()) != staging) {
    std::memcpy(staging, plan.words.data(), plan.words.size_bytes());
  }
  const CuDevicePtr base = state_->workspace->address();
  // Runs leave the counters at zero; a run that was aborted, or a workspace of unknown content,
  // does not.
  const std::size_t zeros = counters > 0 ? static_cast<std::size_t>(zeros_in_copy_) : 0;
  driver.check(
      driver.memcpy_host_to_device(layout_.address(base, layout_.plan) - zeros, staging - zeros,
                                   zeros + plan.words.size_bytes(), handle),
      "cuMemcpyHtoDAsync");
  ring_.release(handle);
  if (counters > 0 && zeros == 0) {
    driver.check(driver.memset_d32(layout_.address(base, layout_.counters), 0,
                                   static_cast<std::size_t>(counters), handle),
                 "cuMemsetD32Async");
  }
  for (std::size_t group = 0; group < slices_.size(); ++group) {
    const device::GroupHeader& header = group_header(plan, group);
    const GroupSummary& summary = plan.groups[group];
    merge_later_[group] = summary.largest_arrival - summary.mean_arrival > kUnevenArrival;
    slices_[group].fill(0);
    for (std::int32_t index = 0; index < header.num_classes; ++index) {
      slices_[group][static_cast<std::size_t>(index)] = header.classes[index].num_slices;
    }
  }
  run_graphs_.make([this](const RunKey& key, KernelGraph& graph) { add_run(key, graph); });
}

bool CudaExecutor::note_capture(const RunArgs& args, CuStream stream) {
  const Driver& driver = state_->context->driver();
  const CaptureInfo capture = capture_info(driver, stream, "run.stream");
  if (capture.status == CuCaptureStatus::kInvalidated) {
    throw Error(ErrorCode::kMismatch, "run.stream", "a capture that an earlier call invalidated",
                "a valid capture");
  }
  if (capture.status == CuCaptureStatus::kNone) return false;
  if (checked_) refuse_checked_capture(driver, stream);
  captures_.note(driver, capture, args, state_);
  return true;
}

std::vector<std::uint64_t> CudaExecutor::living_captures() const {
  release_parked();
  return captures_.living();
}

void CudaExecutor::run(const RunArgs& args) {
  const ContextScope scope(*state_->context);
  CuStream stream = handle_of(args.stream);
  const bool capturing = note_capture(args, stream);

  const auto group_index = static_cast<std::size_t>(args.group);
  const Group& group = state_->groups[group_index];
  RunKey key;
  std::memcpy(&key.common, &group.params, sizeof(key.common));
  fill_operands(*state_->context, group.spec, args, family_.operand_alignment(), known_addresses_,
                &key.common);
  key.common.merge_role = merge_later_[group_index] ? device::kMergeLater : device::kMergeInPlace;
  key.classes = 0;
  for (std::size_t index = 0; index < group.classes.size(); ++index) {
    if (capturing || slices_[group_index][index] > 0) key.classes |= std::uint64_t{1} << index;
  }

  const bool by_graph = !capturing && key.classes != 0 && run_graphs_.enabled();
  std::uint64_t hash = 0;
  if (by_graph) {
    round_page_ids(&key.common);
    hash = RunGraphs::hash_of(key);
    if (CuGraphExec graph = run_graphs_.find(key, hash)) {
      if (measured_) forget_worker_times(stream);
      const Driver& driver = state_->context->driver();
      driver.check(driver.graph_launch(graph, stream), "cuGraphLaunch");
      return;
    }
  }
  launch_run(key, stream, !capturing && overlaps());
  if (by_graph) run_graphs_.note(key, hash);
}

void CudaExecutor::prepare_run(const RunKey& key, PreparedRun* run) {
  std::size_t count = 0;
  const auto prepare = [&](int class_index, std::int32_t merge_role) {
    ParameterBuffer& own = run->parameters[count++];
    std::memcpy(own.bytes.data(), &key.common, sizeof(key.common));
    own.common().merge_role = merge_role;
    prepare_class(class_index, own);
  };
  for (std::uint64_t rest = key.classes; rest != 0; rest &= rest - 1) {
    prepare(std::countr_zero(rest), key.common.merge_role);
  }
  run->classes = count;
  run->merge = count > 0 && key.common.merge_role == device::kMergeLater;
  if (run->merge) prepare(0, device::kMergeOnly);
}

void CudaExecutor::prepare_class(int class_index, ParameterBuffer& parameters) {
  device::AttentionParams& common = parameters.common();
  const Group& group = state_->groups[static_cast<std::size_t>(common.group)];
  const ClassKernels& kernels = group.classes[static_cast<std::size_t>(class_index)];
  common.class_index = class_index;
  if (measured_) {
    common.worker_times = common.merge_role == device::kMergeOnly
                              ? nullptr
                              : group.params.worker_times +
                                    static_cast<std::ptrdiff_t>(2) * class_index * widest_grid_;
  }
  const KernelRequest kernel{&group.spec, &state_->context->facts(), kernels.tile,
                             canonical_,  common.write_state != 0,   measured_};
  family_.complete_parameters({&kernel, &state_->context->driver(), &tensor_maps_}, parameters);
}

void CudaExecutor::launch_run(const RunKey& key, CuStream stream, bool overlap) {
  PreparedRun run;
  prepare_run(key, &run);
  if (measured_) forget_worker_times(stream);
  const auto launch_one = [&](std::size_t index, CuStream on, bool overlap_previous) {
    void* arguments[] = {run.parameters[index].bytes.data()};
    const device::AttentionParams& common = run.parameters[index].common();
    launch(kernel_of(common), grid_of(common), arguments, on, overlap_previous);
  };
  // Classes run side by side: as grids that may overlap the one before, which costs the host a
  // launch each, or on branches of the stream, which costs as much again in events. Callers' graphs
  // keep branches: their replay costs the host nothing, and every driver captures them.
  const int branches = overlap ? 0 : std::max(static_cast<int>(run.classes) - 1, 0);
  if (branches > 0) branches_.fork(stream, branches);
  for (std::size_t index = 0; index < run.classes; ++index) {
    // The largest tiles run on the caller's stream.
    const bool own = overlap || index + 1 == run.classes;
    launch_one(index, own ? stream : branches_.branch(static_cast<int>(index)),
               overlap && index > 0);
  }
  if (branches > 0) branches_.join(stream, branches);
  if (run.merge) launch_one(run.classes, stream, overlap);
}

void CudaExecutor::add_run(const RunKey& key, KernelGraph& graph) {
  PreparedRun run;
  prepare_run(key, &run);
  std::array<CuGraphNode, device::kMaxClasses + 1> nodes{};
  const auto add_one = [&](std::size_t index, std::span<const CuGraphNode> after) {
    void* arguments[] = {run.parameters[index].bytes.data()};
    const device::AttentionParams& common = run.parameters[index].common();
    nodes[index] = graph.add(kernel_of(common), grid_of(common), arguments, after);
    if (overlaps() && index > 0) graph.overlap(nodes[index - 1], nodes[index]);
  };
  for (std::size_t index = 0; index < run.classes; ++index) add_one(index, {});
  if (!run.merge) return;
  const std::span<const CuGraphNode> classes(nodes.data(), overlaps() ? 0 : run.classes);
  add_one(run.classes, classes);
}

const LoadedKernel& CudaExecutor::kernel_of(const device::AttentionParams& common) const {
  const Group& group = state_->groups[static_cast<std::size_t>(common.group)];
  const ClassKernels& kernels = group.classes[static_cast<std::size_t>(common.class_index)];
  return *kernels.by_state[common.write_state != 0 ? 1 : 0];
}

LaunchGrid CudaExecutor::grid_of(const device::AttentionParams& common) const {
  const Group& group = state_->groups[static_cast<std::size_t>(common.group)];
  return {static_cast<unsigned>(group.num_workers), 1, 1};
}

bool CudaExecutor::overlaps() const noexcept {
  return state_->context->facts().compute_capability >= kOverlappingCapability;
}

void CudaExecutor::forget_worker_times(CuStream stream) const {
  const Driver& driver = state_->context->driver();
  const CuDevicePtr times = layout_.address(state_->workspace->address(), layout_.worker_times);
  driver.check(driver.memset_d8(times, 0, worker_time_count() * sizeof(std::uint64_t), stream),
               "cuMemsetD8Async");
}

void CudaExecutor::status(Stream stream) {
  const SetupScope scope(*state_->context);
  const Driver& driver = state_->context->driver();
  refuse_capture(
      driver, handle_of(stream), "status.stream",
      "a stream that can be waited for: what a graph's runs saw is known after a replay");
  const CuDevicePtr address = layout_.address(state_->workspace->address(), layout_.status);
  device::StatusBlock block{};
  driver.check(driver.memcpy_device_to_host(&block, address, sizeof(block), handle_of(stream)),
               "cuMemcpyDtoHAsync");
  driver.check(driver.stream_synchronize(handle_of(stream)), "cuStreamSynchronize");
  if (block.bits == 0) return;
  driver.check(driver.memset_d8(address, 0, sizeof(block), handle_of(stream)), "cuMemsetD8Async");
  throw Error(ErrorCode::kInvalidArgument, "page_ids",
              std::to_string(block.page_id) + " in request " + std::to_string(block.request),
              "page ids inside the pool; the outputs of such requests are NaN");
}

std::size_t CudaExecutor::worker_time_count() const noexcept {
  return static_cast<std::size_t>(layout_.ledger.entry(layout_.worker_times).bytes) /
         sizeof(device::u64);
}

std::vector<WorkerTime> CudaExecutor::worker_times(Stream stream) const {
  std::vector<WorkerTime> times;
  if (!measured_) return times;
  std::vector<std::uint64_t> raw(worker_time_count());
  const SetupScope scope(*state_->context);
  const Driver& driver = state_->context->driver();
  driver.check(driver.memcpy_device_to_host(
                   raw.data(), layout_.address(state_->workspace->address(), layout_.worker_times),
                   raw.size() * sizeof(std::uint64_t), handle_of(stream)),
               "cuMemcpyDtoHAsync");
  driver.check(driver.stream_synchronize(handle_of(stream)), "cuStreamSynchronize");
  std::uint64_t origin = UINT64_MAX;
  for (std::size_t at = 0; at < raw.size(); at += 2) {
    if (raw[at + 1] != 0) origin = std::min(origin, raw[at]);
  }
  for (std::size_t at = 0; at < raw.size(); at += 2) {
    if (raw[at + 1] == 0) continue;
    const auto index = static_cast<std::int32_t>(at / 2);
    times.push_back({index / widest_grid_, index % widest_grid_,
                     static_cast<std::int64_t>(raw[at] - origin),
                     static_cast<std::int64_t>(raw[at + 1] - origin)});
  }
  return times;
}

std::vector<std::int32_t> CudaExecutor::read_i32(const Tensor& tensor, Stream stream) const {
  std::vector<std::int32_t> values(static_cast<std::size_t>(tensor.size()));
  if (values.empty()) return values;
  check_device_address(*state_->context, "i32 operand", tensor.data, sizeof(std::int32_t));
  const SetupScope scope(*state_->context);
  const Driver& driver = state_->context->driver();
  refuse_checked_capture(driver, handle_of(stream));
  driver.check(
      driver.memcpy_device_to_host(values.data(), reinterpret_cast<CuDevicePtr>(tensor.data),
                                   values.size() * sizeof(std::int32_t), handle_of(stream)),
      "cuMemcpyDtoHAsync");
  driver.check(driver.stream_synchronize(handle_of(stream)), "cuStreamSynchronize");
  return values;
}

}  // namespace plait::cuda
