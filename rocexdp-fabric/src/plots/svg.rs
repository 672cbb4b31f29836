//! Charts as SVG text: lines over an axis, and heatmaps. No scripts, no fonts but the viewer's.
//!
//! Must not: know what the numbers are.

use std::fmt::Write;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 52.0;
/// A line of the legend.
const LEGEND: f64 = 18.0;
const GREY: &str = "#6b7280";
const DARK: &str = "#111827";
/// Told apart by most eyes, on white (after Okabe and Ito, with more).
const COLOURS: [&str; 12] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7c3aed", "#a16207",
    "#dc2626", "#475569", "#65a30d", "#0e7490",
];
/// Lines beyond those that have a colour.
const OTHERS: &str = "#cbd5e1";

/// A chart of lines.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// Over it.
    pub title: String,
    /// What is along the bottom.
    pub x: Axis,
    /// What is up the side.
    pub y: Axis,
    /// In the order of the legend.
    pub lines: Vec<Line>,
    /// Levels worth knowing.
    pub levels: Vec<Level>,
    /// Written where there is nothing to draw.
    pub empty: String,
}

/// An axis.
#[derive(Clone, Debug, Default)]
pub struct Axis {
    /// What it shows, unit included.
    pub label: String,
    /// Begins here rather than at 0.
    pub least: Option<f64>,
    /// Ends here at least.
    pub most: Option<f64>,
    /// Logarithmic.
    pub log: bool,
}

/// A line.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// In the legend.
    pub name: String,
    /// Places along the axes.
    pub points: Vec<(f64, f64)>,
}

/// A level across the chart.
#[derive(Clone, Debug, Default)]
pub struct Level {
    /// At its right end.
    pub name: String,
    /// Along the vertical axis.
    pub at: f64,
}

/// Makes text safe inside an SVG.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, fill: &str, text: &str) {
    let text = escape(text);
    _ = writeln!(
        out,
        r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="{fill}">{text}</text>"#
    );
}

fn rule(out: &mut String, from: (f64, f64), to: (f64, f64), stroke: &str, dashes: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    _ = writeln!(
        out,
        r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{stroke}" stroke-width="1"{dashes}/>"#
    );
}

fn begin(out: &mut String, height: f64, title: &str) {
    _ = writeln!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0}" viewBox="0 0 {WIDTH} {height:.0}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="#ffffff"/>"##
    );
    out.push_str("<g font-size=\"15\" font-weight=\"bold\">\n");
    text(out, (LEFT, 26.0), "start", DARK, title);
    out.push_str("</g>\n");
}

/// A number as short as it says the same.
fn short(value: f64) -> String {
    let text = format!("{value:.6}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// A range of values, and where they lie on the picture.
#[derive(Clone, Copy)]
struct Scale {
    least: f64,
    most: f64,
    from: f64,
    to: f64,
    log: bool,
}

impl Scale {
    fn new(axis: &Axis, values: impl Iterator<Item = f64>, (from, to): (f64, f64)) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.is_finite() && (!axis.log || *value > 0.0)) {
            low = low.min(value);
            high = high.max(value);
        }
        let high = axis.most.map_or(high, |most| high.max(most));
        let high = if high.is_finite() { high } else { 1.0 };
        let least = match (axis.least, axis.log) {
            (Some(least), _) => least,
            (None, true) => {
                if low.is_finite() {
                    low
                } else {
                    high / 10.0
                }
            }
            (None, false) => 0.0,
        };
        // Room for what has no extent.
        let most = if high > least {
            high
        } else {
            least + if axis.log { least.abs() } else { 1.0 }
        };
        Self {
            least,
            most,
            from,
            to,
            log: axis.log,
        }
    }

    fn place(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.least).ln() - self.least.ln()) / (self.most.ln() - self.least.ln())
        } else {
            (value - self.least) / (self.most - self.least)
        };
        self.from + (self.to - self.from) * share.clamp(0.0, 1.0)
    }

    fn ticks(&self, wanted: f64) -> Vec<f64> {
        let (least, most) = (self.least, self.most);
        // Within half a decade, 1, 2 and 5 are too few.
        if self.log && most > least * 5.0 {
            return decades(least, most);
        }
        let rough = ((most - least) / wanted).max(f64::MIN_POSITIVE);
        let power = 10_f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power);
        let step = steps
            .into_iter()
            .find(|step| *step >= rough * 0.999)
            .unwrap_or(rough);
        let first = (least / step).ceil() as i64;
        let last = (most / step + 1e-9).floor() as i64;
        (first..=last).map(|n| n as f64 * step).collect()
    }
}

