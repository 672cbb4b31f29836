//! `cargo xtask layers`: the rules about the tree that no compiler checks.
//!
//! File sizes and heads, where `unsafe` may stand, and which way crates and modules depend on one another. The rules themselves are
//! in [`table`]; a message says which rule is broken and where.

mod crates;
mod source;
mod table;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use crate::paths;
pub use source::{Token, tokens};
use source::{crate_names, without_test_modules};
use table::{CRATES, Crate, LINES_MOST, LINES_WARN};

/// Checks all rules and prints every breach.
///
/// # Errors
/// A rule is broken, or the tree can't be read.
pub fn run() -> Result<()> {
    let mut breaches = crates::check()?;
    let mut files = 0;
    for rules in CRATES {
        let dir = paths::root().join(rules.dir);
        let uses = closure(rules)?;
        for path in rust_files(&dir)? {
            files += 1;
            let file = File::read(&dir, &path)?;
            breaches.extend(file.check(rules, uses.as_ref()));
        }
    }
    for breach in &breaches {
        eprintln!("layers: {breach}");
    }
    if !breaches.is_empty() {
        bail!(
            "{} breach(es) of the rules in xtask/src/layers/table.rs",
            breaches.len()
        );
    }
    println!("layers: {files} files keep the rules of xtask/src/layers/table.rs");
    Ok(())
}

/// Per module, all modules it may use.
type Uses = BTreeMap<&'static str, BTreeSet<&'static str>>;

/// Follows the table's rows, which stand from the bottom up: so a cycle can't be written.
fn closure(rules: &Crate) -> Result<Option<Uses>> {
    let Some(modules) = rules.modules else {
        return Ok(None);
    };
    let mut all = Uses::new();
    for (module, direct) in modules {
        let mut uses = BTreeSet::new();
        for name in *direct {
            let Some(below) = all.get(name) else {
                bail!(
                    "table.rs: {}: `{module}` uses `{name}`, which has no row above it",
                    rules.name
                );
            };
            uses.extend(below);
            uses.insert(*name);
        }
        all.insert(module, uses);
    }
    Ok(Some(all))
}

/// All `.rs` files below `dir`, sorted.
fn rust_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("read {}", dir.display()))? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() && entry.file_name() != "target" {
                dirs.push(path);
            } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "rs")
            {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// One source file of a crate.
struct File {
    /// Path in the workspace, for messages.
    shown: String,
    /// Path in the crate, with `/`.
    inner: String,
    text: String,
}

impl File {
    fn read(dir: &Path, path: &Path) -> Result<Self> {
        let below = |root: &Path| {
            path.strip_prefix(root)
                .unwrap_or(path)
                .to_string_lossy()
                .into_owned()
        };
        Ok(Self {
            shown: below(paths::root()),
            inner: below(dir),
            text: fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?,
        })
    }

    /// The modules from the crate's root down to this file; none for the root itself and for what is no module (tests, binaries).
    fn module(&self) -> Vec<&str> {
        let Some(path) = self
            .inner
            .strip_prefix("src/")
            .and_then(|path| path.strip_suffix(".rs"))
        else {
            return Vec::new();
        };
        match path {
            "lib" | "main" => Vec::new(),
            _ if path.starts_with("bin/") => Vec::new(),
            _ => path
                .strip_suffix("/mod")
                .unwrap_or(path)
                .split('/')
                .collect(),
        }
    }

    fn check(&self, rules: &Crate, uses: Option<&Uses>) -> Vec<String> {
        let mut breaches = Vec::new();
        let shown = &self.shown;
        let lines = self.text.lines().count();
        if lines > LINES_MOST {
            breaches.push(format!(
                "{shown}: {lines} lines, more than {LINES_MOST}: split it by role"
            ));
        } else if lines > LINES_WARN {
            eprintln!("layers: warning: {shown}: {lines} lines, more than {LINES_WARN}");
        }
        if !self.text.starts_with("//!") {
            breaches.push(format!(
                "{shown}:1: does not begin with `//!`: say what the file is for"
            ));
        }
        let tokens = tokens(&self.text);
        if !rules
            .unsafe_in
            .iter()
            .any(|prefix| self.inner.starts_with(prefix))
        {
            breaches.extend(
                tokens
                    .iter()
                    .filter(|token| token.text == "unsafe")
                    .map(|token| {
                        format!(
                            "{shown}:{}: `unsafe` may not stand in this file",
                            token.line
                        )
                    }),
            );
        }
        if let [top, inside @ ..] = self.module().as_slice() {
            let tokens = if self.is_test() {
                Vec::new()
            } else {
                without_test_modules(&tokens)
            };
            if let Some(uses) = uses {
                breaches.extend(self.check_direction(&tokens, top, 1 + inside.len(), uses));
            }
            if rules.unaware.is_some_and(|(module, _)| module == *top) {
                breaches.extend(self.check_unaware(&tokens, rules));
            }
            if let Some(own) = inside.first().filter(|own| rules.apart.contains(own)) {
                breaches.extend(self.check_apart(&tokens, own, rules.apart));
            }
        }
        breaches
    }

    /// Unit tests in a file of their own, which may look upward.
    fn is_test(&self) -> bool {
        self.module()
            .iter()
            .any(|module| *module == "tests" || module.ends_with("_tests"))
    }

    fn check_direction(
        &self,
        tokens: &[Token<'_>],
        top: &str,
        depth: usize,
        uses: &Uses,
    ) -> Vec<String> {
        let Some(allowed) = uses.get(top) else {
            return vec![format!(
                "{}: module `{top}` has no row in table.rs: give it its place",
                self.shown
            )];
        };
        let names = crate_names(tokens, depth);
        let wrong = names
            .iter()
            .filter(|name| name.text != top && !allowed.contains(name.text));
        wrong
            .map(|name| {
                let allowed: Vec<_> = allowed.iter().copied().collect();
                format!(
                    "{}:{}: module `{top}` uses `crate::{}`, but it may use only: {}",
                    self.shown,
                    name.line,
                    name.text,
                    if allowed.is_empty() {
                        "no other module".to_owned()
                    } else {
                        allowed.join(", ")
                    }
                )
            })
            .collect()
    }

    fn check_unaware(&self, tokens: &[Token<'_>], rules: &Crate) -> Vec<String> {
        let Some((module, word)) = rules.unaware else {
            return Vec::new();
        };
        let knows = |text: &str| text != rules.name && text.to_lowercase().contains(word);
        let wrong = tokens.iter().filter(|token| knows(token.text));
        wrong
            .map(|token| {
                format!(
                    "{}:{}: `{}`: module `{module}` knows nothing of `{word}`",
                    self.shown, token.line, token.text
                )
            })
            .collect()
    }

    fn check_apart(&self, tokens: &[Token<'_>], own: &str, apart: &[&str]) -> Vec<String> {
        let is_path = |token: &Token<'_>, next: &Token<'_>| {
            next.text == ":" && apart.contains(&token.text) && token.text != own
        };
        // `a::` has two colons; a field `a:` has one.
        let wrong = tokens.windows(3).filter(|three| {
            matches!(three, [token, next, last] if is_path(token, next) && last.text == ":")
        });
        wrong
            .filter_map(|three| three.first())
            .map(|token| {
                format!(
                    "{}:{}: `{own}` names `{}`: {} never call one another",
                    self.shown,
                    token.line,
                    token.text,
                    apart.join(", ")
                )
            })
            .collect()
    }
}
