// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Included after a kernel's source: how the emulator calls it.
#pragma once

/// Bytes of each parameter, then 0.
extern "C" __attribute__((visibility("default"))) const unsigned* plait_emulated_parameters() {
  return decltype(plait_emulator::parameters_of(PLAIT_KERNEL_NAME))::sizes;
}
/// Runs one thread.
extern "C" __attribute__((visibility("default"))) void plait_emulated_thread(
    void* const* arguments) {
  decltype(plait_emulator::parameters_of(PLAIT_KERNEL_NAME))::call(PLAIT_KERNEL_NAME, arguments);
}
