#include "daemon/phases/task.h"

namespace amem {

std::string_view to_string(Operation op) { return op == Operation::kPause ? "pause" : "resume"; }

std::string to_string(const Selection& selection) {
  if (selection.all()) return "";
  std::string text = selection.except ? "all but " : "";
  text += selection.tags.size() > 1 ? "tags" : "tag";
  const char* before = " ";
  for (const std::string& tag : selection.tags) {
    text += before + tag;
    before = ", ";
  }
  return text;
}

std::string describe(const Task& task, const std::string& group) {
  const std::string kind = task.deep ? "deep " : task.partial ? "partial " : "";
  std::string text = kind + std::string(to_string(task.op)) + " of ";
  if (!task.selection.all()) text += to_string(task.selection) + " of ";
  if (const std::size_t ranks = task.selection.ranks.size(); ranks > 0)
    text += std::to_string(ranks) + (ranks > 1 ? " ranks of " : " rank of ");
  text += "group '" + group + "'";
  if (!task.discard.empty()) text += ", dropping " + to_string(Selection{task.discard});
  if (task.guests == GuestPolicy::kPin) text += ", which leaves memory that guests have open";
  if (task.guests == GuestPolicy::kRefuse) text += ", which fails while guests have memory open";
  return text;
}

}  // namespace amem
