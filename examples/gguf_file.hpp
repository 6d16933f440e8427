// The metadata of a GGUF file, and the small tensors about rotation, for rope::import_gguf. It reads no
// weights.
//
//     std::ifstream stream("model.gguf", std::ios::binary);
//     const rope::model_rope model = rope::import_gguf(gguf_file(stream));
//
// The file is untrusted: every length in it is checked against the bytes that exist.

#ifndef ROPE_EXAMPLES_GGUF_FILE_HPP
#define ROPE_EXAMPLES_GGUF_FILE_HPP

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ios>
#include <istream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

class gguf_file {
 public:
  /// Reads everything at once, so the stream may be closed afterwards.
  ///
  /// Throws:  std::runtime_error if the stream cannot be read, is no GGUF file, ends early, or has a tensor
  ///          about rotation of another type than F32
  explicit gguf_file(std::istream& stream) : file_(stream) {
    if (!file_.seekg(0, std::ios::end)) throw std::runtime_error("cannot be read");
    size_ = left_ = static_cast<std::uint64_t>(file_.tellg());
    file_.seekg(0);
    if (left_ < 4 || value<std::uint32_t>() != 0x46554747) throw std::runtime_error("is not a GGUF file");
    const auto version = value<std::uint32_t>();
    if (version != 2 && version != 3)
      throw std::runtime_error("must be a little-endian GGUF file of version 2 or 3, got version " +
                               std::to_string(version));
    const auto tensors = value<std::uint64_t>(), entries = value<std::uint64_t>();
    for (std::uint64_t n = 0; n < entries; ++n) read_entry();
    read_tensors(tensors);
  }

  std::optional<double> number(const std::string& key) const { return find(numbers_, key); }
  std::optional<std::string> text(const std::string& key) const { return find(texts_, key); }
  std::optional<std::vector<double>> numbers(const std::string& key) const { return find(lists_, key); }

 private:
  enum type : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

  static constexpr std::uint64_t longest_text = std::uint64_t{1} << 20, longest_list = std::uint64_t{1} << 16;

  template <class T>
  static std::optional<T> find(const std::map<std::string, T>& in, const std::string& key) {
    const auto at = in.find(key);
    if (at == in.end()) return {};
    return at->second;
  }

