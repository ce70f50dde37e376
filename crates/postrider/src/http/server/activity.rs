//! What a connection is doing, by which it is judged.

use super::{Limits, connection::Stream, framing::Framing};
use http::Version;
use postrider_store::step;
use std::{
    io,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::oneshot,
    time::Instant,
};

/// Times are milliseconds since it began.
pub(super) struct Activity {
    began: Instant,
    running: AtomicUsize,
    /// When the last request was answered, or the connection began.
    idle_since: AtomicU64,
    /// When the first byte after that came; `NOT_YET` if none did.
    head_since: AtomicU64,
    /// HTTP/2, where bytes between requests are no request's head: pings, windows, settings.
    multiplexed: AtomicBool,
    /// We answered without having read all that was sent.
    pub(super) refused: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    HeadTooSlow,
    Idle,
}

impl Activity {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            running: AtomicUsize::new(0),
            idle_since: AtomicU64::new(0),
            head_since: AtomicU64::new(NOT_YET),
            multiplexed: AtomicBool::new(false),
            refused: AtomicBool::new(false),
        }
    }

    fn clock(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(NOT_YET)
    }

    fn bytes_came(&self) {
        let between = self.running.load(Relaxed) == 0 && !self.multiplexed.load(Relaxed);
        if between && self.head_since.load(Relaxed) == NOT_YET {
            self.head_since.store(self.clock(), Relaxed);
        }
    }

    pub(super) fn judge(&self, now: Instant, limits: &Limits) -> Verdict {
        let now = u64::try_from((now - self.began).as_millis()).unwrap_or(NOT_YET);
        let since = |then: u64| Duration::from_millis(now.saturating_sub(then));
        let (head, idle) = (self.head_since.load(Relaxed), self.idle_since.load(Relaxed));
        if self.running.load(Relaxed) > 0 {
            Verdict::Fine
        } else if head != NOT_YET && since(head) >= limits.head_time_max {
            Verdict::HeadTooSlow
        } else if since(idle) >= limits.idle_time_max {
            Verdict::Idle
        } else {
            Verdict::Fine
        }
    }

    /// When to judge again. What begins in between is at worst judged half its time late.
    pub(super) fn next_check(&self, limits: &Limits) -> Instant {
        let now = Instant::now();
        let regular = now + limits.head_time_max / 2;
        match self.head_since.load(Relaxed) {
            NOT_YET => regular,
            head => (self.began + Duration::from_millis(head) + limits.head_time_max).min(regular),
        }
    }
}

/// Counts a request as running for as long as it lives.
pub(super) struct Running(Arc<Activity>);

impl Running {
    pub(super) fn begin(activity: Arc<Activity>, version: Version) -> Self {
        if version == Version::HTTP_2 {
            activity.multiplexed.store(true, Relaxed);
        }
        activity.running.fetch_add(1, Relaxed);
        activity.head_since.store(NOT_YET, Relaxed);
        Self(activity)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.idle_since.store(self.0.clock(), Relaxed);
        self.0.running.fetch_sub(1, Relaxed);
    }
}

/// On an answer (as an extension) that goes on after its head: for as long as a clone of it lives, the connection counts as
/// busy and not as idle.
#[derive(Clone, Default)]
pub struct Stays(Arc<OnceLock<Running>>);

impl Stays {
    pub(super) fn hold(self, running: Running) {
        let _ = self.0.set(running);
    }
}

/// A stream that tells when bytes come in, and is given back at the end.
pub(super) struct Watched<S: Stream> {
    /// There until this is dropped.
    pub(super) stream: Option<S>,
    pub(super) activity: Arc<Activity>,
    pub(super) framing: Framing,
    /// What is still to be read once the framing is spoilt.
    pub(super) ending: &'static [u8],
    pub(super) back: Option<oneshot::Sender<S>>,
}

impl<S: Stream> Watched<S> {
    fn stream(self: Pin<&mut Self>) -> Pin<&mut S> {
        Pin::new(self.get_mut().stream.as_mut().expect("it is taken on drop only"))
    }
}

impl<S: Stream> Drop for Watched<S> {
    fn drop(&mut self) {
        if let (Some(stream), Some(back)) = (self.stream.take(), self.back.take()) {
            let _ = back.send(stream);
        }
    }
}

impl<S: Stream> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.framing.is_spoilt() {
            let (now, later) = self.ending.split_at(self.ending.len().min(buf.remaining()));
            buf.put_slice(now);
            self.ending = later;
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let polled = self.as_mut().stream().poll_read(cx, buf);
        if buf.filled().len() > before {
            self.activity.bytes_came();
            let passed = self.framing.pass(&mut buf.filled_mut()[before..]);
            buf.set_filled(before + passed);
        }
        polled
    }
}

impl<S: Stream> AsyncWrite for Watched<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        // Everything goes out this way or, if there is more than one piece, the other.
        let mut stream = self.stream();
        step!("answer.half_written", stream.as_mut().poll_write(cx, &data[..data.len() / 2]));
        let polled = stream.poll_write(cx, data);
        step!("answer.written");
        polled
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut stream = self.stream();
        step!("answer.half_written", stream.as_mut().poll_write(cx, &data[0][..data[0].len() / 2]));
        let polled = stream.poll_write_vectored(cx, data);
        step!("answer.written");
        polled
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }
}

/// The parser looks at a head only when it has seen its end.
pub(super) const END_OF_HEAD: &[u8] = b"\r\n\r\n";
const NOT_YET: u64 = u64::MAX;
