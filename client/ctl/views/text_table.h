// TextTable: aligned columns of text for people, and Style, which colours them on a terminal.
//
// Plain values that do no I/O; not synchronised.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace amem::ctl {

enum class Tone { kPlain, kBold, kDim, kGood, kBusy, kIdle, kBad };

struct Style {
  bool color = false;

  /// The text in that tone; the text itself when colours are off.
  std::string operator()(Tone tone, std::string_view text) const;
};

enum class Align { kLeft, kRight };
inline constexpr Align kRight = Align::kRight;  // of columns of figures

struct Column {
  std::string title;
  Align align = Align::kLeft;
};

struct Cell {
  Cell(std::string cell_text, Tone cell_tone = Tone::kPlain)  // NOLINT: meant to convert
      : text(std::move(cell_text)), tone(cell_tone) {}
  Cell(const char* cell_text) : text(cell_text) {}  // NOLINT: meant to convert

  std::string text;
  Tone tone = Tone::kPlain;
};

class TextTable {
 public:
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// REQUIRES: one cell per column. Control characters are made harmless.
  void add(std::vector<Cell> row);
  bool empty() const { return rows_.empty(); }

  /// A line of titles, then a line per row, each ended by a newline and without trailing spaces.
  std::string render(const Style& style) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace amem::ctl
