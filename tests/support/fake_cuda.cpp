// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The library of cuda_fake/fake_cuda.h, over a device of fake_device.h. Threads may take turns.
#include "cuda_fake/fake_cuda.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "support/fake_device.h"

#define PLAIT_FAKE extern "C" __attribute__((visibility("default"))) plait::cuda::CuResult

namespace {

using namespace plait::cuda;

constexpr int kDevices = 2;
using fake::kLaunchFailed;
constexpr CuResult kInvalidHandle = 400;

fake::State state;

/// -1: no context is current.
int current_device() { return state.context_stack.empty() ? -1 : state.context_stack.back(); }

struct Graph {
  std::vector<fake::Work> work;  // in the order in which it was captured or added
  std::vector<void*> user_objects;
  std::set<void*> open_streams;  // forked branches that nobody joined yet
  int references = 1;            // the graph, and what was instantiated from it
  bool invalid = false;          // a capture that something forbidden ended
};
struct Stream {
  int device = current_device();
  bool waits_for_legacy = true;
  Graph* capturing = nullptr;
  bool origin = false;
  std::uint64_t id = 0;
  CuCaptureMode mode{};      // of the capture that began here
  std::thread::id thread{};  // where it began
};
struct Event {
  int device = current_device();
  Graph* recorded_in = nullptr;
  Stream* stream = nullptr;
};
struct UserObject {
  void* object;
  CuHostFunction destroy;
};

int contexts[kDevices];  // their addresses are the handles
std::uint64_t next_capture = 1;
thread_local CuCaptureMode thread_mode = CuCaptureMode::kGlobal;

/// Counts a call that may fail; true if it shall.
bool injected() { return ++state.calls == state.fail_at; }

int device_of(CuContext context) {
  return static_cast<int>(reinterpret_cast<int*>(context) - contexts);
}
CuContext context_of(int device) {
  return device < 0 ? nullptr : reinterpret_cast<CuContext>(&contexts[device]);
}

template <typename T, typename Handle>
CuResult create(std::set<void*>& alive, Handle* out) {
  if (injected()) return kCuErrorOutOfMemory;
  T* object = new T();
  alive.insert(object);
  *out = reinterpret_cast<Handle>(object);
  return kCuSuccess;
}

template <typename T, typename Handle>
CuResult destroy(std::set<void*>& alive, Handle handle) {
  if (alive.erase(handle) == 0) return kCuErrorInvalidValue;
  delete reinterpret_cast<T*>(handle);
  return kCuSuccess;
}

void release_graph(Graph* graph) {
  if (--graph->references > 0) return;
  for (void* entry : graph->user_objects) {
    auto* object = static_cast<UserObject*>(entry);
    state.user_objects.erase(object);
    object->destroy(object->object);
    delete object;
  }
  delete graph;
}

Stream* stream_of(CuStream handle) { return reinterpret_cast<Stream*>(handle); }

bool is_captured(CuStream stream) {
  return stream != nullptr && stream_of(stream)->capturing != nullptr;
}

CuCaptureStatus capture_status(CuStream stream) {
  if (!is_captured(stream)) return CuCaptureStatus::kNone;
  return stream_of(stream)->capturing->invalid ? CuCaptureStatus::kInvalidated
                                               : CuCaptureStatus::kActive;
}

/// For calls that the driver calls potentially unsafe: true if a capture of this thread or, in
/// global mode, of another forbids them; that capture is invalid then. As
/// cuThreadExchangeStreamCaptureMode documents it, for calls of which a driver of CUDA 13.0 was
/// seen to do so.
bool forbidden() {
  if (thread_mode == CuCaptureMode::kRelaxed) return false;
  bool found = false;
  for (void* entry : state.streams) {
    auto* stream = static_cast<Stream*>(entry);
    if (stream->capturing == nullptr || !stream->origin) continue;
    const bool own = stream->thread == std::this_thread::get_id();
    const bool forbids =
        own ? stream->mode != CuCaptureMode::kRelaxed
            : stream->mode == CuCaptureMode::kGlobal && thread_mode == CuCaptureMode::kGlobal;
    if (!forbids) continue;
    stream->capturing->invalid = true;
    found = true;
  }
  return found;
}

/// Whether `stream` is the legacy one while a capture of a stream that waits for it forbids its
/// use, in whatever mode. `harm`: that capture is invalid then.
bool implicit(CuStream stream, bool harm = true) {
  if (stream != nullptr) return false;
  bool found = false;
  for (void* entry : state.streams) {
    auto* other = static_cast<Stream*>(entry);
    if (other->capturing == nullptr || !other->waits_for_legacy) continue;
    if (harm) other->capturing->invalid = true;
    found = true;
  }
  return found;
}

/// Streams do their work at once; a captured one keeps it for the graph's launches.
CuResult submit(CuStream stream, fake::Work work) {
  if (implicit(stream)) return kCuErrorStreamCaptureImplicit;
  if (!is_captured(stream)) return work();
  stream_of(stream)->capturing->work.push_back(std::move(work));
  return kCuSuccess;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) fake::State* plait_fake_cuda_state() {
  return &state;
}

PLAIT_FAKE cuInit(unsigned) { return kCuSuccess; }
PLAIT_FAKE cuDriverGetVersion(int* version) {
  *version = fake::driver_version();
  return kCuSuccess;
}
PLAIT_FAKE cuGetErrorName(CuResult, const char** name) {
  *name = "CUDA_ERROR_FAKE";
  return kCuSuccess;
}
PLAIT_FAKE cuGetErrorString(CuResult, const char** text) {
  *text = fake::error_text();
  return kCuSuccess;
}
PLAIT_FAKE cuDeviceGet(CuDevice* device, int ordinal) {
  *device = ordinal;
  return kCuSuccess;
}
PLAIT_FAKE cuDeviceGetCount(int* count) {
  *count = kDevices;
  return kCuSuccess;
}
PLAIT_FAKE cuDeviceGetName(char* name, int length, CuDevice) {
  std::strncpy(name, fake::device_name(), static_cast<std::size_t>(length));
  return kCuSuccess;
}
PLAIT_FAKE cuDeviceTotalMem_v2(std::size_t* bytes, CuDevice) {
  *bytes = std::size_t{1} << 30;
  return kCuSuccess;
}
PLAIT_FAKE cuDeviceGetAttribute(int* value, CuDeviceAttribute attribute, CuDevice) {
  *value = fake::device_attribute(attribute);
  return kCuSuccess;
}

PLAIT_FAKE cuDevicePrimaryCtxRetain(CuContext* context, CuDevice device) {
  if (injected()) return kCuErrorOutOfMemory;
  ++state.retained[device];
  *context = reinterpret_cast<CuContext>(&contexts[device]);
  return kCuSuccess;
}
PLAIT_FAKE cuDevicePrimaryCtxRelease_v2(CuDevice device) {
  --state.retained[device];
  return kCuSuccess;
}
PLAIT_FAKE cuCtxPushCurrent_v2(CuContext context) {
  state.context_stack.push_back(device_of(context));
  return kCuSuccess;
}
PLAIT_FAKE cuCtxPopCurrent_v2(CuContext*) {
  if (state.context_stack.empty()) return kCuErrorInvalidValue;
  state.context_stack.pop_back();
  return kCuSuccess;
}
PLAIT_FAKE cuCtxGetCurrent(CuContext* context) {
  *context = context_of(current_device());
  return kCuSuccess;
}
PLAIT_FAKE cuCtxGetDevice(CuDevice* device) {
  *device = current_device();
  return kCuSuccess;
}
PLAIT_FAKE cuCtxSetCurrent(CuContext) { return kCuErrorInvalidValue; }
PLAIT_FAKE cuCtxSynchronize() {
  return forbidden() ? kCuErrorStreamCaptureUnsupported : kCuSuccess;
}
PLAIT_FAKE cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total) {
  *free_bytes = *total = std::size_t{1} << 30;
  return kCuSuccess;
}

