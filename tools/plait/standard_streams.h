// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

namespace plait::tool {

/// The reader of standard output has gone, as after `| head -1`: nothing is left to be done.
struct OutputClosed {};

/// Makes standard input, output and error open, so that no file that the tool opens takes their
/// place and receives what is printed, and lets writes to a closed pipe fail instead of ending the
/// process with its temporary files still there. For the start of main.
void prepare_standard_streams();

/// Sends what was printed on its way. Throws OutputClosed, or Error{kIo} if it cannot be written.
/// Verbs that go on for long call it after each piece of output; main does so at the end.
void flush_output();

}  // namespace plait::tool
