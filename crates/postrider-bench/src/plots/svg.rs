//! Two kinds of drawings, written by hand: lines over an axis, and bars.
//!
//! They are shown on light pages and dark ones, so each has a ground of its own, and colours for both. No line is told from another
//! by its colour alone, and what is to be seen is also said in words.

use std::fmt::Write;

/// What both kinds have.
pub struct Sheet {
    pub title: String,
    /// Where the figures come from.
    pub source: String,
    /// What is to be seen, for whoever cannot see it.
    pub words: String,
}

/// A figure, and between which ones its runs lie.
#[derive(Debug, Clone, Copy)]
pub struct Figure {
    pub value: f64,
    pub least: f64,
    pub greatest: f64,
}

impl Figure {
    pub fn exact(value: f64) -> Figure {
        Figure { value, least: value, greatest: value }
    }
}

pub struct Line {
    pub name: String,
    pub marks: Vec<(f64, Figure)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// From 0.
    Linear,
    Log,
}

pub enum Axis {
    /// By powers of ten, with a place for 0.
    Amounts(&'static str),
    /// One place for each name.
    Names(&'static str, Vec<String>),
}

pub struct Lines {
    pub sheet: Sheet,
    pub across: Axis,
    pub up: (&'static str, Scale),
    pub lines: Vec<Line>,
}

pub struct Bar {
    pub name: String,
    pub figure: Figure,
}

pub struct Bars {
    pub sheet: Sheet,
    pub unit: &'static str,
    pub digits: usize,
    pub bars: Vec<Bar>,
}

impl Lines {
    pub fn draw(&self) -> String {
        let rows = self.lines.len().div_ceil(LEGEND_COLUMNS);
        let height = TOP + PLOT_HEIGHT + 56.0 + 20.0 * rows as f64;
        let mut svg = open(&self.sheet, height);
        let figures = self.lines.iter().flat_map(|line| &line.marks).map(|(_, figure)| *figure);
        let up = Ruler::of(self.up.1, figures, (TOP + PLOT_HEIGHT, TOP));
        for (at, label) in up.ticks() {
            let y = up.place(at);
            let _ = writeln!(svg, r#"<line class="grid" x1="{LEFT}" y1="{y:.1}" x2="{RIGHT}" y2="{y:.1}"/>"#);
            text(&mut svg, (LEFT - 8.0, y + 4.0), "end", "small", &label);
        }
        let middle = TOP + PLOT_HEIGHT / 2.0;
        let _ = writeln!(
            svg,
            r#"<text class="small" text-anchor="middle" transform="translate(16 {middle:.0}) rotate(-90)">{}</text>"#,
            escape(self.up.0)
        );
        let places = Places::of(self);
        for (at, label) in &places.ticks {
            let bottom = TOP + PLOT_HEIGHT;
            let _ = writeln!(
                svg,
                r#"<line class="axis" x1="{at:.1}" y1="{bottom}" x2="{at:.1}" y2="{:.1}"/>"#,
                bottom + 5.0
            );
            text(&mut svg, (*at, bottom + 18.0), "middle", "small", label);
        }
        let bottom = TOP + PLOT_HEIGHT;
        let _ = writeln!(svg, r#"<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{RIGHT}" y2="{bottom}"/>"#);
        let label = match &self.across {
            Axis::Amounts(label) | Axis::Names(label, _) => label,
        };
        text(&mut svg, ((LEFT + RIGHT) / 2.0, bottom + 38.0), "middle", "small", label);
        for (number, line) in self.lines.iter().enumerate() {
            // Spreads at one place stand side by side.
            let aside = (number as f64 - (self.lines.len() as f64 - 1.0) / 2.0) * 5.0;
            draw_line(&mut svg, (number, aside), line, |x| places.place(x), |y| up.place(y));
            let (row, column) = (number / LEGEND_COLUMNS, number % LEGEND_COLUMNS);
            let x = LEFT + column as f64 * (RIGHT - LEFT) / LEGEND_COLUMNS as f64;
            let y = bottom + 62.0 + 20.0 * row as f64;
            let kind = number % KINDS;
            let _ = writeln!(
                svg,
                r#"<line class="line k{kind}" x1="{x:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}"/>"#,
                y - 4.0,
                x + 28.0,
                y - 4.0
            );
            mark(&mut svg, kind, (x + 14.0, y - 4.0));
            text(&mut svg, (x + 36.0, y), "start", "small", &line.name);
        }
        svg + "</svg>\n"
    }
}

fn draw_line(
    svg: &mut String,
    (number, aside): (usize, f64),
    line: &Line,
    across: impl Fn(f64) -> f64,
    up: impl Fn(f64) -> f64,
) {
    let kind = number % KINDS;
    let marks: Vec<(f64, &Figure)> = line.marks.iter().map(|(at, figure)| (across(*at), figure)).collect();
    let path: Vec<String> = marks.iter().map(|(x, figure)| format!("{x:.1},{:.1}", up(figure.value))).collect();
    let _ = writeln!(svg, r#"<polyline class="line k{kind}" points="{}"/>"#, path.join(" "));
    for (x, figure) in marks {
        if figure.least < figure.greatest {
            let _ = writeln!(
                svg,
                r#"<line class="spread k{kind}" x1="{x:.1}" y1="{:.1}" x2="{x:.1}" y2="{:.1}"/>"#,
                up(figure.least),
                up(figure.greatest),
                x = x + aside
            );
        }
        mark(svg, kind, (x, up(figure.value)));
    }
}

/// A shape for each kind.
fn mark(svg: &mut String, kind: usize, (x, y): (f64, f64)) {
    let _ = match kind % 3 {
        0 => writeln!(svg, r#"<circle class="mark k{kind}" cx="{x:.1}" cy="{y:.1}" r="4"/>"#),
        1 => {
            let (x, y) = (x - 4.0, y - 4.0);
            writeln!(svg, r#"<rect class="mark k{kind}" x="{x:.1}" y="{y:.1}" width="8" height="8"/>"#)
        }
        _ => writeln!(
            svg,
            r#"<polygon class="mark k{kind}" points="{x:.1},{:.1} {:.1},{:.1} {:.1},{:.1}"/>"#,
            y - 5.0,
            x + 5.0,
            y + 4.0,
            x - 5.0,
            y + 4.0
        ),
    };
}

impl Bars {
    pub fn draw(&self) -> String {
        let height = TOP + BAR_PITCH * self.bars.len() as f64 + 48.0;
        let mut svg = open(&self.sheet, height);
        let figures = self.bars.iter().map(|bar| bar.figure);
        let ruler = Ruler::of(Scale::Linear, figures, (BARS_LEFT, BARS_RIGHT));
        let bottom = TOP + BAR_PITCH * self.bars.len() as f64;
        for (at, label) in ruler.ticks() {
            let x = ruler.place(at);
            let _ = writeln!(svg, r#"<line class="grid" x1="{x:.1}" y1="{TOP}" x2="{x:.1}" y2="{bottom:.1}"/>"#);
            text(&mut svg, (x, bottom + 16.0), "middle", "small", &label);
        }
        text(&mut svg, ((BARS_LEFT + BARS_RIGHT) / 2.0, bottom + 36.0), "middle", "small", self.unit);
        for (number, bar) in self.bars.iter().enumerate() {
            let y = TOP + BAR_PITCH * number as f64 + 4.0;
            let Figure { value, least, greatest } = bar.figure;
            let width = ruler.place(value) - BARS_LEFT;
            text(&mut svg, (BARS_LEFT - 8.0, y + 14.0), "end", "small", &bar.name);
            let _ =
                writeln!(svg, r#"<rect class="bar k0" x="{BARS_LEFT}" y="{y:.1}" width="{width:.1}" height="20"/>"#);
            let mut end = ruler.place(value);
            if least < greatest {
                let (from, to) = (ruler.place(least), ruler.place(greatest));
                end = end.max(to);
                let middle = y + 10.0;
                let _ = writeln!(
                    svg,
                    r#"<path class="whisker" d="M{from:.1} {middle:.1}H{to:.1}M{from:.1} {:.1}v8M{to:.1} {:.1}v8"/>"#,
                    middle - 4.0,
                    middle - 4.0
                );
            }
            let digits = self.digits;
            text(&mut svg, (end + 6.0, y + 14.0), "start", "small", &format!("{value:.digits$}"));
        }
        let _ = writeln!(svg, r#"<line class="axis" x1="{BARS_LEFT}" y1="{TOP}" x2="{BARS_LEFT}" y2="{bottom:.1}"/>"#);
        svg + "</svg>\n"
    }
}

/// From figures to places on the sheet.
struct Ruler {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Ruler {
    fn of(scale: Scale, figures: impl Iterator<Item = Figure>, (from, to): (f64, f64)) -> Ruler {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for figure in figures {
            low = low.min(figure.least);
            high = high.max(figure.greatest);
        }
        let (low, high) = match scale {
            Scale::Linear => (0.0, if high > 0.0 { high * 1.05 } else { 1.0 }),
            Scale::Log => {
                let low = if low.is_finite() && low > 0.0 { low } else { 0.01 };
                (10_f64.powf(low.log10().floor()), 10_f64.powf(high.max(low * 1.01).log10().ceil()))
            }
        };
        Ruler { scale, low, high, from, to }
    }

    fn place(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low).log10() - self.low.log10()) / (self.high.log10() - self.low.log10()),
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        match self.scale {
            Scale::Linear => {
                let rough = self.high / 6.0;
                let power = 10_f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|one| one * power).find(|step| *step >= rough);
                let step = step.unwrap_or(power);
                (0..).map(|count| f64::from(count) * step).take_while(|at| *at <= self.high).map(named).collect()
            }
            Scale::Log => {
                let (low, high) = (self.low.log10().round() as i32, self.high.log10().round() as i32);
                let between: &[f64] = if high - low > 3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
                let all = (low..=high).flat_map(|power| between.iter().map(move |one| one * 10_f64.powi(power)));
                all.filter(|at| *at <= self.high * 1.001).map(named).collect()
            }
        }
    }
}

fn named(at: f64) -> (f64, String) {
    (at, amount(at))
}

/// `300k`, `1.5M`.
pub fn amount(value: f64) -> String {
    let short = |value: f64, digits: usize| {
        let text = format!("{value:.digits$}");
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
    };
    match value {
        value if value >= 1e6 => format!("{}M", short(value / 1e6, 1)),
        value if value >= 1e4 => format!("{}k", short(value / 1e3, 0)),
        value if value >= 10.0 => short(value, 0),
        value => short(value, 3),
    }
}

/// Where marks stand across.
struct Places {
    /// Powers of ten that the sheet is wide, from the smallest amount down to the place of 0.
    low: f64,
    high: f64,
    named: bool,
    ticks: Vec<(f64, String)>,
}

impl Places {
    fn of(lines: &Lines) -> Places {
        match &lines.across {
            Axis::Names(_, names) => {
                let high = names.len().max(2) as f64 - 1.0;
                let mut places = Places { low: -0.3, high: high + 0.3, named: true, ticks: Vec::new() };
                let ticks = names.iter().enumerate().map(|(at, name)| (places.place(at as f64), name.clone()));
                places.ticks = ticks.collect();
                places
            }
            Axis::Amounts(_) => {
                let mut amounts: Vec<f64> =
                    lines.lines.iter().flat_map(|line| &line.marks).map(|(at, _)| *at).collect();
                amounts.sort_by(f64::total_cmp);
                amounts.dedup();
                let least = amounts.iter().copied().find(|at| *at > 0.0).unwrap_or(1.0);
                let has_zero = amounts.first().is_some_and(|at| *at <= 0.0);
                let low = least.log10() - if has_zero { ZERO_BEFORE } else { 0.1 };
                let high = amounts.last().copied().unwrap_or(1.0).max(least).log10() + 0.1;
                let mut places = Places { low, high, named: false, ticks: Vec::new() };
                let mut last = f64::NEG_INFINITY;
                for at in amounts {
                    let place = places.place(at);
                    // Two labels that close would be written over one another.
                    if place - last >= 34.0 {
                        places.ticks.push((place, amount(at)));
                        last = place;
                    }
                }
                places
            }
        }
    }

    fn place(&self, at: f64) -> f64 {
        let at = match (self.named, at > 0.0) {
            (true, _) => at,
            (false, true) => at.log10(),
            (false, false) => self.low + 0.1,
        };
        LEFT + (at - self.low) / (self.high - self.low) * (RIGHT - LEFT)
    }
}

fn open(sheet: &Sheet, height: f64) -> String {
    let Sheet { title, source, words } = sheet;
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0}" width="{WIDTH}" height="{height:.0}" role="img" aria-labelledby="title desc">
<title id="title">{}</title>
<desc id="desc">{}</desc>
<style>{STYLE}</style>
<rect class="ground" width="{WIDTH}" height="{height:.0}"/>
"#,
        escape(title),
        escape(words)
    );
    text(&mut svg, (16.0, 26.0), "start", "title", title);
    text(&mut svg, (16.0, 44.0), "start", "small faint", source);
    svg
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, class: &str, words: &str) {
    let words = escape(words);
    let _ = writeln!(svg, r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{words}</text>"#);
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const WIDTH: f64 = 760.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 736.0;
const TOP: f64 = 64.0;
const PLOT_HEIGHT: f64 = 280.0;
const BARS_LEFT: f64 = 200.0;
const BARS_RIGHT: f64 = 680.0;
const BAR_PITCH: f64 = 28.0;
const LEGEND_COLUMNS: usize = 2;
/// How far to the left of the smallest amount 0 stands, in powers of ten.
const ZERO_BEFORE: f64 = 0.6;
/// Colours, each with a dash of its own.
const KINDS: usize = 7;
const STYLE: &str = "
text { font-family: system-ui, 'DejaVu Sans', sans-serif; fill: #1b1f24 }
.title { font-size: 17px; font-weight: 600 }
.small { font-size: 12px }
.faint { fill: #57606a }
.ground { fill: #ffffff }
.grid { stroke: #d8dee4; stroke-width: 1 }
.axis { stroke: #57606a; stroke-width: 1 }
.line { fill: none; stroke-width: 2 }
.spread { stroke-width: 4; opacity: 0.4 }
.whisker { fill: none; stroke: #1b1f24; stroke-width: 1.5 }
.line.k0, .spread.k0 { stroke: #0969da } .mark.k0, .bar.k0 { fill: #0969da }
.line.k1, .spread.k1 { stroke: #bc4c00 } .mark.k1 { fill: #bc4c00 } .line.k1 { stroke-dasharray: 7 4 }
.line.k2, .spread.k2 { stroke: #1a7f37 } .mark.k2 { fill: #1a7f37 } .line.k2 { stroke-dasharray: 2 4 }
.line.k3, .spread.k3 { stroke: #8250df } .mark.k3 { fill: #8250df } .line.k3 { stroke-dasharray: 10 3 2 3 }
.line.k4, .spread.k4 { stroke: #9a6700 } .mark.k4 { fill: #9a6700 } .line.k4 { stroke-dasharray: 5 2 }
.line.k5, .spread.k5 { stroke: #bf3989 } .mark.k5 { fill: #bf3989 } .line.k5 { stroke-dasharray: 1 3 }
.line.k6, .spread.k6 { stroke: #57606a } .mark.k6 { fill: #57606a } .line.k6 { stroke-dasharray: 12 4 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .faint { fill: #9198a1 } .ground { fill: #0d1117 } .grid { stroke: #30363d }
  .axis { stroke: #9198a1 } .whisker { stroke: #e6edf3 }
  .line.k0, .spread.k0 { stroke: #4493f8 } .mark.k0 { fill: #4493f8 } .bar.k0 { fill: #1f6feb }
  .line.k1, .spread.k1 { stroke: #f0883e } .mark.k1 { fill: #f0883e }
  .line.k2, .spread.k2 { stroke: #3fb950 } .mark.k2 { fill: #3fb950 }
  .line.k3, .spread.k3 { stroke: #ab7df8 } .mark.k3 { fill: #ab7df8 }
  .line.k4, .spread.k4 { stroke: #d29922 } .mark.k4 { fill: #d29922 }
  .line.k5, .spread.k5 { stroke: #db61a2 } .mark.k5 { fill: #db61a2 }
  .line.k6, .spread.k6 { stroke: #9198a1 } .mark.k6 { fill: #9198a1 }
}
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_named_shortly() {
        for (value, expected) in [
            (0.0, "0"),
            (0.5, "0.5"),
            (2.0, "2"),
            (100.0, "100"),
            (3000.0, "3000"),
            (300_000.0, "300k"),
            (1.5e6, "1.5M"),
        ] {
            assert_eq!(amount(value), expected);
        }
    }

    #[test]
    fn a_ruler_is_marked_at_round_figures() {
        let ruler = |scale, high| Ruler::of(scale, [Figure::exact(high)].into_iter(), (0.0, 100.0));
        let linear: Vec<String> = ruler(Scale::Linear, 60.0).ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(linear, ["0", "20", "40", "60"]);
        let log: Vec<String> = ruler(Scale::Log, 60.0).ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(log, ["10", "20", "50", "100"]);
        assert_eq!(ruler(Scale::Linear, 0.0).place(0.0), 0.0, "nothing measured is drawn all the same");
    }

    #[test]
    fn what_is_drawn_stays_on_the_sheet_and_is_text_where_it_was_text() {
        let lines = Lines {
            sheet: Sheet { title: "a < b & c".to_owned(), source: String::new(), words: "words".to_owned() },
            across: Axis::Amounts("stored"),
            up: ("us", Scale::Linear),
            lines: vec![Line {
                name: "one".to_owned(),
                marks: vec![(0.0, Figure::exact(3.0)), (1e5, Figure { value: 4.0, least: 1.0, greatest: 9.0 })],
            }],
        };
        let svg = lines.draw();
        assert!(svg.contains("a &lt; b &amp; c") && svg.ends_with("</svg>\n"), "{svg}");
        let places = Places::of(&lines);
        assert!(places.place(0.0) >= LEFT && places.place(1e5) <= RIGHT);
        assert_eq!(places.ticks.iter().map(|(_, label)| label.as_str()).collect::<Vec<_>>(), ["0", "100k"]);
    }
}