PLAIT_FAKE cuMemAlloc_v2(CuDevicePtr* address, std::size_t bytes) {
  if (injected()) return kCuErrorOutOfMemory;
  if (state.context_stack.empty()) return kCuErrorInvalidValue;
  if (forbidden()) return kCuErrorStreamCaptureUnsupported;
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (memory == nullptr) return kCuErrorOutOfMemory;
  std::memset(memory, 0xFF, bytes);  // NaN in every type
  *address = reinterpret_cast<CuDevicePtr>(memory);
  state.device_memory[reinterpret_cast<std::uintptr_t>(memory)] = {bytes,
                                                                   state.context_stack.back()};
  return kCuSuccess;
}
PLAIT_FAKE cuMemFree_v2(CuDevicePtr address) {
  if (forbidden()) return kCuErrorStreamCaptureUnsupported;
  if (state.device_memory.erase(static_cast<std::uintptr_t>(address)) == 0) {
    return kCuErrorInvalidValue;
  }
  std::free(reinterpret_cast<void*>(address));
  return kCuSuccess;
}
PLAIT_FAKE cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  if (injected()) return kCuErrorOutOfMemory;
  if (forbidden()) return kCuErrorStreamCaptureUnsupported;
  *memory = std::malloc(bytes);
  state.host_memory.insert(*memory);
  return kCuSuccess;
}
PLAIT_FAKE cuMemFreeHost(void* memory) {
  if (forbidden()) return kCuErrorStreamCaptureUnsupported;
  if (state.host_memory.erase(memory) == 0) return kCuErrorInvalidValue;
  std::free(memory);
  return kCuSuccess;
}
PLAIT_FAKE cuMemcpyHtoDAsync_v2(CuDevicePtr to, const void* from, std::size_t bytes,
                                CuStream stream) {
  if (injected()) return kLaunchFailed;
  return submit(stream, [=] {
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return kCuSuccess;
  });
}
PLAIT_FAKE cuMemcpyDtoHAsync_v2(void* to, CuDevicePtr from, std::size_t bytes, CuStream stream) {
  if (injected()) return kLaunchFailed;
  return submit(stream, [=] {
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    return kCuSuccess;
  });
}
PLAIT_FAKE cuMemcpyDtoDAsync_v2(CuDevicePtr to, CuDevicePtr from, std::size_t bytes,
                                CuStream stream) {
  if (injected()) return kLaunchFailed;
  return submit(stream, [=] {
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return kCuSuccess;
  });
}
PLAIT_FAKE cuMemsetD8Async(CuDevicePtr to, unsigned char byte, std::size_t bytes, CuStream stream) {
  if (injected()) return kLaunchFailed;
  return submit(stream, [=] {
    std::memset(reinterpret_cast<void*>(to), byte, bytes);
    return kCuSuccess;
  });
}
PLAIT_FAKE cuMemsetD32Async(CuDevicePtr to, unsigned word, std::size_t count, CuStream stream) {
  ++state.memsets;
  if (injected()) return kLaunchFailed;
  return submit(stream, [=] {
    std::fill_n(reinterpret_cast<unsigned*>(to), count, word);
    return kCuSuccess;
  });
}
PLAIT_FAKE cuPointerGetAttributes(unsigned count, CuPointerAttribute* attributes, void** values,
                                  CuDevicePtr pointer) {
  auto found = state.device_memory.upper_bound(static_cast<std::uintptr_t>(pointer));
  bool known = false;
  if (found != state.device_memory.begin()) {
    --found;
    known = pointer < found->first + found->second.first;
  }
  for (unsigned index = 0; index < count; ++index) {
    const bool type = attributes[index] == CuPointerAttribute::kMemoryType;
    const int value = type ? (known ? static_cast<int>(CuMemoryType::kDevice) : 0)
                           : (known ? found->second.second : 0);
    std::memcpy(values[index], &value, sizeof(value));
  }
  return kCuSuccess;
}