  void take(std::uint64_t bytes) {
    if (bytes > left_) throw std::runtime_error("ends before its metadata do");
    left_ -= bytes;
  }
  void read(void* to, std::uint64_t bytes) {
    take(bytes);
    if (!file_.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes)))
      throw std::runtime_error("cannot be read");
  }
  void skip(std::uint64_t bytes) {
    take(bytes);
    file_.seekg(static_cast<std::streamoff>(bytes), std::ios::cur);
  }
  /// The bytes of a file are in little-endian order.
  template <class T>
  T value() {
    char bytes[sizeof(T)];
    read(bytes, sizeof bytes);
    if constexpr (std::endian::native == std::endian::big) std::reverse(bytes, bytes + sizeof bytes);
    T read_value;
    std::memcpy(&read_value, bytes, sizeof read_value);
    return read_value;
  }
  std::string read_text() {
    const auto length = value<std::uint64_t>();
    if (length > left_) throw std::runtime_error("ends before its metadata do");
    if (length > longest_text) throw std::runtime_error("has a text longer than 1 MiB");
    std::string read_value(static_cast<std::size_t>(length), '\0');
    read(read_value.data(), length);
    return read_value;
  }

  static std::uint64_t bytes_of(std::uint32_t of) {
    constexpr std::uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (of > f64 || of == string || of == array)
      throw std::runtime_error("has a value of the unknown type " + std::to_string(of));
    return bytes[of];
  }
  double read_number(std::uint32_t of) {
    switch (of) {
      case u8:
        return value<std::uint8_t>();
      case i8:
        return value<std::int8_t>();
      case u16:
        return value<std::uint16_t>();
      case i16:
        return value<std::int16_t>();
      case u32:
        return value<std::uint32_t>();
      case i32:
        return value<std::int32_t>();
      case f32:
        return static_cast<double>(value<float>());
      case boolean:
        return value<std::uint8_t>() != 0 ? 1 : 0;
      case u64:
        return static_cast<double>(value<std::uint64_t>());
      case i64:
        return static_cast<double>(value<std::int64_t>());
      case f64:
        return value<double>();
      default:
        throw std::runtime_error("has a value of the unknown type " + std::to_string(of));
    }
  }

  void read_entry() {
    const std::string key = read_text();
    const auto of = value<std::uint32_t>();
    if (of == string)
      texts_[key] = read_text();
    else if (of == array)
      read_list(key, 0);
    else
      numbers_[key] = read_number(of);
  }
  /// Numbers are kept. Texts (the vocabulary), lists of lists and long lists are skipped.
  void read_list(const std::string& key, int depth) {
    const auto of = value<std::uint32_t>();
    const auto count = value<std::uint64_t>();
    if (of == string) {
      for (std::uint64_t n = 0; n < count; ++n) skip(value<std::uint64_t>());
    } else if (of == array) {
      if (depth == 4) throw std::runtime_error("has lists of lists deeper than 4");
      for (std::uint64_t n = 0; n < count; ++n) read_list("", depth + 1);
    } else if (count > longest_list || depth > 0) {
      if (count > left_ / bytes_of(of)) throw std::runtime_error("ends before its metadata do");
      skip(count * bytes_of(of));
    } else {
      std::vector<double> list;
      for (std::uint64_t n = 0; n < count; ++n) list.push_back(read_number(of));
      lists_[key] = list;
    }
  }

  struct tensor {
    std::string name;
    std::uint64_t count, offset;
  };
  /// Keeps only tensors whose names begin with rope_, which must be lists of floats.
  void read_tensors(std::uint64_t count) {
    std::vector<tensor> wanted;
    for (std::uint64_t n = 0; n < count; ++n) {
      const std::string name = read_text();
      const auto dimensions = value<std::uint32_t>();
      if (dimensions > 4) throw std::runtime_error("has a tensor of more than 4 dimensions");
      std::uint64_t elements = 1;
      for (std::uint32_t d = 0; d < dimensions; ++d) {
        const auto extent = value<std::uint64_t>();
        elements = extent == 0 || elements > longest_list / extent ? longest_list + 1 : elements * extent;
      }
      const auto of = value<std::uint32_t>();
      const auto offset = value<std::uint64_t>();
      if (!name.starts_with("rope_")) continue;
      if (of != 0)
        throw std::runtime_error("has " + name + " of type " + std::to_string(of) +
                                 ", but it must be F32, type 0");
      if (elements > longest_list)
        throw std::runtime_error("has " + name + " without 1 to " + std::to_string(longest_list) +
                                 " elements");
      wanted.push_back({name, elements, offset});
    }
    const double given = number("general.alignment").value_or(32);
    if (!(given >= 1 && given <= 1 << 20)) throw std::runtime_error("has an alignment that is none");
    const auto alignment = static_cast<std::uint64_t>(given);
    const std::uint64_t data = (size_ - left_ + alignment - 1) / alignment * alignment;
    for (const tensor& one : wanted) {
      if (one.offset > size_ || data > size_ - one.offset || one.count * 4 > size_ - one.offset - data)
        throw std::runtime_error("ends before the tensor " + one.name + " does");
      file_.seekg(static_cast<std::streamoff>(data + one.offset));
      left_ = size_ - data - one.offset;
      std::vector<double> list;
      for (std::uint64_t n = 0; n < one.count; ++n) list.push_back(static_cast<double>(value<float>()));
      lists_[one.name] = list;
    }
  }

  std::istream& file_;
  std::uint64_t size_ = 0, left_ = 0;
  std::map<std::string, double> numbers_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, std::vector<double>> lists_;
};

#endif  // ROPE_EXAMPLES_GGUF_FILE_HPP
