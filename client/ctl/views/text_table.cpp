#include "client/ctl/views/text_table.h"

#include <algorithm>
#include <utility>

#include "client/ctl/views/format.h"

namespace amem::ctl {
namespace {

constexpr std::size_t kGap = 2;

const char* escape(Tone tone) {
  switch (tone) {
    case Tone::kBold:
      return "\x1b[1m";
    case Tone::kDim:
      return "\x1b[2m";
    case Tone::kGood:
      return "\x1b[32m";
    case Tone::kBusy:
      return "\x1b[33m";
    case Tone::kIdle:
      return "\x1b[36m";
    case Tone::kBad:
      return "\x1b[31m";
    case Tone::kPlain:
      break;
  }
  return "";
}

}  // namespace

std::string Style::operator()(Tone tone, std::string_view text) const {
  if (!color || tone == Tone::kPlain || text.empty()) return std::string(text);
  return escape(tone) + std::string(text) + "\x1b[0m";
}

void TextTable::add(std::vector<Cell> row) {
  for (Cell& cell : row) cell.text = printable(cell.text);
  rows_.push_back(std::move(row));
}

std::string TextTable::render(const Style& style) const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::size_t width = display_width(columns_[i].title);
    for (const auto& row : rows_) width = std::max(width, display_width(row[i].text));
    widths.push_back(width);
  }

  std::string out;
  std::size_t owed = 0;  // spaces that are written only when more text follows on the line
  const auto put = [&](std::size_t i, std::string_view text, Tone tone) {
    const std::size_t pad = widths[i] - display_width(text);
    if (columns_[i].align == Align::kRight) owed += pad;
    if (!text.empty()) {
      out.append(owed, ' ');
      owed = 0;
      out += style(tone, text);
    }
    if (columns_[i].align == Align::kLeft) owed += pad;
    owed += kGap;
  };
  const auto end_line = [&] {
    out += '\n';
    owed = 0;
  };
  for (std::size_t i = 0; i < columns_.size(); ++i) put(i, columns_[i].title, Tone::kBold);
  end_line();
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < columns_.size(); ++i) put(i, row[i].text, row[i].tone);
    end_line();
  }
  return out;
}

}  // namespace amem::ctl