PLAIT_FAKE cuModuleLoadData(CuModule* module, const void* image) {
  if (injected()) return kCuErrorOutOfMemory;
  void* loaded = fake::load_module(image);
  if (loaded == nullptr) return kCuErrorInvalidValue;
  state.modules.insert(loaded);
  *module = reinterpret_cast<CuModule>(loaded);
  return kCuSuccess;
}
PLAIT_FAKE cuModuleUnload(CuModule module) {
  if (forbidden()) return kCuErrorStreamCaptureUnsupported;
  if (state.modules.erase(module) == 0) return kCuErrorInvalidValue;
  fake::unload_module(module);
  return kCuSuccess;
}
PLAIT_FAKE cuModuleGetFunction(CuFunction* function, CuModule module, const char* name) {
  if (injected()) return kLaunchFailed;
  *function = reinterpret_cast<CuFunction>(fake::find_function(module, name));
  return *function == nullptr ? kCuErrorInvalidValue : kCuSuccess;
}
PLAIT_FAKE cuModuleGetGlobal_v2(CuDevicePtr*, std::size_t*, CuModule, const char*) {
  return kCuErrorInvalidValue;
}
PLAIT_FAKE cuFuncGetAttribute(int* value, CuFunctionAttribute, CuFunction) {
  *value = 0;
  return injected() ? kLaunchFailed : kCuSuccess;
}
PLAIT_FAKE cuFuncSetAttribute(CuFunction, CuFunctionAttribute, int) {
  return injected() ? kLaunchFailed : kCuSuccess;
}
PLAIT_FAKE cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CuFunction, int, std::size_t) {
  *blocks = 1;
  return injected() ? kLaunchFailed : kCuSuccess;
}
PLAIT_FAKE cuLaunchKernelEx(const CuLaunchConfig* config, CuFunction function, void** arguments,
                            void**) {
  if (injected()) return kLaunchFailed;
  return submit(config->stream,
                fake::prepare_launch(*config, function, arguments, is_captured(config->stream)));
}

