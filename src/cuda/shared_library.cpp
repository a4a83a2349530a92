// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/shared_library.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <string_view>

namespace plait::cuda {
namespace {

/// The GNU build id among the notes of a loaded object; empty if there is none.
std::string_view build_id_in(const dl_phdr_info& object) {
  // Parts of a note are padded to four bytes.
  const auto padded = [](std::size_t size) { return (size + 3) / 4 * 4; };
  for (int index = 0; index < object.dlpi_phnum; ++index) {
    const ElfW(Phdr)& segment = object.dlpi_phdr[index];
    if (segment.p_type != PT_NOTE) continue;
    std::string_view rest(reinterpret_cast<const char*>(object.dlpi_addr + segment.p_vaddr),
                          segment.p_memsz);
    ElfW(Nhdr) note;
    while (rest.size() >= sizeof(note)) {
      std::memcpy(&note, rest.data(), sizeof(note));
      rest.remove_prefix(sizeof(note));
      const std::size_t name = padded(note.n_namesz);
      if (name > rest.size() || note.n_descsz > rest.size() - name) break;
      if (note.n_type == NT_GNU_BUILD_ID && rest.starts_with("GNU")) {
        return rest.substr(name, note.n_descsz);
      }
      rest.remove_prefix(std::min(name + padded(note.n_descsz), rest.size()));
    }
  }
  return {};
}

bool holds(const dl_phdr_info& object, std::uintptr_t address) {
  for (int index = 0; index < object.dlpi_phnum; ++index) {
    const ElfW(Phdr)& segment = object.dlpi_phdr[index];
    if (segment.p_type == PT_LOAD &&
        address - (object.dlpi_addr + segment.p_vaddr) < segment.p_memsz) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string to_string(const std::vector<LibraryAttempt>& attempts) {
  std::string text;
  for (const LibraryAttempt& attempt : attempts) {
    if (!text.empty()) text += "; ";
    // The loader's own messages often start with the file name already.
    const bool named = attempt.reason.rfind(attempt.path, 0) == 0;
    text += named ? attempt.reason : attempt.path + ": " + attempt.reason;
  }
  return text;
}

SharedLibrary SharedLibrary::open(const std::string& path, std::vector<LibraryAttempt>* attempts) {
  SharedLibrary library;
  library.handle_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  library.name_ = path;
  if (library.handle_ == nullptr) {
    const char* reason = ::dlerror();
    attempts->push_back({path, reason != nullptr ? reason : "the loader gave no reason"});
  }
  return library;
}

void* SharedLibrary::find(const char* symbol) const noexcept {
  return handle_ == nullptr ? nullptr : ::dlsym(handle_, symbol);
}

std::string SharedLibrary::resolved_path(const char* symbol) const {
  Dl_info info{};
  void* address = find(symbol);
  if (address != nullptr && ::dladdr(address, &info) != 0 && info.dli_fname != nullptr) {
    return info.dli_fname;
  }
  return name_;
}

std::uint64_t SharedLibrary::build_of(const char* symbol) const {
  struct Search {
    std::uintptr_t address;
    std::uint64_t build;
  } search{reinterpret_cast<std::uintptr_t>(find(symbol)), 0};
  ::dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        if (!holds(*object, wanted.address)) return 0;
        const std::string_view id = build_id_in(*object);
        if (!id.empty()) wanted.build = XXH3_64bits(id.data(), id.size());
        return 1;
      },
      &search);
  return search.build;
}

}  // namespace plait::cuda
