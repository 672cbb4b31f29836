//! A Rust file as a sequence of words and marks: enough to see what it names, without a parser.
//!
//! Comments and the contents of string and character literals are left out; what macros expand to is not seen.

/// One word (identifier, keyword, number) or one mark, with its line from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// Line it stands on.
    pub line: usize,
    /// Its text.
    pub text: &'a str,
}

/// Cuts `source` into tokens.
pub fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let (mut rest, mut line) = (source, 1);
    while let Some(first) = rest.chars().next() {
        let (length, is_token) = next(rest, first);
        let (text, after) = rest.split_at(length.clamp(first.len_utf8(), rest.len()));
        if is_token {
            found.push(Token { line, text });
        }
        line += text.matches('\n').count();
        rest = after;
    }
    found
}

/// Length of what stands at the start of `rest`, and whether it is a token (else a space, comment or literal).
fn next(rest: &str, first: char) -> (usize, bool) {
    if rest.starts_with("//") {
        return (rest.find('\n').unwrap_or(rest.len()), false);
    }
    if rest.starts_with("/*") {
        return (block_comment(rest), false);
    }
    if let Some(length) = raw_string(rest) {
        return (length, false);
    }
    match first {
        '"' => (quoted(rest, '"'), false),
        // A lifetime has no closing quote after one character; a character literal has, or starts with a backslash.
        '\'' if rest.starts_with("'\\") || rest.chars().nth(2) == Some('\'') => {
            (quoted(rest, '\''), false)
        }
        '\'' => (1, false),
        _ if is_word(first) => (rest.find(|c| !is_word(c)).unwrap_or(rest.len()), true),
        _ => (first.len_utf8(), !first.is_whitespace()),
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(tail) = rest.get(at..).filter(|tail| !tail.is_empty()) {
        if tail.starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if tail.starts_with("*/") {
            (depth, at) = (depth.saturating_sub(1), at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += tail.chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

fn raw_string(rest: &str) -> Option<usize> {
    let body = ["r", "br", "cr"]
        .iter()
        .find_map(|prefix| rest.strip_prefix(prefix))?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    let inner = body.get(hashes..)?.strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = inner.find(&end).map_or(inner.len(), |at| at + end.len());
    Some(rest.len() - inner.len() + length)
}

fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

/// Drops `#[cfg(test)] mod name { .. }`: unit tests may look upward.
pub fn without_test_modules<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    const CFG_TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut kept, mut rest) = (Vec::new(), tokens);
    while let Some((&token, after)) = rest.split_first() {
        let is_test = rest.len() > CFG_TEST.len()
            && rest
                .iter()
                .zip(CFG_TEST)
                .all(|(token, text)| token.text == text);
        let body = rest
            .get(CFG_TEST.len()..)
            .filter(|_| is_test)
            .and_then(module_body);
        if let Some(after_body) = body {
            rest = after_body;
        } else {
            kept.push(token);
            rest = after;
        }
    }
    kept
}

/// What follows the closing brace of the inline module that starts `tokens`.
fn module_body<'t, 'a>(tokens: &'t [Token<'a>]) -> Option<&'t [Token<'a>]> {
    let ["mod", _, "{"] = [
        tokens.first()?.text,
        tokens.get(1)?.text,
        tokens.get(2)?.text,
    ] else {
        return None;
    };
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "{" => depth += 1,
            "}" if depth == 1 => return tokens.get(at + 1..),
            "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// The names directly below the crate's root that a file names, by `crate::` or by `super::` from `depth` modules down.
pub fn crate_names<'a>(tokens: &[Token<'a>], depth: usize) -> Vec<Token<'a>> {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let mut path = at;
        let mut supers = 0;
        while text(path) == "super" && text(path + 1) == ":" && text(path + 2) == ":" {
            (supers, path) = (supers + 1, path + 3);
        }
        let from_crate = text(at) == "crate" && text(at + 1) == ":" && text(at + 2) == ":";
        if from_crate {
            path = at + 3;
        }
        if from_crate || (supers > 0 && supers == depth) {
            found.extend(path_heads(tokens.get(path..).unwrap_or_default()));
        }
        at = path.max(at + 1);
    }
    found
}

/// The first names of a path or of a `{a::b, c}` group.
fn path_heads<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let Some(first) = tokens.first() else {
        return Vec::new();
    };
    if first.text != "{" {
        return vec![*first];
    }
    let (mut found, mut depth, mut head) = (Vec::new(), 0_usize, false);
    for token in tokens {
        match token.text {
            "{" => (depth, head) = (depth + 1, depth == 0),
            "}" if depth == 1 => break,
            "}" => depth = depth.saturating_sub(1),
            "," => head = depth == 1,
            _ if head => {
                found.push(*token);
                head = false;
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{crate_names, tokens, without_test_modules};

    fn names(source: &str, depth: usize) -> Vec<&str> {
        crate_names(&without_test_modules(&tokens(source)), depth)
            .iter()
            .map(|token| token.text)
            .collect()
    }

    #[test]
    fn names_are_found_in_plain_paths_and_groups() {
        assert_eq!(names("use crate::ids::{Psn, Qpn};", 1), ["ids"]);
        assert_eq!(
            names(
                "use crate::{\n    ids::{Psn, Qpn},\n    time, wire::bth::{self, Bth},\n};",
                1
            ),
            ["ids", "time", "wire"]
        );
        assert_eq!(
            names("fn f(x: crate::qp::Qp) { crate::rng::next() }", 1),
            ["qp", "rng"]
        );
        assert_eq!(names("pub(crate) fn f() {}", 1), [""; 0]);
    }

    #[test]
    fn super_counts_from_the_depth_of_the_file() {
        assert_eq!(names("use super::mem::Region;", 1), ["mem"]);
        assert_eq!(names("use super::attr::Attr;", 2), [""; 0]);
        assert_eq!(
            names("use super::super::{mem, wire::X};", 2),
            ["mem", "wire"]
        );
    }

    #[test]
    fn comments_literals_and_unit_tests_are_not_code() {
        assert_eq!(
            names(
                "// crate::a\n/* crate::b /* */ crate::c */ \"crate::d\" r#\"crate::\"e\"# 'x' '\\''",
                1
            ),
            [""; 0]
        );
        assert_eq!(
            names("fn f<'a>(x: &'a str) { crate::g::h('\"', x) }", 1),
            ["g"]
        );
        assert_eq!(
            names(
                "#[cfg(test)]\nmod tests { use crate::a; mod b { } }\nuse crate::c;",
                1
            ),
            ["c"]
        );
    }

    #[test]
    fn a_token_knows_its_line() {
        let source = "/* one\n two */ \"three\n\" four";
        assert_eq!(
            tokens(source).last().map(|token| (token.line, token.text)),
            Some((3, "four"))
        );
    }
}
