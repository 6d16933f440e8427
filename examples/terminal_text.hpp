// Wraps text to the width of a terminal.
//
//     const std::string text = "  heads                   32 for queries, 8 for keys\n";
//     std::fputs(fitted(text, text_columns()).c_str(), stdout);

#ifndef ROPE_EXAMPLES_TERMINAL_TEXT_HPP
#define ROPE_EXAMPLES_TERMINAL_TEXT_HPP

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string>

#if __has_include(<sys/ioctl.h>) && __has_include(<unistd.h>)
#include <sys/ioctl.h>
#include <unistd.h>
#endif

/// The environment variable COLUMNS, or the width of the terminal. 0: no limit. Output to a file or another
/// program is not wrapped, so that it can be searched.
inline std::size_t text_columns() {
  if (const char* columns = std::getenv("COLUMNS"))
    if (const long wide = std::strtol(columns, nullptr, 10); wide > 0) return static_cast<std::size_t>(wide);
#ifdef TIOCGWINSZ
  if (winsize size = {}; isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0)
    return size.ws_col;
#endif
  return 0;
}

/// The text with lines broken at spaces, and control characters as '?', because the contents of files are not
/// trusted. Broken lines continue below the second column of the line if it starts early enough, or below the
/// text of a list item. Words longer than a line are not broken.
///
/// \param columns  0: no limit
inline std::string fitted(const std::string& text, std::size_t columns) {
  const auto width = [](const std::string& part) {
    std::size_t characters = 0;  // of UTF-8: bytes that continue one do not count
    for (const char c : part) characters += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    return characters;
  };
  std::string all;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    for (char& c : line)
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    begin = end + 1;

    const std::size_t start = line.find_first_not_of(' ');
    std::size_t indent = start == std::string::npos ? 0 : start + 2, gap = line.find("  ", indent);
    if (gap != std::string::npos)
      if (gap = line.find_first_not_of(' ', gap); 3 * gap <= 2 * columns) indent = gap;
    while (columns > indent && width(line) > columns) {
      std::size_t last = line.find(' ', line.find_first_not_of(' ', indent)), next = last;
      for (; next != std::string::npos && width(line.substr(0, next)) <= columns;
           next = line.find(' ', next + 1))
        last = next;
      if (last == std::string::npos) break;
      all += line.substr(0, line.find_last_not_of(' ', last) + 1) + '\n';
      line = std::string(indent, ' ') + line.substr(last + 1);
    }
    all += line + (end < text.size() ? "\n" : "");
  }
  return all;
}

#endif  // ROPE_EXAMPLES_TERMINAL_TEXT_HPP
