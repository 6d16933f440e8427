// SPDX-License-Identifier: MIT
// Runs a target without libFuzzer, with any compiler:
//
//     rope_fuzz_rotate [file or folder ...] [--runs N] [--seed S] [--longest BYTES]
//
// It runs the inputs of the folders, then N inputs drawn from the seed: bytes of any length up to the
// longest, or inputs of the folders with some bytes changed. An input that fails is written to failing_input.

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);
extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) __attribute__((weak));

namespace {

using input = std::vector<unsigned char>;

const input* current = nullptr;
unsigned long long done = 0;

void keep_input(int signal) {
  std::fprintf(stderr, "failed after %llu runs; the input is in failing_input\n", done);
  if (std::FILE* file = current == nullptr ? nullptr : std::fopen("failing_input", "wb")) {
    std::fwrite(current->data(), 1, current->size(), file);
    std::fclose(file);
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void run(const input& bytes) {
  // Memory of exactly that size, so that a sanitizer detects a read after the end.
  static input copy;
  copy = bytes;
  copy.shrink_to_fit();
  current = &copy;
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
  ++done;
}

std::vector<input> inputs_in(const std::vector<std::string>& places) {
  std::vector<std::filesystem::path> files;
  for (const std::string& place : places) {
    if (std::filesystem::is_directory(place)) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(place))
        if (entry.is_regular_file()) files.push_back(entry.path());
    } else {
      files.emplace_back(place);
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<input> inputs;
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    if (!stream) {
      std::fprintf(stderr, "cannot read %s\n", file.c_str());
      std::exit(2);
    }
    inputs.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  return inputs;
}

class source {
 public:
  source(unsigned long long seed, std::size_t longest, const std::vector<input>& known)
      : generator_(seed), longest_(longest), known_(known) {}

  input next() {
    if (known_.empty() || below(2) == 0) {
      input bytes(below(longest_ + 1));
      for (unsigned char& byte : bytes) byte = any();
      return bytes;
    }
    input bytes = known_[below(known_.size())];
    for (std::size_t change = 1 + below(6); change > 0; --change) spoil(bytes);
    return bytes;
  }

 private:
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(generator_() % count); }
  unsigned char any() { return static_cast<unsigned char>(generator_() >> 11); }

  void spoil(input& bytes) {
    const std::size_t at = below(bytes.size() + 1);
    const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(4)) {
      case 0:
        bytes.insert(place, any());
        break;
      case 1:
        if (at < bytes.size()) bytes.erase(place);
        break;
      case 2: {  // the end of another input
        const input& other = known_[below(known_.size())];
        bytes.resize(at);
        bytes.insert(bytes.end(), other.begin() + static_cast<std::ptrdiff_t>(below(other.size() + 1)),
                     other.end());
        break;
      }
      default:
        if (at < bytes.size()) bytes[at] = any();
    }
  }

  std::mt19937_64 generator_;
  std::size_t longest_;
  const std::vector<input>& known_;
};

}  // namespace

int main(int count, char** arguments) {
  unsigned long long runs = 0, seed = 1;
  std::size_t longest = 400;
  std::vector<std::string> places;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    const bool takes_number = argument == "--runs" || argument == "--seed" || argument == "--longest";
    if (!takes_number || i + 1 == count) {
      places.push_back(argument);
      continue;
    }
    const unsigned long long number = std::strtoull(arguments[++i], nullptr, 10);
    if (argument == "--runs") runs = number;
    if (argument == "--seed") seed = number;
    if (argument == "--longest") longest = static_cast<std::size_t>(number);
  }
  for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGBUS, SIGILL}) std::signal(signal, keep_input);
  if (LLVMFuzzerInitialize) LLVMFuzzerInitialize(&count, &arguments);
  const std::vector<input> known = inputs_in(places);
  for (const input& bytes : known) run(bytes);
  source drawn(seed, longest, known);
  std::printf("%zu inputs of the corpus, %llu drawn with seed %llu\n", known.size(), runs, seed);
  std::fflush(stdout);
  for (unsigned long long i = 0; i < runs; ++i) run(drawn.next());
  std::printf("%llu executions\n", done);
}
