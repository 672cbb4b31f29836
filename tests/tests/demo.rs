//! What a newcomer runs first: it shows what it says it shows, and leaves nothing behind, however it ends.

use std::{path::Path, process::Command, time::Duration};

use rocexdp::sys::netns::NetNs;
use rocexdp_tests::{
    eventually,
    process::Running,
    rig::{COPY, SHORT, product},
};

fn start(binary: &Path, size: &str) -> Running {
    let mut command = Command::new(binary);
    command.args(["demo", "--size", size]);
    Running::start(command, format!("rocexdp demo --size {size}"))
}

/// Namespaces of the demonstration with this process id.
fn namespaces(pid: u32) -> Vec<String> {
    NetNs::names(&format!("rocexdp-demo{pid}-")).expect("listing namespaces")
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_demonstration_copies_twice_shows_both_hosts_maps_and_removes_everything() {
    let Some(binary) = product() else { return };
    let demo = start(&binary, "32M");
    let pid = demo.pid();
    let outcome = demo.finish(COPY).ok();
    let shown = outcome.stdout;
    assert_eq!(shown.matches("(intact)").count(), 2, "two copies: {shown}");
    assert_eq!(
        shown.matches("CNP SENT").count(),
        4,
        "a table a host and copy: {shown}"
    );
    assert!(
        shown.contains(" 0 of them sent again"),
        "nothing on the clean wire: {shown}"
    );
    assert!(
        shown.contains("DCQCN rate of a's QP over time"),
        "the plot: {shown}"
    );
    assert_eq!(namespaces(pid), Vec::<String>::new());
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn an_interrupted_demonstration_removes_everything() {
    let Some(binary) = product() else { return };
    // Large enough to be interrupted in the middle of the copy; it is on the disk twice.
    let demo = start(&binary, "512M");
    let pid = demo.pid();
    eventually("the copy starts", SHORT, || {
        demo.stdout().contains("by RDMA WRITE").then_some(())
    });
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(
        namespaces(pid).len(),
        3,
        "{}{}",
        demo.stdout(),
        demo.stderr()
    );
    let outcome = demo.interrupt(SHORT);
    assert_eq!(outcome.code, Some(130), "{outcome:?}");
    assert_eq!(namespaces(pid), Vec::<String>::new());
    let left = eventually("the daemons end", SHORT, || {
        let list = Command::new("pgrep")
            .args(["-f", &format!("rocexdp-demo{pid}-")])
            .output()
            .expect("pgrep");
        list.stdout.is_empty().then_some(list.stdout)
    });
    assert!(left.is_empty());
}
