//! The table of results in `docs/interop.md`.
//!
//! Its text is the same in every run: no times, no counts that chance decides. A full run writes it, a part of one (some cases, one
//! kernel) adds to it; a shorter run must find there what it has seen. Must not: run anything.

use std::{collections::BTreeSet, fmt::Write as _, path::Path};

use rocexdp_tests::softroce::Kernel;

use crate::run::Name;

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
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Line {
    what: String,
    role: String,
    families: BTreeSet<String>,
    path_mtus: BTreeSet<u16>,
    kernels: BTreeSet<String>,
    results: BTreeSet<String>,
    sent_again: BTreeSet<String>,
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
            line.families.insert(family.to_string());
            line.path_mtus.insert(*path_mtu);
            line.kernels.insert(row.kernel.name().to_owned());
            line.results.insert(row.result.clone());
            line.sent_again.insert(row.sent_again.to_owned());
        }
        lines
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
        if full {
            let lines = if partly {
                added(read(written), self.lines())
            } else {
                self.lines()
            };
            let text = text(&lines);
            if text != written {
                std::fs::write(&file, [head, BEGIN, &text, END, tail].concat()).unwrap();
                println!("interop: docs/interop.md has changed");
            }
        }
        assert!(failed.is_empty(), "{}", failed.join("\n"));
        if !full && !partly {
            let written = read(written);
            for line in self.lines() {
                assert!(
                    written.iter().any(|there| line.stands_in(there)),
                    "docs/interop.md does not have {}, {}, as it went: cargo xtask test interop --full writes it anew",
                    line.what,
                    line.role
                );
            }
        }
    }
}

fn text(lines: &[Line]) -> String {
    let mut text = String::from(
        "| case | rocexdp is | over | path MTU | kernel | result | retransmissions |\n|---|---|---|---|---|---|---|\n",
    );
    for line in lines {
        let mtus: Vec<String> = line.path_mtus.iter().map(u16::to_string).collect();
        let join = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(", ");
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            line.what,
            line.role,
            join(&line.families),
            mtus.join(", "),
            join(&line.kernels),
            line.results.iter().cloned().collect::<Vec<_>>().join("; "),
            join(&line.sent_again)
        );
    }
    text
}

/// The lines of a text that [`text`] has made.
fn read(text: &str) -> Vec<Line> {
    let words = |cell: &str| cell.split(", ").map(str::to_owned).collect();
    let rows = text.lines().skip(2);
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [what, role, families, mtus, kernels, results, again] = cells[..] else {
            panic!("docs/interop.md: not a line of results: {row}");
        };
        Line {
            what: what.to_owned(),
            role: role.to_owned(),
            families: words(families),
            path_mtus: mtus.split(", ").map(|mtu| mtu.parse().unwrap()).collect(),
            kernels: words(kernels),
            results: results.split("; ").map(str::to_owned).collect(),
            sent_again: words(again),
        }
    })
    .collect()
}

/// What stands there, and what a part of the matrix has shown: each of its lines where it stands, or behind the one before it.
fn added(mut there: Vec<Line>, new: Vec<Line>) -> Vec<Line> {
    let mut next = there.len();
    for line in new {
        let same = |l: &Line| l.what == line.what && l.role == line.role;
        if let Some(at) = there.iter().position(same) {
            let known = &mut there[at];
            known.families.extend(line.families);
            known.path_mtus.extend(line.path_mtus);
            known.kernels.extend(line.kernels);
            known.sent_again.extend(line.sent_again);
            // What went wrong once may go right now, and the reverse.
            known.results = line.results;
            next = at + 1;
        } else {
            there.insert(next, line);
            next += 1;
        }
    }
    there
}

impl Line {
    /// Whether a line of the table says the same, over at least as much.
    fn stands_in(&self, there: &Self) -> bool {
        there.what == self.what
            && there.role == self.role
            && there.results == self.results
            && self.families.is_subset(&there.families)
            && self.path_mtus.is_subset(&there.path_mtus)
            && self.kernels.is_subset(&there.kernels)
            && self.sent_again.is_subset(&there.sent_again)
    }
}

#[test]
fn the_tables_text_is_read_back_and_a_part_is_added() {
    let line = |what: &str, mtu| Line {
        what: what.to_owned(),
        role: "requester".to_owned(),
        families: ["IPv4".to_owned(), "IPv6".to_owned()].into(),
        path_mtus: [mtu].into(),
        kernels: ["6.1".to_owned()].into(),
        results: ["ok".to_owned()].into(),
        sent_again: ["0".to_owned(), "varies".to_owned()].into(),
    };
    let there = vec![line("a", 1024), line("c", 256)];
    assert_eq!(read(&text(&there)), there);
    let all = added(there, vec![line("a", 4096), line("b", 256)]);
    let names: Vec<&str> = all.iter().map(|line| line.what.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(all[0].path_mtus, [1024, 4096].into());
    assert!(line("a", 4096).stands_in(&all[0]) && !line("a", 256).stands_in(&all[0]));
}

/// Whether the whole matrix is asked for.
pub fn full() -> bool {
    std::env::var("ROCEXDP_INTEROP").is_ok_and(|what| what == "full")
}