/// 1, 2 and 5 times powers of ten, or powers alone where there are many.
fn decades(least: f64, most: f64) -> Vec<f64> {
    let (first, last) = (least.log10().floor() as i32, most.log10().ceil() as i32);
    let factors: &[f64] = if last - first <= 3 {
        &[1.0, 2.0, 5.0]
    } else {
        &[1.0]
    };
    let all = (first..=last).flat_map(|power| factors.iter().map(move |f| f * 10_f64.powi(power)));
    all.filter(|tick| (least * 0.999..=most * 1.001).contains(tick))
        .collect()
}

impl Chart {
    /// The picture.
    #[must_use]
    pub fn draw(&self) -> String {
        let legend = self.legend();
        let top = TOP + LEGEND * legend.len().saturating_sub(1) as f64;
        let height = HEIGHT + top - TOP;
        let mut out = String::new();
        begin(&mut out, height, &self.title);
        let (right, bottom) = (WIDTH - RIGHT, height - BOTTOM);
        let values = || self.lines.iter().flat_map(|line| &line.points);
        let x = Scale::new(&self.x, values().map(|point| point.0), (LEFT, right));
        let ys = values()
            .map(|point| point.1)
            .chain(self.levels.iter().map(|level| level.at));
        let mut y = Scale::new(&self.y, ys, (bottom, top));
        // Some air above the highest.
        if self.y.most.is_none() && !y.log {
            y.most += (y.most - y.least) * 0.05;
        }
        self.axes(&mut out, &x, &y);
        for (row, names) in legend.iter().enumerate() {
            for (name, colour, at) in names {
                let line = 44.0 + LEGEND * row as f64;
                rule(
                    &mut out,
                    (*at, line - 4.0),
                    (at + 18.0, line - 4.0),
                    colour,
                    " style=\"stroke-width:3\"",
                );
                text(&mut out, (at + 23.0, line), "start", "#374151", name);
            }
        }
        if values().next().is_none() {
            text(
                &mut out,
                ((LEFT + right) / 2.0, (top + bottom) / 2.0),
                "middle",
                GREY,
                &self.empty,
            );
        }
        for level in &self.levels {
            let at = y.place(level.at);
            rule(
                &mut out,
                (LEFT, at),
                (right, at),
                GREY,
                " stroke-dasharray=\"5 4\"",
            );
            text(&mut out, (right - 4.0, at - 4.0), "end", GREY, &level.name);
        }
        // Those without a colour of their own below the others.
        for (n, line) in self.lines.iter().enumerate().rev() {
            let mut path = String::new();
            for (n, point) in line.points.iter().enumerate() {
                let command = if n == 0 { 'M' } else { 'L' };
                _ = write!(
                    path,
                    "{command}{:.1} {:.1}",
                    x.place(point.0),
                    y.place(point.1)
                );
            }
            let colour = COLOURS.get(n).unwrap_or(&OTHERS);
            _ = writeln!(
                out,
                r#"<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5" stroke-linejoin="round"/>"#
            );
        }
        out.push_str("</svg>\n");
        out
    }