PLAIT_FAKE cuStreamCreate(CuStream* stream, unsigned flags) {
  const CuResult result = create<Stream>(state.streams, stream);
  if (result == kCuSuccess) stream_of(*stream)->waits_for_legacy = flags != kCuStreamNonBlocking;
  return result;
}
PLAIT_FAKE cuStreamDestroy_v2(CuStream stream) { return destroy<Stream>(state.streams, stream); }
PLAIT_FAKE cuStreamSynchronize(CuStream stream) {
  if (injected()) return kLaunchFailed;
  if (implicit(stream)) return kCuErrorStreamCaptureImplicit;
  return forbidden() ? kCuErrorStreamCaptureUnsupported : kCuSuccess;
}
PLAIT_FAKE cuStreamWaitEvent(CuStream handle, CuEvent event_handle, unsigned) {
  if (injected()) return kLaunchFailed;
  auto* event = reinterpret_cast<Event*>(event_handle);
  Graph* graph = event->recorded_in;
  if (graph == nullptr || handle == nullptr) return kCuSuccess;
  Stream* stream = stream_of(handle);
  if (stream->capturing == nullptr) {
    stream->capturing = graph;
    graph->open_streams.insert(stream);
  } else {
    graph->open_streams.erase(event->stream);
  }
  return kCuSuccess;
}
PLAIT_FAKE cuStreamIsCapturing(CuStream stream, CuCaptureStatus* status) {
  if (implicit(stream, false)) return kCuErrorStreamCaptureImplicit;
  *status = capture_status(stream);
  return injected() ? kLaunchFailed : kCuSuccess;
}
PLAIT_FAKE cuStreamBeginCapture_v2(CuStream handle, CuCaptureMode mode) {
  Stream* stream = stream_of(handle);
  stream->capturing = new Graph();
  stream->origin = true;
  stream->id = next_capture++;
  stream->mode = mode;
  stream->thread = std::this_thread::get_id();
  return kCuSuccess;
}
PLAIT_FAKE cuStreamEndCapture(CuStream handle, CuGraph* out) {
  Stream* origin = stream_of(handle);
  Graph* graph = origin->capturing;
  for (void* entry : state.streams) {
    auto* stream = static_cast<Stream*>(entry);
    if (stream->capturing == graph) stream->capturing = nullptr;
    stream->origin = stream->origin && stream->capturing != nullptr;
  }
  for (void* entry : state.events) static_cast<Event*>(entry)->recorded_in = nullptr;
  if (graph->invalid) {
    release_graph(graph);
    *out = nullptr;
    return kCuErrorStreamCaptureInvalidated;
  }
  *out = reinterpret_cast<CuGraph>(graph);
  state.graphs.insert(graph);
  return graph->open_streams.empty() ? kCuSuccess : kCuErrorStreamCaptureUnjoined;
}
PLAIT_FAKE cuStreamGetCaptureInfo_v2(CuStream handle, CuCaptureStatus* status, std::uint64_t* id,
                                     CuGraph* graph, const void**, std::size_t*) {
  if (injected()) return kLaunchFailed;
  Stream* stream = stream_of(handle);
  if (implicit(handle, false)) return kCuErrorStreamCaptureImplicit;
  *status = capture_status(handle);
  if (*status == CuCaptureStatus::kActive) {
    *id = stream->id;
    *graph = reinterpret_cast<CuGraph>(stream->capturing);
  }
  return kCuSuccess;
}
PLAIT_FAKE cuStreamGetId(CuStream stream, std::uint64_t* id) {
  if (implicit(stream)) return kCuErrorStreamCaptureImplicit;
  *id = reinterpret_cast<std::uintptr_t>(stream);
  return injected() ? kLaunchFailed : kCuSuccess;
}
PLAIT_FAKE cuStreamGetCtx(CuStream stream, CuContext* context) {
  if (implicit(stream)) return kCuErrorStreamCaptureImplicit;
  *context = context_of(stream == nullptr ? current_device() : stream_of(stream)->device);
  return injected() ? kLaunchFailed : kCuSuccess;
}
PLAIT_FAKE cuThreadExchangeStreamCaptureMode(CuCaptureMode* mode) {
  std::swap(*mode, thread_mode);
  return kCuSuccess;
}

