//! Tests of the receiving side: how reports are followed, and what gets a name.

use super::*;

const DIGEST: Sha256Digest = Sha256Digest([7; 32]);

async fn followed(reports: &[Report], stall: Duration) -> Result<Sha256Digest, Failure> {
    let (mut here, mut there) = tokio::io::duplex(1 << 16);
    for report in reports {
        frame::write(&mut there, report, SILENCE).await.unwrap();
    }
    drop(there);
    follow(&mut here, 10, stall).await
}

fn placed(bytes: u64) -> Report {
    Report::Placed { bytes }
}

fn commit(bytes: u64) -> Report {
    let sha256 = DIGEST;
    Report::Commit { bytes, sha256 }
}

#[tokio::test]
async fn reports_are_followed_to_the_commit() {
    let reports = [placed(0), placed(4), placed(4), placed(10), commit(10)];
    assert_eq!(followed(&reports, STALL).await.unwrap(), DIGEST);
    for reports in [
        &[placed(4), placed(3)][..],
        &[placed(11)],
        &[placed(4), commit(4)],
    ] {
        let failure = followed(reports, STALL).await.unwrap_err();
        assert!(matches!(failure, Failure::Refused(RefuseCode::Protocol, _)));
    }
    let failure = followed(&[placed(10)], STALL).await.unwrap_err();
    assert!(matches!(failure, Failure::Connection(FrameError::Closed)));
}

#[tokio::test]
async fn a_peer_that_only_says_it_is_there_is_given_up() {
    let reports = [placed(4), placed(4), commit(10)];
    let failure = followed(&reports, Duration::ZERO).await.unwrap_err();
    assert!(failure.to_string().contains("no byte"), "{failure}");
    assert!(
        followed(&[placed(4), placed(5), commit(10)], Duration::ZERO)
            .await
            .is_ok()
    );
}

#[test]
fn only_the_bytes_that_were_sent_get_the_name() {
    use std::os::unix::fs::FileExt;

    use sha2::{Digest, Sha256};

    let place = tempfile::tempdir().unwrap();
    let dir = ReceiveDir::open(place.path()).unwrap();
    let sent = Sha256Digest(Sha256::digest(b"bytes").into());
    for (arrived, stopped, right) in [
        (b"bites", false, false),
        (b"bytes", true, false),
        (b"bytes", false, true),
    ] {
        let incoming = dir.create("file", 5, false).unwrap();
        incoming.file().write_all_at(arrived, 0).unwrap();
        let done = verify_and_publish(incoming, 5, sent, &AtomicBool::new(stopped));
        assert_eq!(done.is_ok(), right);
        assert_eq!(place.path().join("file").exists(), right);
    }
}
