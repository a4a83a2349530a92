// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/explain_draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <string_view>

#include "serve/svg_plot.h"

namespace plait::tool {
namespace {

// Page geometry in SVG units.
constexpr double kWidth = 1200;
constexpr double kLeft = 74;
constexpr double kRight = 24;
constexpr double kTop = 78;
constexpr double kChart = kWidth - kLeft - kRight;

std::string time_text(double ns) {
  if (ns >= 1e6) return fmt::format("{:.2f} ms", ns / 1e6);
  if (ns >= 1e3) return fmt::format("{:.1f} us", ns / 1e3);
  return fmt::format("{:.0f} ns", ns);
}

/// 1, 2 or 5 times a power of ten, about a sixth of `span`.
double tick_step(double span) {
  const double power = std::pow(10.0, std::floor(std::log10(std::max(span, 1e-9) / 6)));
  for (double m : {1.0, 2.0, 5.0}) {
    if (power * m * 8 >= span) return power * m;
  }
  return power * 10;
}

class Painter {
 public:
  explicit Painter(const Drawing& drawing) : d_(drawing) {
    const int workers = std::max(d_.picture.num_workers, 1);
    row_ = std::clamp(620.0 / workers, 2.4, 26.0);
    gap_ = row_ >= 8 ? 2.0 : row_ >= 4 ? 0.8 : 0.4;
    chart_height_ = row_ * workers + 10.0 * static_cast<double>(gaps());
    double longest = d_.picture.longest_ns;
    for (const WorkerTime& t : d_.measured) {
      longest = std::max(longest, static_cast<double>(t.end_ns));
    }
    scale_ = longest > 0 ? kChart / (longest * 1.01) : 0;
    longest_ = longest;
  }

  std::string svg() {
    begin();
    axis();
    items();
    measured();
    class_labels();
    merges();
    split();
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" "
               "font-family=\"Inter, 'Helvetica Neue', Arial, sans-serif\" font-size=\"12\">\n",
               kWidth, bottom_) +
           body_ + "</svg>\n";
  }

