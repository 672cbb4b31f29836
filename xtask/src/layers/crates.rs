//! Which crates depend on which, from `cargo metadata`.

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::table::{CRATES, Crate};
use crate::{paths, sh};

/// Checks the manifests of all packages, and returns the breaches.
pub fn check() -> Result<Vec<String>> {
    let mut breaches = Vec::new();
    for manifest in paths::manifests() {
        let mut cargo = sh::cargo();
        cargo
            .args([
                "metadata",
                "--no-deps",
                "--format-version=1",
                "--manifest-path",
            ])
            .arg(&manifest);
        let metadata: Value =
            serde_json::from_str(&sh::output(&mut cargo)?).context("read cargo metadata")?;
        for package in list(&metadata, "packages") {
            let name = text(package, "name");
            match CRATES.iter().find(|rules| rules.name == name) {
                Some(rules) => breaches.extend(check_package(package, rules)),
                None => breaches.push(format!(
                    "crate `{name}` has no row in table.rs: give it its place"
                )),
            }
        }
    }
    Ok(breaches)
}

fn check_package(package: &Value, rules: &Crate) -> Vec<String> {
    let mut breaches = Vec::new();
    for dependency in list(package, "dependencies") {
        let name = text(dependency, "name");
        // `kind` is null for a normal dependency.
        if dependency.get("kind").is_some_and(|kind| !kind.is_null()) {
            continue;
        }
        let own = CRATES.iter().any(|other| other.name == name);
        let allowed = if own {
            Some(rules.uses)
        } else {
            rules.external
        };
        if allowed.is_some_and(|allowed| !allowed.contains(&name)) {
            breaches.push(format!(
                "{}/Cargo.toml: depends on `{name}`, but may depend only on: {}",
                rules.dir,
                allowed.unwrap_or_default().join(", ")
            ));
        }
    }
    breaches
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value
        .get(key)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}
