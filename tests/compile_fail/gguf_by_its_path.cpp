// SPDX-License-Identifier: MIT
// EXPECT: error: .*import_gguf: lookup is an object that reads the file, not its path

#include <rope/models.hpp>

#include <optional>
#include <string>
#include <vector>

struct file {
  std::optional<double> number(const std::string& key) const;
  std::optional<std::string> text(const std::string& key) const;
  std::optional<std::vector<double>> numbers(const std::string& key) const;
};

rope::model_rope test(const file& opened, const std::string& path) {
#ifdef SHOULD_FAIL
  static_cast<void>(opened);
  return rope::import_gguf(path);
#else
  static_cast<void>(path);
  return rope::import_gguf(opened);
#endif
}
