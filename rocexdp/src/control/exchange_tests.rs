//! Tests of the messages: what is read, and what is refused by name.

use super::*;

fn qp() -> PeerQp {
    PeerQp {
        qpn: 0x80_0001,
        psn: 7,
        gid: "10.0.0.1".parse().unwrap(),
        path_mtu: 1024,
        selective_repeat: 0,
    }
}

#[test]
fn an_opening_of_this_version_is_read() {
    let hello = Hello {
        protocol: PROTOCOL.to_owned(),
        version: VERSION,
        qp: qp(),
        path: "file".to_owned(),
        size: 1,
    };
    let back: Hello = opening(&serde_json::to_vec(&hello).unwrap()).unwrap();
    assert_eq!(
        (back.qp, back.path, back.size),
        (qp(), "file".to_owned(), 1)
    );
}

#[test]
fn another_version_is_refused_by_its_number_whatever_else_it_says() {
    let body = br#"{"protocol":"rocexdp","version":2,"something":{"new":[1]}}"#;
    let error = opening::<Hello>(body).unwrap_err();
    assert!(matches!(
        error,
        OpeningError::Version {
            found: 2,
            wanted: VERSION
        }
    ));
    assert!(error.to_string().contains("version 2"), "{error}");
    let body = br#"{"protocol":"http","version":1}"#;
    assert!(matches!(
        opening::<Greeting>(body),
        Err(OpeningError::Protocol { .. })
    ));
}

#[test]
fn a_malformed_opening_is_an_error() {
    for body in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"{}",
        b"[]",
        b"null",
        br#"{"protocol":"rocexdp","version":-1}"#,
        br#"{"protocol":"rocexdp","version":"1"}"#,
        br#"{"protocol":"rocexdp","version":1}"#,
        br#"{"protocol":"rocexdp","version":1,"qp":{"qpn":99999999999},"path":"a","size":1}"#,
        br#"{"protocol":"rocexdp","version":1,"nonce":"00","token":true}"#,
    ] {
        assert!(matches!(
            opening::<Hello>(body),
            Err(OpeningError::Frame(_))
        ));
        assert!(matches!(
            opening::<Greeting>(body),
            Err(OpeningError::Frame(_))
        ));
    }
}

#[test]
fn a_gid_is_the_connections_address_in_any_form() {
    for (gid, connection, right) in [
        ("10.0.0.1", "10.0.0.1", true),
        ("::ffff:10.0.0.1", "10.0.0.1", true),
        ("10.0.0.1", "::ffff:10.0.0.1", true),
        ("fd00::1", "fd00::1", true),
        ("fe80::1", "fe80::1", true),
        ("10.0.0.2", "10.0.0.1", false),
        ("fd00::1", "fe80::1", false),
        ("fd00::1", "10.0.0.1", false),
    ] {
        let gid = gid.parse().unwrap();
        let checked = PeerQp { gid, ..qp() }.check().unwrap();
        let of = checked.of(connection.parse().unwrap());
        assert_eq!(of.is_ok(), right, "{gid} {connection}");
        if let Err(why) = of {
            assert!(
                why.contains(&gid.to_string()) && why.contains(connection),
                "{why}"
            );
        }
    }
}

#[test]
fn numbers_that_no_qp_has_are_refused() {
    assert!(qp().check().is_ok());
    for qpn in [0, 1, 0xff_ffff, 0x100_0000, u32::MAX] {
        assert!(
            PeerQp { qpn, ..qp() }
                .check()
                .unwrap_err()
                .contains("QP number")
        );
    }
    assert!(
        PeerQp {
            psn: 1 << 24,
            ..qp()
        }
        .check()
        .unwrap_err()
        .contains("PSN")
    );
    for path_mtu in [0, 255, 1000, 8192] {
        assert!(
            PeerQp { path_mtu, ..qp() }
                .check()
                .unwrap_err()
                .contains("path MTU")
        );
    }
    for gid in [
        "0.0.0.0",
        "::",
        "127.0.0.1",
        "::1",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
        "::ffff:127.0.0.1",
    ] {
        let gid = gid.parse().unwrap();
        assert!(
            PeerQp { gid, ..qp() }.check().unwrap_err().contains("GID"),
            "{gid}"
        );
    }
    let mapped = PeerQp {
        gid: "::ffff:10.0.0.1".parse().unwrap(),
        ..qp()
    };
    assert_eq!(mapped.check().unwrap().gid, qp().gid);
}

#[test]
fn messages_keep_their_form_on_the_wire() {
    let refuse = Answer::Refuse {
        code: RefuseCode::ReceivingOff,
        reason: "off".to_owned(),
    };
    assert_eq!(
        serde_json::to_string(&refuse).unwrap(),
        r#"{"answer":"refuse","code":"receiving_off","reason":"off"}"#
    );
    let commit = Report::Commit {
        bytes: 5,
        sha256: Sha256Digest([0xab; 32]),
    };
    assert_eq!(
        serde_json::to_string(&commit).unwrap(),
        format!(
            r#"{{"report":"commit","bytes":5,"sha256":"{}"}}"#,
            "ab".repeat(32)
        )
    );
    assert!(serde_json::from_str::<Report>(r#"{"report":"placed","bytes":-1}"#).is_err());
    assert!(serde_json::from_str::<Report>(r#"{"report":"other"}"#).is_err());
}
