// Permutes the query and key weights of a checkpoint from one layout to the other, for programs that pair
// channels the other way. The model generates the same text.
//
//     rope_convert_checkpoint_layout FOLDER NEW_FOLDER interleaved

#include <exception>
#include <iostream>
#include <rope/rotation.hpp>
#include <string>
#include <vector>

#include "checkpoint_layout.hpp"

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() != 3 || (words[2] != "interleaved" && words[2] != "half_split")) {
    std::cerr << "usage: rope_convert_checkpoint_layout FOLDER NEW_FOLDER interleaved|half_split\n"
                 "  FOLDER      with config.json and model.safetensors\n"
                 "  NEW_FOLDER  where they are written with query and key weights in that layout\n";
    return 2;
  }
  try {
    const auto layout =
        words[2] == "interleaved" ? rope::layout_kind::interleaved : rope::layout_kind::half_split;
    const int reordered = checkpoint_layout::convert(words[0], words[1], layout);
    std::cout << reordered << " tensors reordered to " << words[2] << "; config.json says rope_interleave: "
              << (layout == rope::layout_kind::interleaved ? "true" : "false") << '\n';
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
