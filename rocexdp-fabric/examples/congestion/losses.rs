//! The table of losses: the published runs beside ours.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::path::Path;

use crate::published::{Row, number, rows};
use crate::shipped::or_dash;
use crate::shipped_text::LOSSES;

/// The table that the test `rocexdp-sim/tests/loss_table.rs` keeps and checks.
const KEPT: &str = include_str!("../../../rocexdp-sim/tests/loss_table.txt");

/// Shares of that table: by title, round trip in microseconds, payload, and loss as written there.
fn kept_losses() -> BTreeMap<(String, u32, u32, String), f64> {
    let mut all = BTreeMap::new();
    for part in KEPT.split("\n\n") {
        let mut lines = part.lines();
        let title = lines.next().unwrap_or_default();
        let heads = lines.next().unwrap_or_default().replace(" %", "%");
        let losses: Vec<String> = heads
            .split_whitespace()
            .skip(2)
            .map(|loss| loss.replace('%', " %"))
            .collect();
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [rtt, _, packet, shares @ ..] = &words[..] else {
                continue;
            };
            for (loss, share) in losses.iter().zip(shares) {
                if let (Ok(rtt), Ok(packet), Ok(share)) =
                    (rtt.parse(), packet.parse(), share.parse())
                {
                    all.insert((title.to_owned(), rtt, packet, loss.clone()), share);
                }
            }
        }
    }
    all
}

/// Mean goodput share of the published runs: loss on data only, no rate control.
fn published_loss(rows: &[Row], hop: u32, loss: f64, scheme: &str) -> Option<f64> {
    let shares: Vec<f64> = rows
        .iter()
        .filter(|r| {
            number(r, "hop_delay_ns") == f64::from(hop)
                && (number(r, "loss_prob") - loss).abs() < 1e-9
                && r["data_only"] == "1"
                && r["cc"] == "0"
                && r["scheme"] == scheme
        })
        .map(|r| number(r, "goodput_fraction"))
        .collect();
    (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
}

pub fn losses(out: &mut String, data: &Path) -> Result<(), Box<dyn Error>> {
    out.push_str(LOSSES);
    let published = rows(&data.join("loss/loss_goodput.csv"))?;
    let kept = kept_losses();
    for (rtt, hop) in [(4, 1_000), (40, 10_000)] {
        for (name, loss) in [("0.1 %", 0.001), ("1 %", 0.01), ("5 %", 0.05)] {
            let _ = write!(out, "| {rtt} us | {name} | {:.3} |", 1.0 - loss);
            for scheme in ["GBN", "IRN"] {
                let share = published_loss(&published, hop, loss, scheme);
                let _ = write!(out, " {} |", or_dash(share, 3));
            }
            for title in [
                "go-back-N, WRITE",
                "selective repeat, WRITE",
                "go-back-N, READ",
                "selective repeat, READ",
            ] {
                for packet in [1024, 4096] {
                    let key = (title.to_owned(), rtt, packet, name.to_owned());
                    let share = kept.get(&key).ok_or("the table of losses has changed")?;
                    let _ = write!(out, " {share:.3} |");
                }
            }
            out.push('\n');
        }
    }
    Ok(())
}