    /// Rows of names, with colours and places.
    fn legend(&self) -> Vec<Vec<(String, &'static str, f64)>> {
        let mut names: Vec<_> = self
            .lines
            .iter()
            .zip(COLOURS)
            .map(|(line, colour)| (line.name.clone(), colour))
            .collect();
        if self.lines.len() > COLOURS.len() {
            names.push((
                format!("{} others", self.lines.len() - COLOURS.len()),
                OTHERS,
            ));
        }
        let mut rows = vec![Vec::new()];
        let mut at = LEFT;
        for (name, colour) in names {
            let width = 40.0 + 6.6 * name.chars().count() as f64;
            if at + width > WIDTH - RIGHT && at > LEFT {
                rows.push(Vec::new());
                at = LEFT;
            }
            if let Some(row) = rows.last_mut() {
                row.push((name, colour, at));
            }
            at += width;
        }
        rows
    }

    fn axes(&self, out: &mut String, x: &Scale, y: &Scale) {
        for tick in y.ticks(6.0) {
            let at = y.place(tick);
            rule(out, (x.from, at), (x.to, at), "#eef0f3", "");
            text(out, (x.from - 8.0, at + 4.0), "end", GREY, &short(tick));
        }
        for tick in x.ticks(10.0) {
            let at = x.place(tick);
            rule(out, (at, y.to), (at, y.from), "#eef0f3", "");
            text(out, (at, y.from + 17.0), "middle", GREY, &short(tick));
        }
        rule(out, (x.from, y.from), (x.to, y.from), "#9ca3af", "");
        rule(out, (x.from, y.to), (x.from, y.from), "#9ca3af", "");
        text(
            out,
            ((x.from + x.to) / 2.0, y.from + 38.0),
            "middle",
            GREY,
            &self.x.label,
        );
        let middle = (y.from + y.to) / 2.0;
        _ = writeln!(
            out,
            r#"<text transform="translate(18 {middle:.1}) rotate(-90)" text-anchor="middle" fill="{GREY}">{}</text>"#,
            escape(&self.y.label)
        );
    }
}

/// A heatmap: rows of shares, 0 to 1.
#[derive(Clone, Debug, Default)]
pub struct Heatmap {
    /// Over it.
    pub title: String,
    /// What is along the bottom, and where it ends; it begins at 0.
    pub x: Axis,
    /// Names and values.
    pub rows: Vec<(String, Vec<f32>)>,
    /// Written below.
    pub note: String,
    /// Written where there is nothing to draw.
    pub empty: String,
}

impl Heatmap {
    /// The picture. Neighbours of one colour are one rectangle.
    #[must_use]
    pub fn draw(&self) -> String {
        const ROW: f64 = 16.0;
        const COLUMNS: usize = 256;
        let longest = self
            .rows
            .iter()
            .map(|row| row.0.chars().count())
            .max()
            .unwrap_or(0);
        let left = 24.0 + 6.8 * longest as f64;
        let (top, right) = (TOP, WIDTH - 96.0);
        let bottom = top + ROW * self.rows.len().max(6) as f64;
        let mut out = String::new();
        begin(&mut out, bottom + BOTTOM + 18.0, &self.title);
        let x = Scale::new(&self.x, std::iter::empty(), (left, right));
        for (n, (name, values)) in self.rows.iter().enumerate() {
            let y = top + ROW * n as f64;
            text(&mut out, (left - 8.0, y + 12.0), "end", "#374151", name);
            let columns = joined(values, COLUMNS);
            let width = (right - left) / columns.len().max(1) as f64;
            let colours: Vec<_> = columns.iter().map(|value| colour(*value)).collect();
            let mut at = 0;
            for run in colours.chunk_by(|a, b| a == b) {
                let (from, wide) = (left + width * at as f64, width * run.len() as f64);
                at += run.len();
                if let Some(fill) = run.first().filter(|fill| fill.as_str() != "#ffffff") {
                    _ = writeln!(
                        out,
                        r#"<rect x="{from:.2}" y="{y:.1}" width="{wide:.2}" height="{:.1}" fill="{fill}"/>"#,
                        ROW - 1.0
                    );
                }
            }
        }
        if self.rows.is_empty() {
            text(
                &mut out,
                ((left + right) / 2.0, (top + bottom) / 2.0),
                "middle",
                GREY,
                &self.empty,
            );
        }
        for tick in x.ticks(10.0) {
            let at = x.place(tick);
            rule(&mut out, (at, bottom), (at, bottom + 4.0), "#9ca3af", "");
            text(&mut out, (at, bottom + 17.0), "middle", GREY, &short(tick));
        }
        rule(&mut out, (left, bottom), (right, bottom), "#9ca3af", "");
        text(
            &mut out,
            ((left + right) / 2.0, bottom + 36.0),
            "middle",
            GREY,
            &self.x.label,
        );
        text(&mut out, (left, bottom + 56.0), "start", GREY, &self.note);
        for n in 0..=10 {
            let value = 1.0 - n as f32 / 10.0;
            let y = top + 12.0 * f64::from(n);
            let fill = colour(value);
            _ = writeln!(
                out,
                r##"<rect x="{:.1}" y="{y:.1}" width="14" height="12" fill="{fill}" stroke="#e5e7eb"/>"##,
                right + 24.0
            );
            if n % 5 == 0 {
                text(
                    &mut out,
                    (right + 44.0, y + 10.0),
                    "start",
                    GREY,
                    &format!("{:.0}%", value * 100.0),
                );
            }
        }
        out.push_str("</svg>\n");
        out
    }
}

