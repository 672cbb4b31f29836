//! Line charts as SVG, without scripts or fonts of their own.

use std::fmt::Write;

/// A line.
pub struct Line {
    pub name: String,
    pub colour: &'static str,
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 34.0;
const RIGHT: f64 = 16.0;
const BOTTOM: f64 = 44.0;

/// The least of 1, 2, 5 times a power of ten that is at least `x`.
fn round_up(x: f64) -> f64 {
    let scale = 10_f64.powf(x.max(1e-9).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let fits = steps.iter().find(|s| **s * scale >= x);
    fits.copied().unwrap_or(10.0) * scale
}

/// A chart with both axes from 0.
pub fn chart(title: &str, x_name: &str, y_name: &str, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|l| &l.points);
    let x_max = points().map(|p| p.0).fold(0.0, f64::max).max(1e-9);
    let y_step = round_up(points().map(|p| p.1).fold(0.0, f64::max) / 5.0);
    let x_step = round_up(x_max / 8.0);
    let y_max = y_step
        * (points().map(|p| p.1).fold(0.0, f64::max) / y_step)
            .ceil()
            .max(1.0);
    let x = |v: f64| LEFT + v / x_max * (WIDTH - LEFT - RIGHT);
    let y = |v: f64| HEIGHT - BOTTOM - v / y_max * (HEIGHT - TOP - BOTTOM);
    let mut out = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">
<rect width="100%" height="100%" fill="#fff"/>
<text x="{LEFT}" y="16" font-size="13">{title}</text>
"##
    );
    let mut at = 0.0;
    while at <= y_max * 1.001 {
        let _ = writeln!(
            out,
            r##"<path d="M{LEFT} {0:.1}H{1}" stroke="#ddd"/><text x="{2}" y="{3:.1}" text-anchor="end">{at}</text>"##,
            y(at),
            WIDTH - RIGHT,
            LEFT - 6.0,
            y(at) + 4.0,
            at = (at * 1e6).round() / 1e6,
        );
        at += y_step;
    }
    let mut at = 0.0;
    while at <= x_max * 1.001 {
        let _ = writeln!(
            out,
            r##"<text x="{:.1}" y="{}" text-anchor="middle">{}</text>"##,
            x(at),
            HEIGHT - BOTTOM + 16.0,
            (at * 1e6).round() / 1e6,
        );
        at += x_step;
    }
    let _ = writeln!(
        out,
        r##"<text x="{}" y="{}" text-anchor="end">{x_name}</text><text x="{LEFT}" y="29">{y_name}</text>"##,
        WIDTH - RIGHT,
        HEIGHT - 10.0,
    );
    for (n, line) in lines.iter().enumerate() {
        let path: Vec<String> = line
            .points
            .iter()
            .map(|(a, b)| format!("{:.1} {:.1}", x(*a), y(*b)))
            .collect();
        let place = WIDTH - RIGHT - 150.0 * (lines.len() - n) as f64;
        let _ = writeln!(
            out,
            r##"<path d="M{}" fill="none" stroke="{c}" stroke-width="{w}" stroke-opacity=".8"/><path d="M{place} 12h18" stroke="{c}" stroke-width="3"/><text x="{}" y="16">{}</text>"##,
            path.join("L"),
            place + 22.0,
            line.name,
            c = line.colour,
            w = if n == 0 { 3.0 } else { 1.2 },
        );
    }
    out.push_str("</svg>\n");
    out
}
