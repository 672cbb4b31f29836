//! The HTTP server: `GET /metrics`, and a page at `/` that leads there. Nothing else.
//!
//! Anyone who reaches the address may ask, so everything is bounded: connections at once, the size of a request, the time that a
//! connection lives. A connection answers one request.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpListener, sync::Semaphore, time};

use super::{MetricsAddr, Scraper, observer::ScrapeError, page};

/// Connections served at once; more wait.
const CONNECTIONS: usize = 32;
/// Bytes of a request's head.
const HEAD: usize = 8192;
/// Time for a request's head to come.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// Time for a whole connection.
const CONNECTION_TIME: Duration = Duration::from_secs(30);
/// After a failed accept (no file descriptors), wait instead of spinning.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const INDEX: &str = "<!DOCTYPE html>\n<title>rocexdp</title>\n<h1>rocexdp</h1>\n<p><a href=\"/metrics\">Metrics</a></p>\n";

/// A bound address.
#[derive(Debug)]
pub struct Listener(std::net::TcpListener);

impl Listener {
    /// Binds, so that a bad address is told before anything else starts.
    ///
    /// # Errors
    /// The address is taken or not this host's.
    pub fn bind(address: MetricsAddr) -> anyhow::Result<Self> {
        let explain = || {
            format!(
                "--metrics {address}: another program uses the port, or the address is not this host's: choose another"
            )
        };
        let listener = std::net::TcpListener::bind(address.0).with_context(explain)?;
        listener.set_nonblocking(true).with_context(explain)?;
        Ok(Self(listener))
    }

    /// The address, its port chosen by the system where 0 was asked for.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// Serves until it is dropped.
///
/// # Errors
/// The runtime does not take the socket.
pub async fn serve(listener: Listener, scraper: Scraper) -> anyhow::Result<Infallible> {
    let listener = TcpListener::from_std(listener.0).context("serving metrics")?;
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let permit = Arc::clone(&room)
            .acquire_owned()
            .await
            .context("serving metrics")?;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let scraper = scraper.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| answer(request, &scraper));
            let connection = http1::Builder::new()
                .keep_alive(false)
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .max_buf_size(HEAD)
                .serve_connection(TokioIo::new(stream), service);
            // A client that leaves, or sends nonsense, is its own problem.
            let _ = time::timeout(CONNECTION_TIME, connection).await;
            drop(permit);
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    scraper: &Scraper,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.method() != Method::GET {
        let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n");
        refused
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET"));
        return Ok(refused);
    }
    Ok(match request.uri().path() {
        "/metrics" => match scraper.scrape().await {
            Ok(text) => with_type(StatusCode::OK, page::CONTENT_TYPE, text),
            Err(ScrapeError::Busy) => {
                let mut busy = plain(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "too many scrapes at once\n",
                );
                busy.headers_mut()
                    .insert(RETRY_AFTER, HeaderValue::from_static("1"));
                busy
            }
            Err(ScrapeError::Ended) => plain(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the thread that reads has ended: restart rocexdp\n",
            ),
        },
        "/" => with_type(StatusCode::OK, "text/html; charset=utf-8", INDEX),
        _ => plain(StatusCode::NOT_FOUND, "not here: see /metrics\n"),
    })
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    with_type(status, "text/plain; charset=utf-8", text)
}

fn with_type(
    status: StatusCode,
    kind: &'static str,
    text: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