 private:
  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(body_), format, std::forward<Args>(args)...);
  }
  std::size_t gaps() const {
    std::size_t n = 0;
    for (const PictureClass& c : d_.picture.classes) n += c.first_worker > 0 ? 1 : 0;
    return n;
  }
  double x(double ns) const { return kLeft + ns * scale_; }
  double y(std::int32_t worker) const {
    double at = kTop + row_ * worker;
    for (const PictureClass& c : d_.picture.classes) {
      if (c.first_worker > 0 && worker >= c.first_worker) at += 10;
    }
    return at;
  }

  void begin() {
    put("<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n");
    put("<text x=\"{}\" y=\"26\" font-size=\"18\" font-weight=\"600\" fill=\"#1d2430\">{}</text>\n",
        kLeft, serve::escape_html(d_.title));
    put("<text x=\"{}\" y=\"46\" fill=\"#5b6472\">{}</text>\n", kLeft,
        serve::escape_html(d_.subtitle));
  }

  void axis() {
    const double step = tick_step(longest_);
    const double bottom = kTop + chart_height_;
    for (double t = 0; step > 0 && t <= longest_ * 1.005; t += step) {
      put("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" "
          "stroke=\"#e6e8ec\"/>\n<text x=\"{0:.1f}\" y=\"{3:.1f}\" text-anchor=\"middle\" "
          "font-size=\"11\" fill=\"#5b6472\">{4}</text>\n",
          x(t), kTop - 4, bottom + 2, kTop - 9, t == 0 ? std::string("0") : time_text(t));
    }
    const double mean = x(d_.picture.mean_ns);
    put("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"#1d2430\" "
        "stroke-dasharray=\"4 3\" stroke-width=\"1\"/>\n",
        mean, kTop - 4, bottom + 4);
    put("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\" font-size=\"11\" "
        "fill=\"#1d2430\">mean load</text>\n",
        mean - 5, bottom + 14);
    bottom_ = bottom + 22;
  }

  /// Whole items in blue by request, partial ones in orange; neighbours differ in lightness.
  static std::string color(const PictureItem& item) {
    static constexpr std::array<std::string_view, 5> kWhole = {"#3b6fb6", "#5d8fd0", "#7fabdf",
                                                               "#4a80c4", "#9cc1ea"};
    static constexpr std::array<std::string_view, 4> kPartial = {"#e08a2e", "#eca85c", "#d67715",
                                                                 "#f2bf85"};
    const std::size_t r = static_cast<std::size_t>(item.request);
    if (item.first_merge < 0) return std::string(kWhole[r % kWhole.size()]);
    return std::string(kPartial[r % kPartial.size()]);
  }

  void items() {
    put("<g>\n");
    for (const PictureItem& item : d_.picture.items) {
      const double width = std::max((item.end_ns - item.begin_ns) * scale_ - 0.35, 0.3);
      put("<rect class=\"i{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" "
          "fill=\"{}\"><title>worker {}: request {}, KV head {}, {} rows x {} keys, {}{}</title>"
          "</rect>\n",
          item.first_merge < 0 ? std::string()
                               : fmt::format(" m{}h{}", item.first_merge, item.head),
          x(item.begin_ns), y(item.worker), width, row_ - gap_, color(item), item.worker,
          item.request, item.head, item.rows, item.tokens, time_text(item.end_ns - item.begin_ns),
          item.first_merge < 0 ? ", writes the output"
          : item.num_merges == 1
              ? fmt::format(", partial state of merge {}", item.first_merge)
              : fmt::format(", partial states of merges {}..{}", item.first_merge,
                            item.first_merge + item.num_merges - 1));
    }
    put("</g>\n");
  }

  void measured() {
    if (d_.measured.empty()) return;
    const double thick = std::clamp(row_ * 0.22, 0.8, 3.0);
    put("<g stroke=\"#1d2430\" stroke-width=\"{:.1f}\">\n", thick);
    for (std::size_t i = 0; i < d_.measured.size(); ++i) {
      const WorkerTime& t = d_.measured[i];
      const double at = y(d_.measured_row[i]) + (row_ - gap_) / 2;
      put("<line x1=\"{:.2f}\" x2=\"{:.2f}\" y1=\"{:.2f}\" y2=\"{:.2f}\"><title>measured: {} to "
          "{}</title></line>\n",
          x(static_cast<double>(t.begin_ns)), x(static_cast<double>(t.end_ns)), at, at,
          time_text(static_cast<double>(t.begin_ns)), time_text(static_cast<double>(t.end_ns)));
    }
    put("</g>\n");
  }

  void class_labels() {
    for (const PictureClass& c : d_.picture.classes) {
      const double top = y(c.first_worker);
      const double end = y(c.first_worker + c.num_workers - 1) + row_ - gap_;
      put("<line x1=\"{0}\" x2=\"{0}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"#5b6472\" "
          "stroke-width=\"2\"/>\n",
          kLeft - 8, top, end);
      const double middle = (top + end) / 2;
      if (end - top < 60) {
        put("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" font-size=\"11\" "
            "fill=\"#5b6472\">{}</text>\n",
            kLeft - 14, middle + 4, c.num_workers);
        continue;
      }
      put("<text transform=\"translate({},{:.1f}) rotate(-90)\" text-anchor=\"middle\" "
          "font-size=\"11\" fill=\"#5b6472\">{} workers</text>\n"
          "<text transform=\"translate({},{:.1f}) rotate(-90)\" text-anchor=\"middle\" "
          "font-size=\"11\" fill=\"#5b6472\">query tile {}</text>\n",
          kLeft - 32, middle, c.num_workers, kLeft - 16, middle, c.q_tile);
      if (d_.picture.classes.size() > 1 && c.first_worker == 0 &&
          d_.picture.classes[1].first_worker == 0) {
        break;  // the same workers run every class
      }
    }
  }

  /// Merges by how many states they join.
  void merges() {
    bottom_ += 14;
    const double swatch = bottom_ - 9;
    double at = kLeft;
    const auto legend = [&](std::string_view fill, const std::string& text) {
      put("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"18\" height=\"10\" fill=\"{}\"/>"
          "<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#1d2430\">{}</text>\n",
          at, swatch, fill, at + 24, bottom_, text);
      at += 40 + 6.3 * static_cast<double>(text.size());
    };
    std::int64_t partial = 0;
    for (const PictureItem& item : d_.picture.items) partial += item.first_merge >= 0 ? 1 : 0;
    legend("#3b6fb6", fmt::format("{} items write the output",
                                  static_cast<std::int64_t>(d_.picture.items.size()) - partial));
    legend("#e08a2e", fmt::format("{} items write a partial state", partial));
    if (!d_.measured.empty()) legend("#1d2430", "measured, first item to last");
    bottom_ += 20;
    if (d_.picture.merges.empty()) return;
    std::map<std::int32_t, std::int64_t> by_states;
    for (const PictureMerge& m : d_.picture.merges) by_states[m.states] += m.heads;
    std::string text = "Merges: ";
    int shown = 0;
    for (const auto& [states, count] : by_states) {
      if (++shown > 7) {
        text += ", ...";
        break;
      }
      text += fmt::format("{}{} of {} state{}", shown > 1 ? ", " : "", count, states,
                          states == 1 ? "" : "s");
    }
    put("<text x=\"{}\" y=\"{:.1f}\" fill=\"#1d2430\">{}</text>\n", kLeft, bottom_, text);
    bottom_ += 20;
  }

  /// The step's time as one bar.
  void split() {
    const double total = d_.parts.total_ns();
    if (total <= 0) return;
    put("<text x=\"{}\" y=\"{:.1f}\" fill=\"#1d2430\" font-weight=\"600\">Where the step's {} "
        "go</text>\n",
        kLeft, bottom_ + 6, time_text(total));
    bottom_ += 16;
    double at = kLeft;
    for (const StepPart& p : parts_of(d_.parts)) {
      const double width = kChart * p.ns / total;
      put("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"20\" fill=\"{}\">"
          "<title>{}: {}</title></rect>\n",
          at, bottom_, std::max(width, 0.0), p.color, p.name, time_text(p.ns));
      at += width;
    }
    bottom_ += 36;
    at = kLeft;
    for (const StepPart& p : parts_of(d_.parts)) {
      const std::string text = fmt::format("{} {}", p.name, p.share());
      put("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"10\" height=\"10\" fill=\"{}\"/>"
          "<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#1d2430\">{}</text>\n",
          at, bottom_ - 9, p.color, at + 15, bottom_, text);
      at += 34 + 6.6 * static_cast<double>(text.size());
    }
    bottom_ += 18;
  }

  const Drawing& d_;
  std::string body_;
  double row_ = 0, gap_ = 0, chart_height_ = 0, scale_ = 0, longest_ = 0, bottom_ = 0;
};

}  // namespace

std::string draw_svg(const Drawing& drawing) { return Painter(drawing).svg(); }

std::string draw_html(const Drawing& drawing) {
  return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
         serve::escape_html(drawing.title) +
         "</title>\n<style>body{margin:16px;background:#fff}"
         "svg{max-width:1400px;width:100%;min-width:900px}"
         "rect.on{fill:#c2272d}</style></head><body>\n" +
         draw_svg(drawing) +
         "<script>\n"
         "// Hovering a partial item shows the others of its merge.\n"
         "const key = e => [...e.classList].find(c => /^m\\d+h\\d+$/.test(c));\n"
         "document.querySelectorAll('rect').forEach(e => {\n"
         "  const k = key(e);\n"
         "  if (!k) return;\n"
         "  e.addEventListener('mouseenter', () => document.querySelectorAll('.' + k)"
         ".forEach(o => o.classList.add('on')));\n"
         "  e.addEventListener('mouseleave', () => document.querySelectorAll('.' + k)"
         ".forEach(o => o.classList.remove('on')));\n"
         "});\n</script></body></html>\n";
}

}  // namespace plait::tool