PLAIT_FAKE cuEventCreate(CuEvent* event, unsigned) { return create<Event>(state.events, event); }
PLAIT_FAKE cuEventDestroy_v2(CuEvent event) { return destroy<Event>(state.events, event); }
PLAIT_FAKE cuEventRecord(CuEvent handle, CuStream stream) {
  if (injected()) return kLaunchFailed;
  auto* event = reinterpret_cast<Event*>(handle);
  if (implicit(stream)) return kCuErrorStreamCaptureImplicit;
  if (stream != nullptr && stream_of(stream)->device != event->device) return kInvalidHandle;
  event->stream = stream_of(stream);
  event->recorded_in = stream == nullptr ? nullptr : event->stream->capturing;
  return kCuSuccess;
}
PLAIT_FAKE cuEventQuery(CuEvent) {
  ++state.event_queries;
  if (injected()) return kLaunchFailed;
  if (forbidden()) return kCuErrorStreamCaptureUnsupported;
  return state.copies_pending ? kCuErrorNotReady : kCuSuccess;
}
PLAIT_FAKE cuEventSynchronize(CuEvent) {
  ++state.event_waits_on_host;
  state.copies_pending = false;
  if (injected()) return kLaunchFailed;
  return forbidden() ? kCuErrorStreamCaptureUnsupported : kCuSuccess;
}
PLAIT_FAKE cuEventElapsedTime(float* ms, CuEvent, CuEvent) {
  *ms = 1;
  return kCuSuccess;
}

