//! Tests of the receive directory on a real file system: what a peer may name, and what is there afterwards.

use std::{fs, io::Write, os::unix::fs::symlink};

use super::*;

struct Place {
    base: tempfile::TempDir,
    dir: ReceiveDir,
}

/// `base/in` is the receive directory; `base/out` and `base/secret` must stay untouched.
fn place() -> Place {
    let base = tempfile::tempdir().unwrap();
    fs::create_dir(base.path().join("in")).unwrap();
    fs::create_dir(base.path().join("in/sub")).unwrap();
    fs::create_dir(base.path().join("out")).unwrap();
    fs::write(base.path().join("secret"), "secret").unwrap();
    let dir = ReceiveDir::open(&base.path().join("in")).unwrap();
    Place { base, dir }
}

fn names(at: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(at)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn receive(place: &Place, wanted: &str, bytes: &[u8], overwrite: bool) -> Result<(), Refusal> {
    let incoming = place.dir.create(wanted, bytes.len() as u64, overwrite)?;
    let mut file = incoming.file();
    file.write_all(bytes).unwrap();
    incoming.publish()
}

#[test]
fn a_file_appears_whole_under_its_name() {
    let place = place();
    let incoming = place.dir.create("sub/./file", 5, false).unwrap();
    assert!(names(&place.base.path().join("in/sub")).is_empty());
    let mut file = incoming.file();
    file.write_all(b"bytes").unwrap();
    incoming.publish().unwrap();
    assert_eq!(
        fs::read(place.base.path().join("in/sub/file")).unwrap(),
        b"bytes"
    );
    receive(&place, "empty", b"", false).unwrap();
    assert_eq!(fs::read(place.base.path().join("in/empty")).unwrap(), b"");
}

#[test]
fn a_file_that_never_came_whole_never_was() {
    let place = place();
    let incoming = place.dir.create("file", 1 << 20, false).unwrap();
    let mut file = incoming.file();
    file.write_all(b"half").unwrap();
    drop(incoming);
    assert_eq!(names(&place.base.path().join("in")), ["sub"]);
}

#[test]
fn room_is_allocated_before_the_first_byte() {
    let place = place();
    let incoming = place.dir.create("file", 1 << 20, false).unwrap();
    let found = rustix::fs::fstat(incoming.file()).unwrap();
    assert_eq!(found.st_size, 1 << 20);
    assert!(found.st_blocks * 512 >= 1 << 20);
    assert!(matches!(
        place.dir.create("huge", 1 << 60, false),
        Err(Refusal::Space(_))
    ));
}

#[test]
fn paths_that_lead_out_are_refused() {
    let place = place();
    let absolute = place.base.path().join("out/file");
    for bad in [
        "../out/file",
        "../secret",
        "sub/../../secret",
        "sub/..",
        "..",
        ".",
        "",
        "/",
        "sub/",
        "sub/.",
        "a\0b",
        "/etc/rocexdp-test",
        absolute.to_str().unwrap(),
        &"a/".repeat(600),
        &"n".repeat(256),
    ] {
        let error = place.dir.create(bad, 1, true).unwrap_err();
        assert!(matches!(error, Refusal::Path(_)), "{bad:?}: {error}");
    }
    assert!(names(&place.base.path().join("out")).is_empty());
    assert_eq!(
        fs::read_to_string(place.base.path().join("secret")).unwrap(),
        "secret"
    );
}

#[test]
fn links_are_not_followed() {
    let place = place();
    let base = place.base.path();
    symlink(base.join("out"), base.join("in/away")).unwrap();
    symlink("sub", base.join("in/within")).unwrap();
    symlink(base.join("secret"), base.join("in/name")).unwrap();
    symlink("/proc/self/cwd", base.join("in/magic")).unwrap();
    symlink(base.join("nowhere"), base.join("in/dangling")).unwrap();
    for bad in ["away/file", "within/file", "name", "magic/file", "dangling"] {
        let error = receive(&place, bad, b"x", true).unwrap_err();
        assert!(
            matches!(&error, Refusal::Path(text) if text.contains("link")),
            "{bad:?}: {error}"
        );
    }
    assert!(names(&base.join("out")).is_empty());
    assert!(!base.join("nowhere").exists());
    assert_eq!(fs::read_to_string(base.join("secret")).unwrap(), "secret");
}

#[test]
fn nothing_is_overwritten_unless_allowed() {
    let place = place();
    receive(&place, "file", b"old", false).unwrap();
    let error = receive(&place, "file", b"new", false).unwrap_err();
    assert!(matches!(error, Refusal::Exists(_)), "{error}");
    assert_eq!(fs::read(place.base.path().join("in/file")).unwrap(), b"old");
    receive(&place, "file", b"new", true).unwrap();
    assert_eq!(fs::read(place.base.path().join("in/file")).unwrap(), b"new");
    assert_eq!(names(&place.base.path().join("in")), ["file", "sub"]);
    assert!(matches!(
        receive(&place, "sub", b"x", true),
        Err(Refusal::Path(_))
    ));
}

#[test]
fn a_name_taken_meanwhile_is_not_overwritten() {
    let place = place();
    let incoming = place.dir.create("file", 1, false).unwrap();
    fs::write(place.base.path().join("in/file"), "first").unwrap();
    assert!(matches!(incoming.publish(), Err(Refusal::Exists(_))));
    assert_eq!(
        fs::read_to_string(place.base.path().join("in/file")).unwrap(),
        "first"
    );
}

#[test]
fn a_link_put_there_meanwhile_is_not_written_through() {
    let place = place();
    let incoming = place.dir.create("file", 1, true).unwrap();
    symlink(
        place.base.path().join("secret"),
        place.base.path().join("in/file"),
    )
    .unwrap();
    assert!(matches!(incoming.publish(), Err(Refusal::Path(_))));
    assert_eq!(
        fs::read_to_string(place.base.path().join("secret")).unwrap(),
        "secret"
    );
}

#[test]
fn a_missing_directory_is_named() {
    let place = place();
    let error = place
        .dir
        .create("none/file", 1, false)
        .unwrap_err()
        .to_string();
    assert!(error.contains("no directory \"none\""), "{error}");
}
