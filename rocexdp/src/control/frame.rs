//! Frames of the control plane: a 32-bit big-endian length, then that many bytes of JSON.
//!
//! Both the exchange between peers (TCP) and the local control socket use them. What arrives comes from strangers: a frame
//! is bounded before it is read, waiting is bounded by the caller's deadline, and nothing is parsed before it is whole.
//! This module knows no message.

use std::{io, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Longest frame accepted or sent, in bytes without the length.
pub const MAX_FRAME: usize = 64 * 1024;
/// Bytes of the length in front of a frame.
pub const LENGTH_BYTES: usize = 4;

/// Why no message could be had from, or given to, the other side.
#[derive(Debug)]
#[non_exhaustive]
pub enum FrameError {
    /// The other side closed the connection between two frames.
    Closed,
    /// The connection ended within a frame.
    Truncated,
    /// A frame of this many bytes was announced, or would have to be sent.
    TooLong(usize),
    /// Nothing came, or nothing could be sent, for this long.
    TimedOut(Duration),
    /// The frame holds no message of the expected form.
    Malformed(serde_json::Error),
    /// The connection failed.
    Io(io::Error),
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed => write!(f, "the other side closed the connection"),
            Self::Truncated => write!(f, "the connection ended within a message"),
            Self::TooLong(length) => {
                write!(
                    f,
                    "a message of {length} bytes (at most {MAX_FRAME} are allowed)"
                )
            }
            Self::TimedOut(wait) => {
                write!(f, "no answer within {:.0} s", wait.as_secs_f64())
            }
            Self::Malformed(error) => {
                write!(
                    f,
                    "a message that this version does not understand: {error}"
                )
            }
            Self::Io(error) => write!(f, "connection failed: {error}"),
        }
    }
}

impl std::error::Error for FrameError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::Malformed(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated,
            _ => Self::Io(error),
        }
    }
}

/// The length in front of a frame, checked.
///
/// # Errors
/// [`FrameError::TooLong`] above [`MAX_FRAME`].
pub fn frame_length(prefix: [u8; LENGTH_BYTES]) -> Result<usize, FrameError> {
    let length = usize::try_from(u32::from_be_bytes(prefix)).unwrap_or(usize::MAX);
    if length > MAX_FRAME {
        Err(FrameError::TooLong(length))
    } else {
        Ok(length)
    }
}

/// A message as the bytes to send, length in front.
///
/// # Errors
/// The message can't be written as JSON, or is longer than [`MAX_FRAME`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let body = serde_json::to_vec(message).map_err(FrameError::Malformed)?;
    let length = u32::try_from(body.len())
        .ok()
        .filter(|_| body.len() <= MAX_FRAME)
        .ok_or(FrameError::TooLong(body.len()))?;
    let mut bytes = Vec::with_capacity(LENGTH_BYTES + body.len());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// A frame's body as a message.
///
/// # Errors
/// [`FrameError::Malformed`].
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, FrameError> {
    serde_json::from_slice(body).map_err(FrameError::Malformed)
}

/// Reads the body of the next frame. Not cancel safe: a future dropped halfway loses the stream's place.
///
/// # Errors
/// As [`FrameError`] says; [`FrameError::TimedOut`] when the whole frame is not there after `wait`.
pub async fn read_body<R>(from: &mut R, wait: Duration) -> Result<Vec<u8>, FrameError>
where
    R: AsyncRead + Unpin,
{
    let whole = async {
        let mut prefix = [0; LENGTH_BYTES];
        let (first, rest) = prefix.split_at_mut(1);
        if from.read(first).await? == 0 {
            return Err(FrameError::Closed);
        }
        from.read_exact(rest).await?;
        let mut body = vec![0; frame_length(prefix)?];
        from.read_exact(&mut body).await?;
        Ok(body)
    };
    tokio::time::timeout(wait, whole)
        .await
        .unwrap_or(Err(FrameError::TimedOut(wait)))
}