// A node's handle is its number in its graph, from 1.
PLAIT_FAKE cuGraphCreate(CuGraph* out, unsigned) { return create<Graph>(state.graphs, out); }
PLAIT_FAKE cuGraphAddKernelNode_v2(CuGraphNode* out, CuGraph handle, const CuGraphNode* after,
                                   std::size_t count, const CuKernelNode* node) {
  if (injected()) return kLaunchFailed;
  auto* graph = reinterpret_cast<Graph*>(handle);
  const std::size_t number = graph->work.size() + 1;
  for (std::size_t index = 0; index < count; ++index) {
    const auto before = reinterpret_cast<std::size_t>(after[index]);
    if (before == 0 || before >= number) return kCuErrorInvalidValue;
    state.edges.push_back({before, number, false});
  }
  CuLaunchConfig config{};
  config.grid_x = node->grid_x;
  config.grid_y = node->grid_y;
  config.grid_z = node->grid_z;
  config.block_x = node->block_x;
  config.block_y = node->block_y;
  config.block_z = node->block_z;
  config.shared_bytes = node->shared_bytes;
  graph->work.push_back(fake::prepare_launch(config, node->function, node->arguments, true));
  *out = reinterpret_cast<CuGraphNode>(number);
  return kCuSuccess;
}
PLAIT_FAKE cuGraphAddDependencies_v2(CuGraph handle, const CuGraphNode* from, const CuGraphNode* to,
                                     const CuGraphEdge* edges, std::size_t count) {
  if (injected()) return kLaunchFailed;
  const std::size_t nodes = reinterpret_cast<Graph*>(handle)->work.size();
  for (std::size_t index = 0; index < count; ++index) {
    const auto first = reinterpret_cast<std::size_t>(from[index]);
    const auto second = reinterpret_cast<std::size_t>(to[index]);
    // Work is done in the order in which it was added, which these edges then agree with.
    if (first == 0 || first >= second || second > nodes) return kCuErrorInvalidValue;
    const CuGraphEdge& edge = edges[index];
    const bool programmatic = edge.type == kCuGraphEdgeProgrammatic;
    if (programmatic != (edge.from_port == kCuKernelPortProgrammatic) || edge.to_port != 0) {
      return kCuErrorInvalidValue;
    }
    state.edges.push_back({first, second, programmatic});
  }
  return kCuSuccess;
}
PLAIT_FAKE cuGraphInstantiateWithFlags(CuGraphExec* exec, CuGraph graph, unsigned long long) {
  if (injected()) return kCuErrorOutOfMemory;
  if (forbidden()) return kCuErrorStreamCaptureUnsupported;
  ++reinterpret_cast<Graph*>(graph)->references;
  ++state.graph_execs;
  *exec = reinterpret_cast<CuGraphExec>(graph);
  return kCuSuccess;
}
PLAIT_FAKE cuGraphLaunch(CuGraphExec exec, CuStream stream) {
  ++state.graph_launches;
  if (injected() || is_captured(stream)) return kLaunchFailed;
  if (implicit(stream)) return kCuErrorStreamCaptureImplicit;
  for (const fake::Work& work : reinterpret_cast<Graph*>(exec)->work) {
    if (const CuResult result = work(); result != kCuSuccess) return result;
  }
  return kCuSuccess;
}
PLAIT_FAKE cuGraphDestroy(CuGraph graph) {
  if (state.graphs.erase(graph) == 0) return kCuErrorInvalidValue;
  release_graph(reinterpret_cast<Graph*>(graph));
  return kCuSuccess;
}
PLAIT_FAKE cuGraphExecDestroy(CuGraphExec exec) {
  if (forbidden()) return kCuErrorStreamCaptureUnsupported;
  --state.graph_execs;
  release_graph(reinterpret_cast<Graph*>(exec));
  return kCuSuccess;
}
PLAIT_FAKE cuGraphGetNodes(CuGraph, void**, std::size_t* count) {
  *count = 0;
  return kCuSuccess;
}
PLAIT_FAKE cuGraphRetainUserObject(CuGraph graph, CuUserObject object, unsigned, unsigned) {
  if (injected()) return kLaunchFailed;
  reinterpret_cast<Graph*>(graph)->user_objects.push_back(object);
  return kCuSuccess;
}
PLAIT_FAKE cuUserObjectCreate(CuUserObject* out, void* object, CuHostFunction destroy_function,
                              unsigned, unsigned) {
  if (injected()) return kCuErrorOutOfMemory;
  auto* made = new UserObject{object, destroy_function};
  state.user_objects.insert(made);
  *out = reinterpret_cast<CuUserObject>(made);
  return kCuSuccess;
}
PLAIT_FAKE cuUserObjectRelease(CuUserObject handle, unsigned) {
  auto* object = reinterpret_cast<UserObject*>(handle);
  state.user_objects.erase(object);
  object->destroy(object->object);
  delete object;
  return kCuSuccess;
}
PLAIT_FAKE cuTensorMapEncodeTiled(CuTensorMap* map, CuTensorMapDataType type, std::uint32_t rank,
                                  void* address, const std::uint64_t* extents,
                                  const std::uint64_t* strides, const std::uint32_t* box,
                                  const std::uint32_t* steps, CuTensorMapInterleave interleave,
                                  CuTensorMapSwizzle swizzle, CuTensorMapL2Promotion,
                                  CuTensorMapOobFill fill) {
  return fake::encode_tensor_map(
      {type, rank, address, extents, strides, box, steps, interleave, swizzle, fill}, map);
}
