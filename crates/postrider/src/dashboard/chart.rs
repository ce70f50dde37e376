//! Charts, drawn as plain pictures: nothing has to run in the browser.

/// The picture's own measure; the page stretches it.
pub const WIDTH: f64 = 600.0;
pub const HEIGHT: f64 = 120.0;

/// Bars beside each other, each of what went well with what did not on top of it.
pub struct Bars {
    pub bars: Vec<Bar>,
    /// What the full height stands for.
    pub top: String,
}

pub struct Bar {
    pub x: f64,
    pub width: f64,
    pub good: Part,
    pub bad: Part,
    /// The whole height, to be pointed at.
    pub told: String,
}

pub struct Part {
    pub y: f64,
    pub height: f64,
}

impl Bars {
    /// Of what went well, what did not, and what is told of both.
    pub fn new(counts: Vec<(u64, u64, String)>) -> Self {
        let most = counts.iter().map(|(good, bad, _)| good + bad).max().unwrap_or(0);
        let top = round_up(most as f64);
        let slot = WIDTH / counts.len().max(1) as f64;
        let bars = counts.into_iter().enumerate().map(|(place, (good, bad, told))| {
            let height = |count: u64| HEIGHT * count as f64 / top;
            let good_part = Part { y: rounded(HEIGHT - height(good)), height: rounded(height(good)) };
            let bad_part = Part { y: rounded(HEIGHT - height(good) - height(bad)), height: rounded(height(bad)) };
            let (x, width) = (rounded(place as f64 * slot), rounded((slot * 0.8).max(0.5)));
            Bar { x, width, good: good_part, bad: bad_part, told }
        });
        Self { bars: bars.collect(), top: short(top) }
    }
}

/// Lines over the same time, each with gaps where nothing is known.
pub struct Lines {
    /// The points of each line, a text for each stretch without a gap.
    pub lines: Vec<Vec<String>>,
    pub top: String,
}

impl Lines {
    pub fn new(lines: &[Vec<Option<f64>>], unit: fn(f64) -> String) -> Self {
        let most = lines.iter().flatten().flatten().copied().fold(0.0, f64::max);
        let top = round_up(most);
        Self { lines: lines.iter().map(|line| stretches(line, top)).collect(), top: unit(top) }
    }
}

fn stretches(line: &[Option<f64>], top: f64) -> Vec<String> {
    let slot = WIDTH / line.len().max(1) as f64;
    let places = line.iter().enumerate().map(|(place, value)| {
        let value = (*value)?;
        Some((rounded((place as f64 + 0.5) * slot), rounded(HEIGHT - HEIGHT * value / top)))
    });
    let places: Vec<Option<(f64, f64)>> = places.collect();
    let stretches = places.split(Option::is_none).filter(|stretch| !stretch.is_empty());
    let drawn = stretches.map(|stretch| {
        let mut known: Vec<(f64, f64)> = stretch.iter().copied().flatten().collect();
        // A single point would not be seen.
        if let [(x, y)] = known[..] {
            known = vec![(rounded(x - slot * 0.4), y), (rounded(x + slot * 0.4), y)];
        }
        known.iter().map(|(x, y)| format!("{x},{y}")).collect::<Vec<_>>().join(" ")
    });
    drawn.collect()
}

/// The next number that begins with 1, 2 or 5, so that the scale can be read.
fn round_up(value: f64) -> f64 {
    if value <= 1.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|first| first * power).find(|top| *top >= value).unwrap_or(value)
}

fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// `1,234` as it is, `12.3k`, `4.5M`.
pub fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => trimmed(value / 1e6, "M"),
        value if value >= 1e4 => trimmed(value / 1e3, "k"),
        value => format!("{value:.0}"),
    }
}

/// Milliseconds as people say them.
pub fn duration(millis: f64) -> String {
    match millis {
        millis if millis < 1_000.0 => format!("{millis:.0} ms"),
        millis if millis < 60_000.0 => trimmed(millis / 1e3, " s"),
        millis if millis < 3_600_000.0 => trimmed(millis / 6e4, " min"),
        millis => trimmed(millis / 3.6e6, " h"),
    }
}

fn trimmed(value: f64, unit: &str) -> String {
    let text = format!("{value:.1}");
    format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_stand_on_the_ground_and_on_one_another() {
        let chart = Bars::new(vec![(3, 1, "a".to_owned()), (0, 0, "b".to_owned())]);
        assert_eq!(chart.top, "5");
        let bar = &chart.bars[0];
        assert_eq!((bar.good.y, bar.good.height), (48.0, 72.0));
        assert_eq!((bar.bad.y, bar.bad.height), (24.0, 24.0));
        assert_eq!((chart.bars[1].x, chart.bars[1].good.height), (300.0, 0.0));
        assert!(Bars::new(Vec::new()).bars.is_empty());
    }

    #[test]
    fn a_line_has_gaps_where_nothing_is_known() {
        let chart = Lines::new(&[vec![Some(10.0), None, Some(5.0), Some(0.0)]], short);
        assert_eq!(chart.top, "10");
        assert_eq!(chart.lines[0], ["15,0 135,0", "375,60 525,120"]);
        assert_eq!(Lines::new(&[vec![None]], short).lines[0].len(), 0);
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [(0.0, "0"), (9_999.0, "9999"), (12_300.0, "12.3k"), (2e6, "2M")] {
            assert_eq!(short(value), text);
        }
        for (value, text) in [(7.4, "7 ms"), (1_500.0, "1.5 s"), (120_000.0, "2 min"), (5.4e6, "1.5 h")] {
            assert_eq!(duration(value), text);
        }
        for (value, top) in [(0.0, 1.0), (3.0, 5.0), (11.0, 20.0), (100.0, 100.0), (501.0, 1_000.0)] {
            assert_eq!(round_up(value), top);
        }
    }
}