/// Reads the next message. Not cancel safe.
///
/// # Errors
/// As [`read_body`], and [`FrameError::Malformed`].
pub async fn read<R, T>(from: &mut R, wait: Duration) -> Result<T, FrameError>
where
    R: AsyncRead + Unpin,
    T: DeserializeOwned,
{
    decode(&read_body(from, wait).await?)
}

/// Sends a message. Not cancel safe.
///
/// # Errors
/// As [`encode`]; the connection failed, or did not take the frame within `wait`.
pub async fn write<W, T>(to: &mut W, message: &T, wait: Duration) -> Result<(), FrameError>
where
    W: AsyncWrite + Unpin,
    T: Serialize,
{
    let bytes = encode(message)?;
    match tokio::time::timeout(wait, to.write_all(&bytes)).await {
        Ok(sent) => sent.map_err(FrameError::Io),
        Err(_) => Err(FrameError::TimedOut(wait)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_millis(200);

    async fn read_from(bytes: &[u8]) -> Result<Vec<u32>, FrameError> {
        let mut from = bytes;
        read(&mut from, WAIT).await
    }

    #[tokio::test]
    async fn a_message_survives_the_way() {
        let (mut near, mut far) = tokio::io::duplex(16);
        let sent: Vec<u32> = (0..100).collect();
        let (wrote, got) = tokio::join!(
            write(&mut near, &sent, WAIT),
            read::<_, Vec<u32>>(&mut far, WAIT)
        );
        wrote.unwrap();
        assert_eq!(got.unwrap(), sent);
    }

    #[tokio::test]
    async fn an_announced_length_is_refused_before_memory_is_taken() {
        let mut hostile = u32::MAX.to_be_bytes().to_vec();
        hostile.extend_from_slice(b"[]");
        assert!(
            matches!(read_from(&hostile).await, Err(FrameError::TooLong(n)) if n == u32::MAX as usize)
        );
        let just_too_long = (MAX_FRAME as u32 + 1).to_be_bytes();
        assert!(matches!(
            read_from(&just_too_long).await,
            Err(FrameError::TooLong(_))
        ));
    }

    #[tokio::test]
    async fn an_end_between_frames_differs_from_one_within() {
        assert!(matches!(read_from(&[]).await, Err(FrameError::Closed)));
        assert!(matches!(
            read_from(&[0, 0]).await,
            Err(FrameError::Truncated)
        ));
        assert!(matches!(
            read_from(&[0, 0, 0, 2, b'[']).await,
            Err(FrameError::Truncated)
        ));
    }

    #[tokio::test]
    async fn junk_is_malformed() {
        for body in [
            &b""[..],
            b"{",
            b"[1,2",
            b"\xff\xfe",
            b"[1] [2]",
            b"\"text\"",
        ] {
            let mut frame = (body.len() as u32).to_be_bytes().to_vec();
            frame.extend_from_slice(body);
            assert!(
                matches!(read_from(&frame).await, Err(FrameError::Malformed(_))),
                "{body:?}"
            );
        }
        // Deep nesting must not exhaust the stack.
        let deep = "[".repeat(MAX_FRAME);
        let mut frame = (deep.len() as u32).to_be_bytes().to_vec();
        frame.extend_from_slice(deep.as_bytes());
        assert!(matches!(
            read_from(&frame).await,
            Err(FrameError::Malformed(_))
        ));
    }

    #[tokio::test]
    async fn a_silent_peer_times_out() {
        let (_near, mut far) = tokio::io::duplex(16);
        let got = read::<_, Vec<u32>>(&mut far, Duration::from_millis(20)).await;
        assert!(matches!(got, Err(FrameError::TimedOut(_))));
    }

    #[test]
    fn a_message_too_long_to_read_is_not_sent() {
        let long = "x".repeat(MAX_FRAME);
        assert!(matches!(encode(&long), Err(FrameError::TooLong(_))));
    }
}
