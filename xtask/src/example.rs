//! `cargo xtask example NAME`: an example of crate rocexdp in a lab of its own, its serving end on host b, the other on host a.
//!
//! Must not: leave a lab behind; the shell that runs the whole removes it on every way out.

use std::os::unix::process::CommandExt as _;

use anyhow::{Context as _, Result, bail};

use crate::{product, sh};

/// The examples, and what their other end does unless told otherwise.
const EXAMPLES: [(&str, &str); 2] = [("pingpong", "ping"), ("kv", "stress")];

/// Where the serving end listens: host b of every lab.
const ADDRESS: &str = "10.77.0.2:7100";

/// Arguments: rocexdp, the example, the lab's name, the address, then what the other end does and with which options.
const SCRIPT: &str = r#"
rocexdp=$1 example=$2 lab=$3 address=$4 command=$5
shift 5
log=$(mktemp)
server=
finish() {
    code=$?
    trap - EXIT
    if [ -n "$server" ]; then kill "$server" 2>/dev/null; wait "$server" 2>/dev/null; fi
    "$rocexdp" lab down --name "$lab" >/dev/null
    rm -f "$log"
    exit "$code"
}
"$rocexdp" lab up --name "$lab" >/dev/null || exit 1
trap finish EXIT
trap 'exit 130' INT TERM
echo "$ rocexdp lab exec b -- $(basename "$example") serve $address"
"$rocexdp" lab exec --name "$lab" b -- "$example" serve "$address" >"$log" &
server=$!
until grep -q '^ready' "$log"; do
    kill -0 "$server" 2>/dev/null || exit 1
    sleep 0.1
done
cat "$log"
echo "$ rocexdp lab exec a -- $(basename "$example") $command $address $*"
"$rocexdp" lab exec --name "$lab" a -- "$example" "$command" "$address" "$@"
"#;

/// Builds and runs one; `arguments` are for the other end: its command, if the first is none of its options, and options. Does not
/// return on success.
///
/// # Errors
/// There is no such example, a build fails, or root can't be had.
pub fn run(name: &str, arguments: &[String]) -> Result<()> {
    let Some((_, default)) = EXAMPLES.iter().find(|(known, _)| *known == name) else {
        let names: Vec<&str> = EXAMPLES.iter().map(|(name, _)| *name).collect();
        bail!("there is no example {name:?}, but {}", names.join(" and "));
    };
    let binary = product::build(product::Profile::Release)?;
    product::build_examples(product::Profile::Release)?;
    let example = binary.with_file_name("examples").join(name);
    let (command, options) = match arguments.split_first() {
        Some((first, rest)) if !first.starts_with('-') => (first.as_str(), rest),
        _ => (*default, arguments),
    };
    let mut shell = sh::as_root("sh", "XDP and network namespaces")?;
    shell
        .args(["-c", SCRIPT, "example"])
        .arg(binary)
        .arg(example);
    shell.arg(format!("rocexdp-example{}", std::process::id()));
    shell.args([ADDRESS, command]).args(options);
    // Not printed as other commands are: the script says itself what it runs.
    Err(shell.exec()).context("cannot start sh")
}