/// At most so many columns, each the mean of what falls into it.
fn joined(values: &[f32], most: usize) -> Vec<f32> {
    let each = values.len().div_ceil(most).max(1);
    values
        .chunks(each)
        .map(|chunk| chunk.iter().sum::<f32>() / chunk.len() as f32)
        .collect()
}

/// White, yellow, orange, dark red, in twenty steps.
fn colour(share: f32) -> String {
    const STOPS: [(f32, [f32; 3]); 5] = [
        (0.0, [255.0, 255.0, 255.0]),
        (0.25, [254.0, 240.0, 180.0]),
        (0.6, [253.0, 174.0, 97.0]),
        (0.85, [215.0, 65.0, 45.0]),
        (1.0, [110.0, 0.0, 38.0]),
    ];
    let share = (share.clamp(0.0, 1.0) * 20.0).round() / 20.0;
    let mut rgb = STOPS[4].1;
    for pair in STOPS.windows(2) {
        if let [(from, low), (to, high)] = pair
            && share <= *to
        {
            let part = (share - from) / (to - from);
            rgb = std::array::from_fn(|n| low[n] + (high[n] - low[n]) * part.max(0.0));
            break;
        }
    }
    let [r, g, b] = rgb.map(|channel| channel.round() as u8);
    format!("#{r:02x}{g:02x}{b:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let axis = Axis {
            most: Some(0.97),
            ..Axis::default()
        };
        let scale = Scale::new(&axis, std::iter::empty(), (0.0, 100.0));
        let ticks: Vec<_> = scale.ticks(6.0).into_iter().map(short).collect();
        assert_eq!(ticks, ["0", "0.2", "0.4", "0.6", "0.8"]);
        let axis = Axis {
            log: true,
            ..Axis::default()
        };
        let scale = Scale::new(&axis, [1.0, 30.0].into_iter(), (0.0, 100.0));
        assert_eq!(scale.ticks(6.0), [1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!((scale.place(1.0), scale.place(30.0)), (0.0, 100.0));
    }

    #[test]
    fn text_stays_text_and_nothing_is_a_picture_too() {
        let chart = Chart {
            title: "a<b>&\"".into(),
            empty: "nothing".into(),
            ..Chart::default()
        };
        let svg = chart.draw();
        assert!(
            svg.contains("a&lt;b&gt;&amp;&quot;") && svg.contains(">nothing<"),
            "{svg}"
        );
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        let svg = Heatmap {
            empty: "none".into(),
            ..Heatmap::default()
        }
        .draw();
        assert!(svg.contains(">none<") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn colours_go_from_white_to_dark() {
        assert_eq!(
            (colour(0.0).as_str(), colour(1.0).as_str()),
            ("#ffffff", "#6e0026")
        );
    }
}
