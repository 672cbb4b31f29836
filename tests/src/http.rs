//! HTTP/1.1 as little as tests need, and what Prometheus' text says.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use rocexdp::sys::netns::NetNs;

const LIMIT: Duration = Duration::from_secs(30);

/// Sends `request` as it is, from inside a namespace, and returns all that comes back.
pub fn exchange(from: &NetNs, to: SocketAddr, request: &[u8]) -> String {
    from.run(|| {
        let mut stream = TcpStream::connect_timeout(&to, LIMIT).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        // The server may close before it has taken everything.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let mut block = [0; 65536];
        while let Ok(read @ 1..) = stream.read(&mut block) {
            answer.extend_from_slice(&block[..read]);
        }
        String::from_utf8_lossy(&answer).into_owned()
    })
    .unwrap()
}

/// `GET path`: status and body.
pub fn get(from: &NetNs, to: SocketAddr, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n");
    let answer = exchange(from, to, request.as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head
        .split_whitespace()
        .nth(1)
        .and_then(|s| s.parse().ok())
        .unwrap_or(0);
    // Prometheus answers long bodies in chunks.
    let body = if head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked")
    {
        unchunked(body)
    } else {
        body.to_owned()
    };
    (status, body)
}

fn unchunked(mut rest: &str) -> String {
    let mut whole = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        let Some(chunk) = after.get(..size).filter(|c| !c.is_empty()) else {
            break;
        };
        whole.push_str(chunk);
        rest = after.get(size + 2..).unwrap_or_default();
    }
    whole
}

/// A text as part of a URL's query.
pub fn encoded(text: &str) -> String {
    text.bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                char::from(b).to_string()
            }
            _ => format!("%{b:02X}"),
        })
        .collect()
}

/// One series of the text format.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name of the metric.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

/// The series in a text. Label values of these tests have no commas, quotes or braces.
pub fn series(text: &str) -> Vec<Series> {
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let (left, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = left.split_once('{').unwrap_or((left, "}"));
            let labels = labels.trim_end_matches('}');
            Series {
                name: name.to_owned(),
                labels: labels
                    .split(',')
                    .filter_map(|pair| {
                        let (name, value) = pair.split_once('=')?;
                        Some((name.to_owned(), value.trim_matches('"').to_owned()))
                    })
                    .collect(),
                value: value.parse().unwrap(),
            }
        })
        .collect()
}

/// The sum of the series of a name whose labels have all of these.
pub fn sum(all: &[Series], name: &str, labels: &[(&str, &str)]) -> f64 {
    let mut found = all
        .iter()
        .filter(|s| {
            s.name == name
                && labels
                    .iter()
                    .all(|(k, v)| s.labels.get(*k).is_some_and(|x| x == v))
        })
        .peekable();
    assert!(found.peek().is_some(), "no series {name}{labels:?}");
    found.map(|s| s.value).sum()
}
