//! `cargo xtask conformance`: the tables of `docs/conformance.md` and `docs/scenarios.md` against the tree.
//!
//! A table there ties a rule or a scenario to the function that keeps it and to the test that shows it. A link is a code span
//! `PATH::NAME`; in a column `function` PATH counts from `rocexdp-proto/src`, in a column `test` from `rocexdp-proto/tests`,
//! and in either from the workspace's root if it begins with a crate's directory. The file must exist and define NAME: in
//! a test column a function marked `#[test]`, else a function, type, constant or field. A row whose cell has no link
//! is an error, and so is a link to what is gone. What the tables say of the rules themselves no tool can check.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result, bail};

use crate::{
    layers::{Token, tokens},
    paths,
};

/// Files whose tables are checked.
const DOCS: [&str; 2] = ["docs/conformance.md", "docs/scenarios.md"];
/// Headings of columns that must hold links, and what their paths count from.
const COLUMNS: [(&str, &str); 2] = [
    ("function", "rocexdp-proto/src"),
    ("test", "rocexdp-proto/tests"),
];
/// Fewer links than this, and something is wrong with the tables or with this check.
const FEWEST: usize = 100;

/// Checks all links and prints every dead one.
///
/// # Errors
/// A link is dead, a row lacks one, or a file can't be read.
pub fn run() -> Result<()> {
    let mut files = BTreeMap::new();
    let (mut links, mut dead) = (0, Vec::new());
    for doc in DOCS {
        let path = paths::root().join(doc);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        for cell in cells(&text) {
            let of = || format!("{doc}:{}: column `{}`", cell.line, cell.column.0);
            let spans: Vec<_> = spans(cell.text).filter(|s| s.contains("::")).collect();
            if spans.is_empty() {
                dead.push(format!("{}: no `file::name`", of()));
            }
            for span in spans {
                links += 1;
                if let Some(fault) = fault(&mut files, cell.column, span)? {
                    dead.push(format!("{}: `{span}`: {fault}", of()));
                }
            }
        }
    }
    for line in &dead {
        eprintln!("conformance: {line}");
    }
    if !dead.is_empty() {
        bail!("{} dead or missing link(s)", dead.len());
    }
    if links < FEWEST {
        bail!(
            "only {links} links in {}: are the tables whole?",
            DOCS.join(" and ")
        );
    }
    println!(
        "conformance: {links} links of {} lead to a function or a test",
        DOCS.join(" and ")
    );
    Ok(())
}

/// A cell that must hold links.
struct Cell<'a> {
    line: usize,
    column: (&'static str, &'static str),
    text: &'a str,
}

/// The cells of a Markdown text's tables that must hold links.
fn cells(text: &str) -> Vec<Cell<'_>> {
    let mut found = Vec::new();
    let mut columns: Vec<Option<(&str, &str)>> = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let Some(row) = line
            .trim()
            .strip_prefix('|')
            .and_then(|l| l.strip_suffix('|'))
        else {
            columns.clear();
            continue;
        };
        let row: Vec<_> = row.split('|').map(str::trim).collect();
        if columns.is_empty() {
            let column = |name: &&str| COLUMNS.into_iter().find(|(c, _)| c == name);
            columns = row.iter().map(column).collect();
            continue;
        }
        if row
            .iter()
            .all(|c| c.chars().all(|c| matches!(c, '-' | ':')))
        {
            continue;
        }
        for (at, column) in columns.iter().enumerate() {
            if let Some(column) = *column {
                found.push(Cell {
                    line: n + 1,
                    column,
                    text: row.get(at).copied().unwrap_or_default(),
                });
            }
        }
    }
    found
}

/// The code spans of a cell.
fn spans(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// What is wrong with a link; `None`: nothing.
fn fault(
    files: &mut BTreeMap<String, Option<String>>,
    (column, base): (&str, &str),
    link: &str,
) -> Result<Option<String>> {
    let Some((path, name)) = link.split_once("::") else {
        return Ok(Some("is no link".into()));
    };
    let first = path.split('/').next().unwrap_or_default();
    let of_root = path.contains('/') && paths::root().join(first).join("Cargo.toml").is_file();
    let path = if of_root {
        path.to_owned()
    } else {
        format!("{base}/{path}")
    };
    if !files.contains_key(&path) {
        let full = paths::root().join(Path::new(&path));
        let text = if full.is_file() {
            Some(fs::read_to_string(&full).with_context(|| format!("read {}", full.display()))?)
        } else {
            None
        };
        files.insert(path.clone(), text);
    }
    let Some(text) = files.get(&path).and_then(Option::as_ref) else {
        return Ok(Some(format!("there is no {path}")));
    };
    let tokens = tokens(text);
    let there = if column == "test" {
        has_test(&tokens, name)
    } else {
        name.split("::").all(|part| defines(&tokens, part))
    };
    Ok((!there).then(|| format!("{path} has no {column} of this name")))
}

/// Whether a function of this name is marked `#[test]` (other attributes may stand between).
fn has_test(tokens: &[Token<'_>], name: &str) -> bool {
    let mut marked = false;
    tokens.windows(2).any(|two| {
        let [a, b] = two else { return false };
        match (a.text, b.text) {
            ("test", "]") => marked = true,
            ("fn", b) => {
                let found = marked && b == name;
                marked = false;
                return found;
            }
            _ => {}
        }
        false
    })
}

/// Whether a function, type, constant or field of this name is defined.
fn defines(tokens: &[Token<'_>], name: &str) -> bool {
    const BEFORE: [&str; 8] = [
        "fn", "struct", "enum", "const", "static", "trait", "type", "impl",
    ];
    tokens.windows(2).any(|two| {
        matches!(two, [a, b] if (b.text == name && BEFORE.contains(&a.text))
            || (a.text == name && b.text == ":"))
    })
}

#[cfg(test)]
mod tests {
    use super::{cells, defines, has_test, spans};
    use crate::layers::tokens;

    #[test]
    fn cells_of_link_columns_are_found() {
        let text = "a | b\n\n| rule | function | test |\n|---|:--|---|\n| x | `a.rs::f` | `t.rs::g`, `t.rs::h` |\n| y | `b.rs::f` |\n\n| rule |\n|---|\n| z |\n";
        let found: Vec<_> = cells(text)
            .iter()
            .map(|c| (c.line, c.column.0, spans(c.text).count()))
            .collect();
        assert_eq!(
            found,
            [
                (5, "function", 1),
                (5, "test", 2),
                (6, "function", 1),
                (6, "test", 0)
            ]
        );
    }

    #[test]
    fn only_what_is_defined_counts() {
        let source = "// fn gone\nconst TOP: u8 = 1; #[test] #[ignore] fn shown() { called(); } fn helper() {}";
        let tokens = tokens(source);
        assert!(has_test(&tokens, "shown"));
        assert!(!has_test(&tokens, "helper") && !has_test(&tokens, "gone"));
        assert!(defines(&tokens, "helper") && defines(&tokens, "TOP"));
        assert!(!defines(&tokens, "gone") && !defines(&tokens, "called"));
    }
}
