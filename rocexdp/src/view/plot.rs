//! A small plot in text: values over time as columns of block characters.

/// Draws `samples` of (time, value), in order of time, as `height` lines of `width` columns and a time axis. Each column
/// shows the lowest value of its span, because a short cut is what one looks for; a span without a sample repeats the last
/// value. `label` makes the axis' text of a value. Times are in seconds.
#[must_use]
pub fn plot(
    samples: &[(f64, f64)],
    width: usize,
    height: usize,
    label: impl Fn(f64) -> String,
) -> String {
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let (Some(&(start, first)), Some(&(end, _))) = (samples.first(), samples.last()) else {
        return "(no samples)\n".to_owned();
    };
    let top = samples.iter().map(|&(_, value)| value).fold(0.0, f64::max);
    if top <= 0.0 || height == 0 || width == 0 {
        return "(all samples are zero)\n".to_owned();
    }
    let labels: Vec<String> = (0..height)
        .map(|line| label(top * (height - line) as f64 / height as f64))
        .collect();
    let margin = labels
        .iter()
        .map(|text| text.chars().count())
        .max()
        .unwrap_or(0);
    let columns = width.saturating_sub(margin + 3).max(10);
    let span = (end - start).max(f64::MIN_POSITIVE);
    let mut lowest = vec![None; columns];
    for &(time, value) in samples {
        let column = (((time - start) / span * columns as f64) as usize).min(columns - 1);
        if let Some(cell) = lowest.get_mut(column) {
            let known: f64 = cell.unwrap_or(f64::INFINITY);
            *cell = Some(known.min(value));
        }
    }
    let mut last = first;
    let values: Vec<f64> = lowest
        .into_iter()
        .map(|cell| {
            last = cell.unwrap_or(last);
            last
        })
        .collect();
    let mut out = String::new();
    for (line, text) in labels.iter().enumerate() {
        out.push_str(&format!("{text:>margin$} |"));
        let floor = (height - 1 - line) as f64;
        let cells: String = values
            .iter()
            .map(|value| {
                let eighths = ((value / top * height as f64 - floor) * 8.0)
                    .round()
                    .clamp(0.0, 8.0);
                BLOCKS.get(eighths as usize).copied().unwrap_or(' ')
            })
            .collect();
        out.push_str(cells.trim_end());
        out.push('\n');
    }
    out.push_str(&format!("{:>margin$} +{}\n", "", "-".repeat(columns)));
    let right = format!("{:.2} s", end - start);
    let gap = columns.saturating_sub(right.len() + 3);
    out.push_str(&format!("{:>margin$}  0 s{:gap$}{right}\n", "", ""));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gigabits(value: f64) -> String {
        format!("{value:.1}")
    }

    #[test]
    fn a_dip_shows_where_it_was() {
        let mut samples: Vec<_> = (0..=100).map(|i| (f64::from(i) / 100.0, 8.0)).collect();
        samples[50].1 = 2.0;
        let text = plot(&samples, 26, 4, gigabits);
        let lines: Vec<Vec<char>> = text.lines().map(|line| line.chars().collect()).collect();
        assert_eq!(lines.len(), 6);
        // Full everywhere but at the dip, where only the bottom line is.
        let dips: Vec<_> = (5..25)
            .filter(|&i| lines[0].get(i).is_none_or(|c| *c == ' '))
            .collect();
        assert_eq!(dips.len(), 1, "{text}");
        assert_eq!(lines[3][dips[0]], '█', "{text}");
        assert!(
            text.starts_with("8.0 |") && text.contains("2.0 |"),
            "{text}"
        );
        assert!(text.ends_with("1.00 s\n"), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 26),
            "{text}"
        );
    }

    #[test]
    fn nothing_to_show_is_said() {
        assert!(plot(&[], 80, 5, gigabits).contains("no samples"));
        assert!(plot(&[(0.0, 0.0)], 80, 5, gigabits).contains("zero"));
        assert!(plot(&[(0.0, 1.0)], 80, 2, gigabits).contains('█'));
    }
}
