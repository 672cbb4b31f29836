//! The table of results in `docs/interop.md`.
//!
//! Its text is the same in every run: no times, no counts that chance decides. A full run writes it; a shorter one must find there what it
//! has seen. Must not: run anything.

use std::{collections::BTreeSet, fmt::Write as _, path::Path};

use rocexdp_tests::softroce::Kernel;

use crate::run::{Family, Name};

const BEGIN: &str = "<!-- results: written by `cargo xtask test interop --full` -->\n";
const END: &str = "<!-- end of results -->\n";

/// What a case came to.
#[derive(Clone, Debug)]
pub struct Row {
    /// The guest's.
    pub kernel: Kernel,
    pub name: Name,
    /// `ok`, or what went wrong.
    pub result: String,
    /// Whether either end sent packets again.
    pub sent_again: &'static str,
}

/// All results.
#[derive(Debug, Default)]
pub struct Table(Vec<Row>);

/// A line of the table: a case in one role, over all that it was run over.
#[derive(Default)]
struct Line {
    what: String,
    role: String,
    kernels: BTreeSet<&'static str>,
    families: BTreeSet<&'static str>,
    path_mtus: BTreeSet<u16>,
    results: BTreeSet<String>,
    sent_again: BTreeSet<&'static str>,
}

impl Table {
    pub fn add(&mut self, row: Row) {
        self.0.push(row);
    }

    /// Those of another run come behind.
    pub fn add_all(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    fn lines(&self) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        for row in &self.0 {
            let Name {
                what,
                role,
                family,
                path_mtu,
            } = &row.name;
            let role = role.to_string();
            let at = lines.iter().position(|l| l.what == *what && l.role == role);
            let at = at.unwrap_or_else(|| {
                lines.push(Line {
                    what: what.clone(),
                    role,
                    ..Line::default()
                });
                lines.len() - 1
            });
            let line = &mut lines[at];
            line.kernels.insert(row.kernel.name());
            line.families.insert(match family {
                Family::V4 => "IPv4",
                Family::V6 => "IPv6",
            });
            line.path_mtus.insert(*path_mtu);
            line.results.insert(row.result.clone());
            line.sent_again.insert(row.sent_again);
        }
        lines
    }

    fn text(&self) -> String {
        let mut text = String::from(
            "| case | rocexdp is | over | path MTU | kernel | result | retransmissions |\n|---|---|---|---|---|---|---|\n",
        );
        for line in self.lines() {
            let mtus: Vec<String> = line.path_mtus.iter().map(u16::to_string).collect();
            let join = |set: &BTreeSet<&str>| set.iter().copied().collect::<Vec<_>>().join(", ");
            let results: Vec<&str> = line.results.iter().map(String::as_str).collect();
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} |",
                line.what,
                line.role,
                join(&line.families),
                mtus.join(", "),
                join(&line.kernels),
                results.join("; "),
                join(&line.sent_again)
            );
        }
        text
    }

    /// Writes the table, or compares; and fails if a case did.
    pub fn finish(self) {
        let full = full();
        let failed: Vec<String> = self
            .0
            .iter()
            .filter(|row| row.result != "ok")
            .map(|row| format!("{}, kernel {}: {}", row.name, row.kernel.name(), row.result))
            .collect();
        println!("interop: {} cases, {} failed", self.0.len(), failed.len());
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/interop.md");
        let document = std::fs::read_to_string(&file).unwrap();
        let (head, rest) = document.split_once(BEGIN).expect("where results begin");
        let (written, tail) = rest.split_once(END).expect("where results end");
        // Only what was asked for was run.
        let partly = std::env::var_os("ROCEXDP_INTEROP_ONLY").is_some()
            || full && Kernel::asked_for().is_some();
        if full && !partly {
            let text = self.text();
            if text != written {
                std::fs::write(&file, [head, BEGIN, &text, END, tail].concat()).unwrap();
                println!("interop: docs/interop.md has changed");
            }
        }
        assert!(failed.is_empty(), "{}", failed.join("\n"));
        if !full && !partly {
            for line in self.lines() {
                assert!(
                    line.stands_in(written),
                    "docs/interop.md does not have {}, {}, as it went: cargo xtask test interop --full writes it anew",
                    line.what,
                    line.role
                );
            }
        }
    }
}

impl Line {
    /// Whether the table has the same result, over at least as much.
    fn stands_in(&self, table: &str) -> bool {
        table.lines().any(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [what, role, families, mtus, kernels, result, again] = cells[..] else {
                return false;
            };
            let has = |cell: &str, word: &str| cell.split(", ").any(|found| found == word);
            what == self.what
                && role == self.role
                && self.kernels.iter().all(|kernel| has(kernels, kernel))
                && self.families.iter().all(|family| has(families, family))
                && self.path_mtus.iter().all(|m| has(mtus, &m.to_string()))
                && self.results.iter().all(|r| r == result)
                && self.sent_again.iter().all(|a| has(again, a))
        })
    }
}

/// Whether the whole matrix is asked for.
pub fn full() -> bool {
    std::env::var("ROCEXDP_INTEROP").is_ok_and(|what| what == "full")
}
